#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// The memory that the threads of a block share. It knows of each byte who wrote
// and who read it, and so finds every access that no barrier separates from
// another thread's, in whatever order the threads run.
namespace gradientflow::cuda_ptx {

// Who accesses, and when. A stretch is what a block, or a warp, does between
// two of its barriers. All have different numbers, of all blocks.
struct Moment {
  std::uint32_t block_stretch;
  std::uint32_t warp_stretch;
  std::uint16_t thread;
};

enum class AccessKind : std::uint8_t { kRead, kWrite, kAtomic };

class SharedMemory {
 public:
  // For a block that begins in this stretch.
  void Reset(std::size_t bytes, std::uint32_t stretch);

  std::size_t size() const { return bytes_.size(); }
  std::byte* data() { return bytes_.data(); }

  // Null, or what is wrong. REQUIRES: [at, at + bytes) is inside.
  const char* Note(const Moment& now, AccessKind kind, std::size_t at,
                   std::size_t bytes);

 private:
  struct Trace {
    std::uint32_t block_stretch = 0;
    std::uint32_t warp_stretch = 0;
    std::uint16_t thread = 0;
    bool others = false;       // More threads of the warp did the same,
    bool other_warps = false;  // or threads of other warps.
  };
  struct Cell {
    Trace read;
    Trace written;
    bool atomic = false;  // The write.
  };

  static bool Collides(const Trace& before, const Moment& now);
  static void Add(Trace& trace, const Moment& now);
  const char* NoteByte(const Moment& now, AccessKind kind, Cell& cell) const;

  std::vector<std::byte> bytes_;
  std::vector<Cell> cells_;
  std::uint32_t first_stretch_ = 0;
};

}  // namespace gradientflow::cuda_ptx
