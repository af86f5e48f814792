#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>

#include "benchmarks/allreduce/pattern.h"
#include "benchmarks/allreduce/workers.h"
#include "gradientflow/base/clock.h"
#include "gradientflow/base/str_cat.h"

// Plain loops over mapped memory; no library code on the timed path.
namespace gradientflow::benchmarks {
namespace {

constexpr int kSpins = 2000;

struct alignas(64) BarrierState {
  std::atomic<std::uint32_t> arrived{0};
  alignas(64) std::atomic<std::uint32_t> generation{0};
};

// What is mapped by all.
struct Shared {
  BarrierState* barrier = nullptr;
  std::vector<float*> buffers;  // By rank.
};

[[gnu::always_inline]] inline void Sum(float* __restrict a, float* __restrict b,
                                       std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float sum = a[i] + b[i];
    a[i] = sum;
    b[i] = sum;
  }
}

void SumTwo(float* a, float* b, std::size_t count) { Sum(a, b, count); }

[[gnu::target("avx2")]] void SumTwoWide(float* a, float* b, std::size_t count) {
  Sum(a, b, count);
}

class BareShared final : public Worker {
 public:
  BareShared(const Shared& shared, int rank) : shared_(shared), rank_(rank) {}

  Result<Outcome> Run(const Batch& batch) override {
    if (batch.dtype != DType::kFloat32 || batch.wire != DType::kFloat32 ||
        batch.op != ReduceOp::kSum) {
      return Status(StatusCode::kUnimplemented,
                    "the bare loop sums float32 only");
    }
    Outcome outcome;
    if (batch.check) {
      const Pattern pattern(batch.dtype, batch.op, ranks());
      pattern.Fill(rank_, batch.count(), mine());
      Allreduce(batch.count());
      outcome.wrong = pattern.CountWrong(batch.count(), mine());
      Barrier();
      std::memset(mine(), 0, batch.bytes);
      return outcome;
    }
    for (int i = 0; i < batch.warmup; ++i) Allreduce(batch.count());
    Barrier();
    const SteadyClock clock;
    const Clock::Time begin = clock.Now();
    for (int i = 0; i < batch.iterations; ++i) Allreduce(batch.count());
    outcome.seconds = Seconds(clock.Now() - begin) / batch.iterations;
    return outcome;
  }

 private:
  int ranks() const { return static_cast<int>(shared_.buffers.size()); }
  float* mine() const {
    return shared_.buffers[static_cast<std::size_t>(rank_)];
  }

  void Barrier() {
    BarrierState& barrier = *shared_.barrier;
    const std::uint32_t generation = barrier.generation.load();
    if (barrier.arrived.fetch_add(1) + 1 ==
        static_cast<std::uint32_t>(ranks())) {
      barrier.arrived.store(0);
      barrier.generation.store(generation + 1);
      return;
    }
    for (int spins = 0; barrier.generation.load() == generation; ++spins) {
      if (spins < kSpins) {
        __builtin_ia32_pause();
      } else {
        sched_yield();
      }
    }
  }

  void Allreduce(std::size_t count) {
    Barrier();
    const auto parties = static_cast<std::size_t>(ranks());
    const auto rank = static_cast<std::size_t>(rank_);
    const std::size_t begin = count * rank / parties;
    const std::size_t end = count * (rank + 1) / parties;
    if (parties == 2) {
      const auto sum = __builtin_cpu_supports("avx2") ? SumTwoWide : SumTwo;
      sum(shared_.buffers[0] + begin, shared_.buffers[1] + begin, end - begin);
    } else {
      SumAll(begin, end);
    }
    Barrier();
  }

  void SumAll(std::size_t begin, std::size_t end) const {
    constexpr std::size_t kTile = 2048;
    std::array<float, kTile> sums;
    for (std::size_t at = begin; at < end; at += kTile) {
      const std::size_t n = std::min(kTile, end - at);
      std::memcpy(sums.data(), shared_.buffers[0] + at, n * sizeof(float));
      for (std::size_t r = 1; r < shared_.buffers.size(); ++r) {
        const float* const theirs = shared_.buffers[r] + at;
        for (std::size_t i = 0; i < n; ++i) sums[i] += theirs[i];
      }
      for (float* buffer : shared_.buffers) {
        std::memcpy(buffer + at, sums.data(), n * sizeof(float));
      }
    }
  }

  const Shared shared_;
  const int rank_;
};

Result<void*> Map(std::size_t bytes) {
  void* const memory =
      mmap(nullptr, std::max<std::size_t>(bytes, 1), PROT_READ | PROT_WRITE,
           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory != MAP_FAILED) return memory;
  return Status(StatusCode::kResourceExhausted,
                StrCat("cannot map ", bytes, " bytes: ", std::strerror(errno)));
}

}  // namespace

Result<std::unique_ptr<Group>> StartBareShared(const GroupSettings& settings) {
  Shared shared;
  const Result<void*> barrier = Map(sizeof(BarrierState));
  if (!barrier.ok()) return barrier.status();
  shared.barrier = new (barrier.value()) BarrierState;
  for (int rank = 0; rank < settings.ranks; ++rank) {
    const Result<void*> buffer = Map(settings.most_bytes);
    if (!buffer.ok()) return buffer.status();
    shared.buffers.push_back(static_cast<float*>(buffer.value()));
  }
  const std::string path = SocketPath(settings.folder, "bound");
  std::vector<Program> programs;
  for (int rank = 0; rank < settings.ranks; ++rank) {
    programs.push_back({[&shared, path, rank] {
                          return Serve(
                              path, [&]() -> Result<std::unique_ptr<Worker>> {
                                return std::unique_ptr<Worker>(
                                    std::make_unique<BareShared>(shared, rank));
                              });
                        },
                        {}});
  }
  auto group = Group::Start(settings.folder, "bound", settings.ranks, programs);
  munmap(barrier.value(), sizeof(BarrierState));
  for (float* buffer : shared.buffers) munmap(buffer, settings.most_bytes);
  return group;
}

}  // namespace gradientflow::benchmarks
