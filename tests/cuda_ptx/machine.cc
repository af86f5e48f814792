#include "tests/cuda_ptx/machine.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "gradientflow/base/str_cat.h"

namespace gradientflow::cuda_ptx {
namespace {

constexpr unsigned kMostThreads = 1024;
constexpr std::size_t kUsualShared = 48 << 10;

std::vector<unsigned> OrderOfBlocks(unsigned blocks, std::mt19937_64& random) {
  std::vector<unsigned> order(blocks);
  std::iota(order.begin(), order.end(), 0U);
  switch (random() % 3) {
    case 0:
      break;
    case 1:
      std::reverse(order.begin(), order.end());
      break;
    default:
      std::shuffle(order.begin(), order.end(), random);
  }
  return order;
}

}  // namespace

Machine& Machine::Get() {
  static auto* const machine = new Machine;
  return *machine;
}

Program& Machine::ProgramFor(const std::string& kernel_name) {
  if (program_ != nullptr) return *program_;
  std::vector<Program>& all = Library::Get().programs();
  return all[(seed_ + turns_[kernel_name]++) % all.size()];
}

Status Machine::Check(const Kernel& kernel, const Shape& shape) const {
  if (shape.blocks == 0 || shape.threads == 0) {
    return {StatusCode::kInvalidArgument, "a launch without threads"};
  }
  const unsigned most = std::min(kMostThreads, kernel.most_threads);
  if (shape.threads > most) {
    return {
        StatusCode::kInvalidArgument,
        StrCat(shape.threads, " threads in a block; ", most, " is the most")};
  }
  const std::size_t shared = kernel.static_shared_bytes + shape.shared_bytes;
  if (shared > kUsualShared) {
    return {StatusCode::kInvalidArgument,
            StrCat(shared, " bytes of shared memory; ", kUsualShared,
                   " is the most")};
  }
  return Status();
}

Status Machine::RunBlocks(Kernel& kernel, const Shape& asked,
                          void** arguments) {
  std::mt19937_64 random(seed_ + launches_ * 0x9E3779B97F4A7C15U);
  Shape shape = asked;
  const std::uint64_t bits = random();
  if (bits % 2 == 0) {
    shape.blocks = 1 + static_cast<unsigned>((bits >> 8) % shape.blocks);
  }
  if (one_block_) shape.blocks = 1;
  std::vector<std::byte> parameters(kernel.parameter_bytes);
  for (std::size_t i = 0; i < kernel.parameters.size(); ++i) {
    std::memcpy(parameters.data() + kernel.parameters[i].offset, arguments[i],
                kernel.parameters[i].bytes);
  }
  Block block(kernel, shape, parameters);
  std::uint64_t left = most_steps_;
  Status status;
  for (const unsigned index : OrderOfBlocks(shape.blocks, random)) {
    status = block.Run(index, random, &left);
    if (!status.ok()) break;
  }
  steps_ += most_steps_ - left;
  moved_bytes_ += block.moved_bytes();
  return status;
}

Status Machine::Launch(const std::string& name, const Shape& shape,
                       void** arguments) {
  ++launches_;
  Program& program = ProgramFor(name);
  Result<Kernel*> kernel = program.Find(name);
  Status status = kernel.status();
  if (kernel.ok()) status = Check(*kernel.value(), shape);
  if (status.ok()) {
    const auto run = [&] {
      return RunBlocks(*kernel.value(), shape, arguments);
    };
    status = around_ ? around_(*kernel.value(), run) : run();
  }
  if (status.ok()) return status;
  status = {
      status.code(),
      StrCat(status.message(), "\n  kernel ", name, " of ", program.name(),
             ", launch ", launches_, " of seed ", seed_, ": ", shape.blocks,
             " blocks of ", shape.threads, " threads, ", shape.shared_bytes,
             " bytes of shared memory")};
  if (fault_.ok()) fault_ = status;
  return status;
}

}  // namespace gradientflow::cuda_ptx
