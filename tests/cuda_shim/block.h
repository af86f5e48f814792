#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/cuda_shim/fiber.h"
#include "tests/cuda_shim/include/cuda_runtime.h"

namespace gradientflow::cuda_shim {

// A small generator that gives the same numbers everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t Next();
  std::size_t Below(std::size_t n) { return Next() % n; }

 private:
  std::uint64_t state_;
};

// The order in which ready threads run.
enum class Order { kAscending, kDescending, kRandom };

// The threads that can run, each at most once. It allocates its memory before
// they run: memory that one thread allocates and another frees would look like
// a race.
class ReadyList {
 public:
  void Reset(std::size_t capacity);
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  void PushBack(unsigned thread) { At(size_++) = thread; }
  unsigned PopBack() { return At(--size_); }
  // Takes the thread at `place`, and moves the first one there.
  unsigned Take(std::size_t place);

 private:
  unsigned& At(std::size_t place) {
    return threads_[(first_ + place) % threads_.size()];
  }

  std::vector<unsigned> threads_;
  std::size_t first_ = 0;
  std::size_t size_ = 0;
};

// A launch, as messages describe it.
struct LaunchFacts {
  std::uint64_t number;
  const char* name;
  unsigned blocks;
  unsigned threads;
  std::size_t shared_bytes;
};

// Runs blocks, one at a time, on the thread that made it. A thread of a block
// runs until it waits, then another one runs.
class BlockRunner {
 public:
  void Run(const LaunchFacts& launch, const Kernel& kernel, unsigned block,
           std::uint64_t seed);

  // Called by threads of the block.
  void Barrier(const Site& site);
  std::uint64_t Exchange(WarpCall& call);
  void WarpBarrier(const Site& site, unsigned mask);
  void MayYield();
  // Prints what is wrong and where, and aborts.
  [[noreturn]] void Fail(const char* format, ...)
      __attribute__((format(printf, 2, 3)));

 private:
  enum class State { kReady, kAtBarrier, kInWarp, kDone };
  struct Thread {
    BlockRunner* runner;
    unsigned index;
    State state;
    Site site;       // Where the thread waits.
    WarpCall* call;  // In state kInWarp.
    Fiber fiber;
  };

  static void RunThread(void* thread);
  Thread& running();
  void Wait(State state, const Site& site);
  unsigned Next();
  void RunReady();
  // Opens the barrier if all threads wait at the same one, else aborts.
  void OpenBarrier();
  void Resolve(unsigned warp);
  [[noreturn]] void FailOfWaiting();
  void PoisonShared();
  void CheckShared();

  const LaunchFacts* launch_ = nullptr;
  const Kernel* kernel_ = nullptr;
  Random random_{0};
  Order order_ = Order::kAscending;
  std::vector<std::unique_ptr<Thread>> threads_;  // Kept between blocks.
  ReadyList ready_;
  std::vector<unsigned> arrived_;    // By warp: lanes in its exchange.
  std::vector<unsigned> exchanges_;  // By warp: so far.
  unsigned barriers_ = 0;            // So far.
  std::size_t done_ = 0;
  bool inside_ = false;  // A thread of the block runs.
};

// That of the calling thread; null outside of a launch.
extern thread_local BlockRunner* running_block;

// The most dynamic shared memory of a kernel (227 KiB), and the most that a
// launch may request without cudaFuncSetAttribute.
inline constexpr std::size_t kMostShared = 227 << 10;
inline constexpr std::size_t kUsualShared = 48 << 10;

}  // namespace gradientflow::cuda_shim
