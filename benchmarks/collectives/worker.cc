#include "benchmarks/collectives/worker.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <sstream>
#include <stdexcept>

#include "benchmarks/lib/serve.h"
#include "gradientflow/base/clock.h"
#include "gradientflow/base/str_cat.h"
#include "kernels/kernels.h"

namespace gradientflow::benchmarks {
namespace {

constexpr std::size_t kPeriod = 1009;

Batch Parse(const std::string& line) {
  std::istringstream in(line);
  Batch batch;
  in >> batch.bytes >> batch.warmup >> batch.iterations >> batch.check >>
      batch.root;
  if (!in || batch.iterations < 1) {
    throw std::invalid_argument("not a batch: " + line);
  }
  for (std::string word; in >> word;) batch.words.push_back(word);
  return batch;
}

float Value(int rank, std::size_t i) {
  return static_cast<float>((i * i + static_cast<std::size_t>(13 * rank)) %
                            11) -
         5;
}

// The sum over ranks [first, end) of one period, in `dtype`.
std::vector<std::byte> Period(DType dtype, int first, int end) {
  std::vector<float> sums(kPeriod);
  for (int rank = first; rank < end; ++rank) {
    for (std::size_t i = 0; i < kPeriod; ++i) sums[i] += Value(rank, i);
  }
  std::vector<std::byte> bytes(kPeriod * SizeOf(dtype));
  kernels::CpuKernels().convert({sums.data(), DType::kFloat32, bytes.data(),
                                 dtype, nullptr, kPeriod, 1.0F, nullptr},
                                nullptr);
  return bytes;
}

// For all ranks to learn when to begin.
constexpr Clock::Time kRunUp = std::chrono::milliseconds(2);

// Waits as ranks do that have just ended another call: awake, but not in the
// way of ranks that share the core.
void YieldUntil(Clock::Time moment, const Clock& clock) {
  while (clock.Now() < moment) sched_yield();
}

// Seconds per call of this rank.
double Timed(Worker& worker, const Batch& batch) {
  for (int i = 0; i < batch.warmup; ++i) worker.Once();
  worker.Barrier();
  const SteadyClock clock;
  if (batch.root < 0) {
    const Clock::Time begin = clock.Now();
    for (int i = 0; i < batch.iterations; ++i) worker.Once();
    return Seconds(clock.Now() - begin) / batch.iterations;
  }
  double seconds = 0;
  for (int i = 0; i < batch.iterations; ++i) {
    const Clock::Time begin(worker.Latest((clock.Now() + kRunUp).count()));
    YieldUntil(begin, clock);
    worker.Once();
    seconds += Seconds(clock.Now() - begin);
  }
  return seconds / batch.iterations;
}

}  // namespace

std::int64_t Worker::Latest(std::int64_t) {
  throw std::logic_error("this program has no collectives with a root");
}

int ServeBatches(Worker& worker) {
  return Serve([&worker](const std::string& line) {
    const Batch batch = Parse(line);
    worker.Prepare(batch);
    if (batch.check)
      return StrCat("0 ", worker.CountWrong(), " ", worker.Note());
    return StrCat(Timed(worker, batch), " 0");
  });
}

void FillPattern(DType dtype, int rank, std::size_t count, void* data) {
  const std::vector<std::byte> period = Period(dtype, rank, rank + 1);
  const std::size_t bytes = count * SizeOf(dtype);
  auto* const at = static_cast<std::byte*>(data);
  for (std::size_t done = 0; done < bytes; done += period.size()) {
    std::memcpy(at + done, period.data(),
                std::min(period.size(), bytes - done));
  }
}

std::uint64_t CountUnexpected(DType dtype, const Expected& expected,
                              std::size_t count, const void* data) {
  const std::vector<std::byte> period =
      Period(dtype, expected.first, expected.end);
  const std::size_t element = SizeOf(dtype);
  const auto* const at = static_cast<const std::byte*>(data);
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::byte* const wanted =
        &period[(expected.offset + i) % kPeriod * element];
    wrong += std::memcmp(at + i * element, wanted, element) != 0 ? 1 : 0;
  }
  return wrong;
}

}  // namespace gradientflow::benchmarks
