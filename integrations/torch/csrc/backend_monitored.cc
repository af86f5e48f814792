#include "backend_monitored.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

namespace gft {
namespace {

constexpr char kMonitored[] = "gradientflow:monitored_barrier";

// Rank 0 answers only when its own time is up, so others wait longer for it.
constexpr std::chrono::milliseconds kForTheAnswer(5000);

// Users' tags are not negative as an int, so tags from here on are free.
constexpr uint32_t kTags = 1U << 31;
// A barrier that failed leaves messages behind. Each barrier has tags of its
// own, so that it does not take them for its own messages.
constexpr uint32_t kRounds = 1024;

std::string NamesOf(const at::Tensor& absent) {
  std::string names;
  int count = 0;
  for (int64_t rank = 0; rank < absent.numel(); ++rank) {
    if (absent[rank].item<uint8_t>() == 0) continue;
    names += (count++ == 0 ? "" : ", ") + std::to_string(rank);
  }
  return (count == 1 ? "Rank " : "Ranks ") + names;
}

}  // namespace

WorkPtr MonitoredBarrier::SendBytes(const at::Tensor& bytes, int peer,
                                    uint32_t tag) {
  Making work(operations_.Begin({c10d::OpType::BARRIER, kMonitored}, kNoTimeout,
                                {}, {}, false));
  const void* data = work->lent().Read(bytes);
  work->Send(data, bytes.nbytes(), peer, tag);
  return work.Commit();
}

WorkPtr MonitoredBarrier::ReceiveBytes(const at::Tensor& bytes, int peer,
                                       uint32_t tag) {
  Making work(operations_.Begin({c10d::OpType::BARRIER, kMonitored}, kNoTimeout,
                                {}, {}, false));
  void* data = work->lent().Write(bytes);
  work->Receive(data, bytes.nbytes(), peer, tag);
  return work.Commit();
}

void MonitoredBarrier::Run(const c10d::BarrierOptions& opts,
                           bool wait_all_ranks) {
  using Clock = std::chrono::steady_clock;
  using std::chrono::milliseconds;
  // A time-out of zero is valid: every rank that is not there yet is late. A
  // negative one means the group's.
  const milliseconds timeout = opts.timeout >= milliseconds(0)
                                   ? std::min(opts.timeout, kLongestTimeout)
                                   : operations_.timeout();
  const Clock::time_point deadline = Clock::now() + timeout;
  const uint32_t tag = kTags | (rounds_.fetch_add(1) % kRounds);
  // Throws if the job has ended.
  const auto came = [](const WorkPtr& work, Clock::time_point until) {
    auto& message = static_cast<Work&>(*work);
    if (message.WaitUntil(until)) return work->wait();
    message.GiveUp();
    return false;
  };
  at::Tensor absent = at::zeros({operations_.size()}, at::kByte);
  if (operations_.rank() != 0) {
    SendBytes(at::zeros({1}, at::kByte), 0, tag);
    const at::Tensor answer = at::empty({operations_.size()}, at::kByte);
    const auto until = deadline + std::min(timeout, kForTheAnswer);
    if (came(ReceiveBytes(answer, 0, tag), until)) {
      absent = answer;
    } else {
      absent[0] = 1;
    }
  } else {
    std::vector<WorkPtr> arrivals(1);
    for (int rank = 1; rank < operations_.size(); ++rank) {
      arrivals.push_back(ReceiveBytes(at::empty({1}, at::kByte), rank, tag));
    }
    for (int rank = 1; rank < operations_.size(); ++rank) {
      if (came(arrivals[rank], deadline)) continue;
      absent[rank] = 1;
      if (!wait_all_ranks) break;
    }
    std::vector<WorkPtr> answers;
    for (int rank = 1; rank < operations_.size(); ++rank) {
      if (!arrivals[rank]->isCompleted()) continue;
      answers.push_back(SendBytes(absent, rank, tag));
    }
    for (const WorkPtr& answer : answers) answer->wait();
  }
  if (!absent.any().item<bool>()) return;
  // The words are those of torch's own backend, since scripts look for them.
  std::string why = NamesOf(absent) + " failed to pass monitoredBarrier in " +
                    std::to_string(timeout.count()) + " ms";
  if (operations_.rank() != 0) {
    why = "Rank " + std::to_string(operations_.rank()) +
          " successfully reached monitoredBarrier, but received errors while "
          "waiting for send/recv from rank 0: " +
          why;
  } else if (timeout == milliseconds(0)) {
    why = "Rank 0 timed out in monitoredBarrier after 0 ms: " + why;
  }
  TORCH_CHECK_WITH(DistBackendError, false, "GradientFlow: ", why);
}

}  // namespace gft
