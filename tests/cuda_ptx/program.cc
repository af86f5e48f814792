#include "tests/cuda_ptx/program.h"

#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow::cuda_ptx {

Type TypeNamed(std::string_view name) {
  static constexpr std::pair<std::string_view, Type> kNames[] = {
      {"pred", Type::kPred}, {"b8", Type::kB8},       {"u8", Type::kU8},
      {"s8", Type::kS8},     {"b16", Type::kB16},     {"u16", Type::kU16},
      {"s16", Type::kS16},   {"f16", Type::kF16},     {"bf16", Type::kBF16},
      {"b32", Type::kB32},   {"u32", Type::kU32},     {"s32", Type::kS32},
      {"f32", Type::kF32},   {"f16x2", Type::kF16x2}, {"bf16x2", Type::kBF16x2},
      {"b64", Type::kB64},   {"u64", Type::kU64},     {"s64", Type::kS64},
      {"f64", Type::kF64}};
  for (const auto& [known, type] : kNames) {
    if (known == name) return type;
  }
  return Type::kNone;
}

std::string Where(const Kernel& kernel, std::size_t at) {
  const Instruction& instruction = kernel.code[at];
  return StrCat(kernel.file, ":", instruction.line, ": ", instruction.text);
}

}  // namespace gradientflow::cuda_ptx
