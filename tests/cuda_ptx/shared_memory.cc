#include "tests/cuda_ptx/shared_memory.h"

#include <algorithm>

namespace gradientflow::cuda_ptx {
namespace {

constexpr unsigned kWarp = 32;

}  // namespace

void SharedMemory::Reset(std::size_t bytes, std::uint32_t stretch) {
  bytes_.resize(bytes);
  cells_.resize(std::max(cells_.size(), bytes));
  std::fill(bytes_.begin(), bytes_.end(), std::byte{0xFF});
  first_stretch_ = stretch;
}

bool SharedMemory::Collides(const Trace& before, const Moment& now) {
  if (before.block_stretch != now.block_stretch) return false;
  if (before.other_warps) return true;
  if (before.thread / kWarp != now.thread / kWarp) return true;
  if (before.warp_stretch != now.warp_stretch) return false;
  return before.others || before.thread != now.thread;
}

void SharedMemory::Add(Trace& trace, const Moment& now) {
  const bool same_stretch = trace.block_stretch == now.block_stretch;
  const bool same_warp = trace.thread / kWarp == now.thread / kWarp;
  const bool other_warps = same_stretch && (trace.other_warps || !same_warp);
  const bool others = same_stretch && same_warp &&
                      trace.warp_stretch == now.warp_stretch &&
                      (trace.others || trace.thread != now.thread);
  trace = {now.block_stretch, now.warp_stretch, now.thread, others,
           other_warps};
}

const char* SharedMemory::NoteByte(const Moment& now, AccessKind kind,
                                   Cell& cell) const {
  // The numbers grow, and those of other blocks are smaller.
  const bool is_written = cell.written.block_stretch >= first_stretch_;
  if (kind != AccessKind::kWrite && !is_written) {
    return "reads shared memory that nobody wrote";
  }
  const bool both_atomic = kind == AccessKind::kAtomic && cell.atomic;
  if (is_written && !both_atomic && Collides(cell.written, now)) {
    return kind == AccessKind::kRead
               ? "reads what another thread wrote, with no barrier between"
               : "writes where another thread wrote, with no barrier between";
  }
  if (kind == AccessKind::kRead) {
    Add(cell.read, now);
    return nullptr;
  }
  if (cell.read.block_stretch >= first_stretch_ && Collides(cell.read, now)) {
    return "writes where another thread read, with no barrier between";
  }
  Add(cell.written, now);
  cell.atomic = kind == AccessKind::kAtomic;
  return nullptr;
}

const char* SharedMemory::Note(const Moment& now, AccessKind kind,
                               std::size_t at, std::size_t bytes) {
  for (std::size_t i = at; i < at + bytes; ++i) {
    const char* wrong = NoteByte(now, kind, cells_[i]);
    if (wrong != nullptr) return wrong;
  }
  return nullptr;
}

}  // namespace gradientflow::cuda_ptx
