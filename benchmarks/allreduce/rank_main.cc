// One rank of this library's allreduce: `rank MOST_BYTES [plain]`. Rank, size
// and rendezvous are in GRADIENTFLOW_* variables. The words of a batch are
// dtype, wire dtype and algorithm. Buffers are shared ones of the session, or
// with `plain` on the heap.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "benchmarks/allreduce/worker.h"
#include "benchmarks/rank.h"
#include "gradientflow/collectives/choose.h"

namespace gradientflow::benchmarks {
namespace {

class Ours final : public Worker {
 public:
  Status Open(std::size_t most_bytes, bool plain) {
    const auto options = Options::FromEnv(environ);
    if (!options.ok()) return options.status();
    auto session = OpenSession(options.value(), Json::object(), {});
    if (!session.ok()) return session.status();
    session_ = std::move(session).value();
    heap_.resize(plain ? most_bytes : 0);
    call_.output = heap_.data();
    if (plain) return Status();
    const Result<BufferView> view =
        session_->communicator().AllocateShared(most_bytes);
    if (!view.ok()) return view.status();
    call_.output = view.value().data;
    return Status();
  }

  Status Prepare(const Batch& batch) override {
    if (batch.words.size() != 3) {
      return Status(StatusCode::kInvalidArgument, "expected three words");
    }
    const auto dtype = ParseDType(batch.words[0]);
    const auto wire = ParseDType(batch.words[1]);
    const auto algorithm = ParseAllreduceAlgorithm(batch.words[2]);
    if (!algorithm.ok()) return algorithm.status();
    if (!dtype || !wire || !IsGradientType(*dtype)) {
      return Status(StatusCode::kInvalidArgument, "no such type");
    }
    call_.count = batch.bytes / SizeOf(*dtype);
    call_.dtype = *dtype;
    call_.wire = *wire;
    call_.algorithm = algorithm.value();
    return Status();
  }
  Status Once() override { return session_->communicator().Run(call_); }
  Status Barrier() override { return benchmarks::Barrier(*session_); }

  Result<std::uint64_t> CountWrong() override {
    FillPattern(call_.dtype, session_->rank(), call_.count, call_.output);
    GF_RETURN_IF_ERROR(Once());
    const std::uint64_t wrong = CountWrongSums(call_.dtype, session_->size(),
                                               call_.count, call_.output);
    GF_RETURN_IF_ERROR(Barrier());  // All ranks have read the result.
    std::memset(call_.output, 0, call_.count * SizeOf(call_.dtype));
    return wrong;
  }

 private:
  std::unique_ptr<GradientSession> session_;
  std::vector<std::byte> heap_;
  CollectiveCall call_;
};

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) {
  using namespace gradientflow;  // NOLINT: a main().
  benchmarks::Ours ours;
  const Status opened =
      argc < 2 ? Status(StatusCode::kInvalidArgument, "expected MOST_BYTES")
               : ours.Open(std::strtoull(argv[1], nullptr, 10), argc > 2);
  if (opened.ok()) return benchmarks::Serve(ours);
  std::fprintf(stderr, "allreduce: %s\n", opened.ToString().c_str());
  return 1;
}
