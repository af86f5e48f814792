#include "tests/device/fake_kernels.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>

#include "gradientflow/base/status.h"
#include "gradientflow/base/str_cat.h"
#include "tests/device/fake_device.h"
#include "tests/device/fake_queue.h"
#include "tests/device/kernel_memory.h"
#include "tests/device/kernel_tables.h"

namespace gradientflow::testing {
namespace {

using kernels::ChunkKernelTable;
using kernels::KernelTable;

const KernelTable& CpuTable(const KernelTable*) {
  return kernels::CpuKernels();
}
const ChunkKernelTable& CpuTable(const ChunkKernelTable*) {
  return kernels::CpuChunkKernels();
}

// The same call on no elements: the CPU's kernel checks it, touches nothing,
// and returns at once. 0 elements are always allowed.
template <class Args>
Args OnNothing(Args args) {
  args.n = 0;
  return args;
}

template <class Args>
Args OnNoChunks(Args args) {
  args.range.count = 0;
  return args;
}
kernels::ChunkResidualArgs OnNothing(const kernels::ChunkResidualArgs& args) {
  return OnNoChunks(args);
}
kernels::ChunkUnpackArgs OnNothing(const kernels::ChunkUnpackArgs& args) {
  return OnNoChunks(args);
}
kernels::ChunkRestoreArgs OnNothing(const kernels::ChunkRestoreArgs& args) {
  return OnNoChunks(args);
}
kernels::ChunkRescaleArgs OnNothing(const kernels::ChunkRescaleArgs& args) {
  return OnNoChunks(args);
}
kernels::TopKArgs OnNothing(kernels::TopKArgs args) {
  args.chunks = args.k = 0;
  return args;
}
kernels::TileSquaresArgs OnNothing(kernels::TileSquaresArgs args) {
  args.count = 0;
  return args;
}
kernels::LarsRatesArgs OnNothing(kernels::LarsRatesArgs args) {
  args.tensors = 0;
  return args;
}
kernels::TileSgdArgs OnNothing(kernels::TileSgdArgs args) {
  args.count = 0;
  args.skip = nullptr;  // Device memory: read later.
  return args;
}

// Checks the counts that OnNothing() hides.
bool CountsAllowed(const kernels::ChunkRange& range) {
  if (range.chunk_elements == 0) return false;
  const std::size_t chunks = range.elements / range.chunk_elements +
                             (range.elements % range.chunk_elements != 0);
  return range.first <= chunks && range.count <= chunks - range.first;
}
template <class Args>
bool CountsAllowed(const Args& args) {
  if constexpr (requires { args.range; }) return CountsAllowed(args.range);
  return true;
}
bool CountsAllowed(const kernels::TopKArgs& args) {
  return args.k <= args.chunks && args.chunks <= std::size_t{1} << 31;
}

// A copy of the Args that lives as long as the work.
template <class Args>
class Copied {
 public:
  explicit Copied(const Args& args) : args_(args) {}
  const Args& get() const { return args_; }

 private:
  Args args_;
};
template <>
class Copied<kernels::ReduceManyArgs> {
 public:
  explicit Copied(const kernels::ReduceManyArgs& args) : args_(args) {
    std::copy_n(args.srcs, args.sources, srcs_.begin());
    std::copy_n(args.dsts, args.dests, dsts_.begin());
  }
  kernels::ReduceManyArgs get() const {
    kernels::ReduceManyArgs args = args_;
    args.srcs = srcs_.data();
    args.dsts = dsts_.data();
    return args;
  }

 private:
  kernels::ReduceManyArgs args_;
  std::array<const void*, kernels::kMaxParties> srcs_{};
  std::array<void*, kernels::kMaxParties> dsts_{};
};

// OK if the kernel may touch the memory that it is given.
template <class Args>
Status CheckMemory(const FakeMemory& memory, const Args& args) {
  Status bad;
  Visit(args, [&](const char* field, const void* data, std::size_t bytes) {
    if (bytes == 0 || !bad.ok()) return;
    const auto kind = memory.Find(field, data, bytes);
    if (!kind.ok()) {
      bad = kind.status();
    } else if (kind.value() == FakeMemory::Kind::kPageable) {
      bad = Status(StatusCode::kInvalidArgument,
                   StrCat("fake device: ", field, ": ", bytes, " bytes at ",
                          data, " are neither the device's nor pinned"));
    }
  });
  return bad;
}

template <class Table, auto kMember, class Args>
int Launch(const Args& args, void* stream) {
  FakeQueue* queue = FakeQueue::Of(stream);
  if (queue == nullptr) return EINVAL;
  FakeState& state = queue->state();
  if (!state.Enter(FakeCall::kLaunch).ok()) return kFakeLaunchError;

  const auto kernel = CpuTable(static_cast<Table*>(nullptr)).*kMember;
  if (!CountsAllowed(args)) return EINVAL;
  if (const int error = kernel(OnNothing(args), nullptr)) return error;
  if (state.options.check_kernel_memory) {
    Status status = CheckMemory(state.memory, args);
    // A GPU would find out later; failing here shows the caller.
    if (!status.ok()) {
      state.Fail(status);
      return kFakeLaunchError;
    }
  }
  const auto run = [kernel, copied = Copied<Args>(args)] {
    const int error = kernel(copied.get(), nullptr);
    if (error == 0) return Status();
    return Status(StatusCode::kInvalidArgument,
                  StrCat("fake device: a kernel ended with ", error));
  };
  return queue->Push(FakeTask{nullptr, run, nullptr}).ok() ? 0
                                                           : kFakeLaunchError;
}

struct Runner {
  template <auto kMember, class Args>
  static int Run(const Args& args, void* stream) {
    return Launch<const KernelTable, kMember>(args, stream);
  }
  template <auto kMember, class Args>
  static int RunChunks(const Args& args, void* stream) {
    return Launch<const ChunkKernelTable, kMember>(args, stream);
  }
};

constexpr KernelTable kTable = KernelsThrough<Runner>("fake");
constexpr ChunkKernelTable kChunkTable = ChunkKernelsThrough<Runner>("fake");

}  // namespace

const KernelTable& FakeKernels() { return kTable; }
const ChunkKernelTable& FakeChunkKernels() { return kChunkTable; }

}  // namespace gradientflow::testing
