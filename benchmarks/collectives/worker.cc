#include "benchmarks/collectives/worker.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <sstream>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/str_cat.h"
#include "kernels/kernels.h"

namespace gradientflow::benchmarks {
namespace {

constexpr std::size_t kPeriod = 1009;

Result<Batch> Parse(const std::string& line) {
  std::istringstream in(line);
  Batch batch;
  in >> batch.bytes >> batch.warmup >> batch.iterations >> batch.check;
  if (!in || batch.iterations < 1) {
    return Status(StatusCode::kInvalidArgument, "not a batch: " + line);
  }
  for (std::string word; in >> word;) batch.words.push_back(word);
  return batch;
}

Result<std::string> Run(Worker& worker, const std::string& line) {
  const auto batch = Parse(line);
  if (!batch.ok()) return batch.status();
  GF_RETURN_IF_ERROR(worker.Prepare(batch.value()));
  if (batch.value().check) {
    const auto wrong = worker.CountWrong();
    if (!wrong.ok()) return wrong.status();
    return StrCat("ok 0 ", wrong.value(), " ", worker.Note());
  }
  for (int i = 0; i < batch.value().warmup; ++i) {
    GF_RETURN_IF_ERROR(worker.Once());
  }
  GF_RETURN_IF_ERROR(worker.Barrier());
  const SteadyClock clock;
  const Clock::Time begin = clock.Now();
  for (int i = 0; i < batch.value().iterations; ++i) {
    GF_RETURN_IF_ERROR(worker.Once());
  }
  const double seconds = Seconds(clock.Now() - begin);
  return StrCat("ok ", seconds / batch.value().iterations, " 0");
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

}  // namespace

int Serve(Worker& worker) {
  std::puts("ready");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    const auto answer = Run(worker, line);
    std::string text =
        answer.ok() ? answer.value() : "error " + answer.status().ToString();
    std::replace(text.begin(), text.end(), '\n', ' ');
    std::puts(text.c_str());
    std::fflush(stdout);
  }
  return 0;
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
