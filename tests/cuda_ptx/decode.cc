#include "tests/cuda_ptx/decode.h"

#include <algorithm>
#include <cctype>

namespace gradientflow::cuda_ptx {
namespace {

constexpr std::uint32_t kAlignment = 32;

struct SpecialName {
  std::string_view name;
  Special special;
};
// Kernels here have one dimension.
constexpr SpecialName kSpecials[] = {
    {"%tid.x", Special::kThread},  {"%ntid.x", Special::kThreads},
    {"%ctaid.x", Special::kBlock}, {"%nctaid.x", Special::kBlocks},
    {"%laneid", Special::kLane},   {"%tid.y", Special::kZero},
    {"%tid.z", Special::kZero},    {"%ctaid.y", Special::kZero},
    {"%ctaid.z", Special::kZero},  {"%ntid.y", Special::kOne},
    {"%ntid.z", Special::kOne},    {"%nctaid.y", Special::kOne},
    {"%nctaid.z", Special::kOne}};

void (*DecoderOf(const std::string& mnemonic))(Line&) {
  for (const auto rows : {ArithmeticRows(), BitRows(), CompareRows(),
                          ConvertRows(), MemoryRows(), ControlRows()}) {
    for (const Row& row : rows) {
      if (row.mnemonic == mnemonic) return row.decode;
    }
  }
  return nullptr;
}

}  // namespace

std::uint32_t Layout::Reserve(std::uint32_t bytes) {
  const auto place = static_cast<std::uint32_t>(kernel_.register_bytes);
  const std::uint32_t all = bytes == 0 ? sizeof(std::uint32_t) : bytes * kLanes;
  kernel_.register_bytes += (all + kAlignment - 1) / kAlignment * kAlignment;
  return place;
}

std::pair<Type, Operand> Layout::Register(const std::string& name) {
  const auto known = registers_.find(name);
  if (known != registers_.end()) return known->second;
  auto declared = text_.registers.find(name);
  if (declared == text_.registers.end() || declared->second.count != 0) {
    const std::size_t digits = name.find_last_not_of("0123456789") + 1;
    declared = text_.registers.find(name.substr(0, digits));
    if (declared == text_.registers.end() || digits == name.size() ||
        std::stoul(name.substr(digits)) >= declared->second.count) {
      return {Type::kNone, {}};
    }
  }
  const Type type = declared->second.type;
  const Operand operand = {Reserve(BytesOf(type)), BytesOf(type)};
  return registers_[name] = {type, operand};
}

Operand Layout::Constant(std::uint32_t bytes, std::uint64_t bits) {
  const auto [at, is_new] = constants_.insert({{bytes, bits}, {}});
  if (is_new) {
    at->second = {Reserve(bytes), bytes};
    kernel_.constants.push_back({at->second, bits});
  }
  return at->second;
}

Operand Layout::Preset(Special special, std::uint64_t offset,
                       std::uint32_t bytes) {
  for (const Kernel::Preset& preset : kernel_.presets) {
    if (preset.special == special && preset.offset == offset &&
        preset.operand.bytes == bytes) {
      return preset.operand;
    }
  }
  const Operand operand = {Reserve(bytes), bytes};
  kernel_.presets.push_back({operand, special, offset});
  return operand;
}

bool Layout::Symbol(const std::string& name, std::uint32_t bytes,
                    Operand* operand) {
  for (const SpecialName& special : kSpecials) {
    if (special.name != name) continue;
    *operand = Preset(special.special, 0, bytes);
    return true;
  }
  for (const auto& [parameter, where] : text_.parameters) {
    if (parameter != name) continue;
    *operand = Preset(Special::kParam, where.offset, bytes);
    return true;
  }
  const auto shared = module_.shared.find(name);
  if (shared == module_.shared.end()) return false;
  *operand = Constant(bytes, shared->second);
  return true;
}

Result<Kernel> Decode(const Module& module, const KernelText& text) {
  Kernel kernel;
  kernel.file = text.file;
  kernel.name = text.name;
  kernel.parameter_bytes = text.parameter_bytes;
  kernel.most_threads = text.most_threads;
  for (const auto& [name, parameter] : text.parameters) {
    kernel.parameters.push_back(parameter);
  }
  kernel.static_shared_bytes = module.shared_bytes;
  kernel.code.resize(text.statements.size());
  kernel.executed.resize(text.statements.size());
  Layout layout(module, text, kernel);
  for (std::size_t i = 0; i < text.statements.size(); ++i) {
    Line line(text, text.statements[i], layout, kernel.code[i]);
    const auto decode = DecoderOf(line.mnemonic());
    if (decode != nullptr) {
      decode(line);
    } else {
      line.Fail("unknown instruction");
    }
    GF_RETURN_IF_ERROR(line.Finish());
  }
  return kernel;
}

}  // namespace gradientflow::cuda_ptx
