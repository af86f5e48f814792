// The bare loop: one rank of `bare_shared MOST_BYTES RANK RANKS MEMORY`. MEMORY
// is a descriptor of an empty file that all ranks map: a barrier, then a buffer
// of float32 per rank. Every rank sums its share of all buffers and stores the
// result to all of them, in plain loops; no library code is on the timed path.
// The word of a batch is how many elements a rank takes at a time, in
// turn with the others; 0: its share at once.
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "benchmarks/collectives/worker.h"

namespace gradientflow::benchmarks {
namespace {

constexpr int kSpins = 2000;
constexpr std::size_t kPageBytes = 4096;
// Between two buffers, so that the same element of both is not a power of two
// apart: the same banks of memory would then have to open two rows in turn.
constexpr std::size_t kGapPages = 37;

// At the start of the memory, which begins with zeros as all of it.
struct alignas(64) BarrierState {
  std::atomic<std::uint32_t> arrived;
  alignas(64) std::atomic<std::uint32_t> generation;
};

// Where the buffer of a rank begins; that of rank `ranks` is the end of all.
std::size_t BufferBegin(int rank, std::size_t most_bytes) {
  const std::size_t pages =
      (most_bytes + kPageBytes - 1) / kPageBytes + kGapPages;
  return kPageBytes * (1 + pages * static_cast<std::size_t>(rank));
}

[[gnu::target_clones("avx2", "default")]] void SumTwo(float* __restrict a,
                                                      float* __restrict b,
                                                      std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float sum = a[i] + b[i];
    a[i] = sum;
    b[i] = sum;
  }
}

class BareShared final : public Worker {
 public:
  BareShared(std::byte* memory, int rank, int ranks, std::size_t most_bytes)
      : barrier_(reinterpret_cast<BarrierState*>(memory)), rank_(rank) {
    for (int r = 0; r < ranks; ++r) {
      buffers_.push_back(
          reinterpret_cast<float*>(memory + BufferBegin(r, most_bytes)));
    }
  }

  void Prepare(const Batch& batch) override {
    count_ = batch.bytes / sizeof(float);
    turn_ = std::stoul(batch.words.at(0));
  }

  void Barrier() override {
    const std::uint32_t generation = barrier_->generation.load();
    if (barrier_->arrived.fetch_add(1) + 1 == buffers_.size()) {
      barrier_->arrived.store(0);
      barrier_->generation.store(generation + 1);
      return;
    }
    for (int spins = 0; barrier_->generation.load() == generation; ++spins) {
      if (spins < kSpins) {
        __builtin_ia32_pause();
      } else {
        sched_yield();
      }
    }
  }

  void Once() override {
    Barrier();
    const auto rank = static_cast<std::size_t>(rank_);
    const std::size_t ranks = buffers_.size();
    if (turn_ == 0) {
      Sum(count_ * rank / ranks, count_ * (rank + 1) / ranks);
    } else {
      for (std::size_t at = rank * turn_; at < count_; at += ranks * turn_) {
        Sum(at, std::min(at + turn_, count_));
      }
    }
    Barrier();
  }

  std::uint64_t CountWrong() override {
    float* const mine = buffers_[static_cast<std::size_t>(rank_)];
    FillPattern(DType::kFloat32, rank_, count_, mine);
    Once();
    const std::uint64_t wrong = CountUnexpected(
        DType::kFloat32, {0, static_cast<int>(buffers_.size())}, count_, mine);
    Barrier();
    std::memset(mine, 0, count_ * sizeof(float));
    return wrong;
  }

 private:
  void Sum(std::size_t begin, std::size_t end) const {
    if (buffers_.size() == 2) {
      return SumTwo(buffers_[0] + begin, buffers_[1] + begin, end - begin);
    }
    constexpr std::size_t kTile = 2048;
    std::array<float, kTile> sums;
    for (std::size_t at = begin; at < end; at += kTile) {
      const std::size_t n = std::min(kTile, end - at);
      std::memcpy(sums.data(), buffers_[0] + at, n * sizeof(float));
      for (std::size_t r = 1; r < buffers_.size(); ++r) {
        const float* const theirs = buffers_[r] + at;
        for (std::size_t i = 0; i < n; ++i) sums[i] += theirs[i];
      }
      for (float* buffer : buffers_) {
        std::memcpy(buffer + at, sums.data(), n * sizeof(float));
      }
    }
  }

  BarrierState* const barrier_;
  const int rank_;
  std::vector<float*> buffers_;  // By rank.
  std::size_t count_ = 0;
  std::size_t turn_ = 0;
};

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) {
  using namespace gradientflow::benchmarks;  // NOLINT: a main().
  if (argc != 5) return 2;
  const int ranks = std::atoi(argv[3]);
  const std::size_t most_bytes = std::strtoull(argv[1], nullptr, 10);
  const std::size_t bytes = BufferBegin(ranks, most_bytes);
  const int file = std::atoi(argv[4]);
  // Every rank gives the file the same length.
  const bool sized = ftruncate(file, static_cast<off_t>(bytes)) == 0;
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (!sized || memory == MAP_FAILED) {
    std::perror("bare_shared: mmap");
    return 1;
  }
  BareShared worker(static_cast<std::byte*>(memory), std::atoi(argv[2]), ranks,
                    most_bytes);
  return ServeBatches(worker);
}
