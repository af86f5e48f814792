#include "gradientflow/communicator/opening.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <map>
#include <string>
#include <thread>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/table.h"
#include "gradientflow/nccl/nccl_api.h"

namespace gradientflow {
namespace {

constexpr std::size_t kFields = 6;
constexpr std::int64_t kMostTextBytes = 64 << 10;

struct Ending {
  bool done = false;
  Status status;
};

void OnDone(void* self, std::uint64_t, std::uint32_t, const Status& status) {
  auto& ending = *static_cast<Ending*>(self);
  ending.done = true;
  ending.status = status;
}

}  // namespace

// Drives the executor on this thread, because there is no progress thread yet.
Status RunAtOpening(const OpeningArgs& args, const CollectiveCall& call) {
  Ending ending;
  args.executor->Start(call, {&OnDone, &ending, 0});
  while (!ending.done) {
    if (args.Poll() || ending.done) continue;
    args.fabric->Tick(true);  // There is no driver yet that would tick.
    if (args.clock->Now() >= args.deadline) {
      std::string awaited;
      for (int rank : args.executor->AwaitedRanks()) {
        awaited += StrCat(awaited.empty() ? "" : ", ", rank);
      }
      args.fabric->Fail(Status(
          StatusCode::kDeadlineExceeded,
          StrCat("while opening the session, rank ", args.executor->rank(),
                 " waited in vain for ranks ", awaited)));
      continue;
    }
    args.fabric->Wait(std::chrono::milliseconds(1));
  }
  return ending.status;
}

void RunBeside(const OpeningArgs& args, const std::function<void()>& body) {
  std::atomic<bool> over{false};
  std::thread beside([&] {
    body();
    over.store(true, std::memory_order_release);
    args.fabric->Wake();
  });
  while (!over.load(std::memory_order_acquire) && args.fabric->status().ok()) {
    args.Poll();
    args.fabric->Tick(false);
    args.fabric->Wait(std::chrono::milliseconds(10));
  }
  beside.join();
}

// Makes two calls: the first gathers the lengths of the texts, the second the
// texts, each padded to the longest.
Result<std::vector<std::string>> GatherTexts(const OpeningArgs& args,
                                             const std::string& mine) {
  const auto size = static_cast<std::size_t>(args.executor->size());
  const auto length = static_cast<std::int64_t>(mine.size());
  std::vector<std::int64_t> lengths(size, length);
  CollectiveCall call;
  call.kind = CollectiveKind::kAllgather;
  call.algorithm = &collectives::kDoublingAllgather;
  call.input = &length;
  call.output = lengths.data();
  call.count = 1;
  call.dtype = call.wire = DType::kInt64;
  if (size > 1) GF_RETURN_IF_ERROR(RunAtOpening(args, call));
  for (std::size_t r = 0; r < size; ++r) {
    if (lengths[r] >= 0 && lengths[r] <= kMostTextBytes) continue;
    return Status(StatusCode::kDataLoss,
                  StrCat("rank ", r, " tells a text of ", lengths[r],
                         " bytes, expected at most ", kMostTextBytes));
  }
  const auto longest = static_cast<std::size_t>(
      *std::max_element(lengths.begin(), lengths.end()));
  std::string out = mine;
  out.resize(longest);
  std::string all(size * longest, '\0');
  call.input = out.data();
  call.output = all.data();
  call.count = longest;
  call.dtype = call.wire = DType::kInt8;
  if (size > 1) GF_RETURN_IF_ERROR(RunAtOpening(args, call));
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < size; ++r) {
    texts.push_back(
        all.substr(r * longest, static_cast<std::size_t>(lengths[r])));
  }
  texts[static_cast<std::size_t>(args.executor->rank())] = mine;
  return texts;
}

Result<std::vector<RankFacts>> ExchangeFacts(const OpeningArgs& args,
                                             const RankFacts& mine) {
  const auto size = static_cast<std::size_t>(args.executor->size());
  if (size == 1) return std::vector<RankFacts>{mine};
  const std::int64_t out[kFields] = {mine.on_device,    mine.device_id,
                                     mine.nccl_version, mine.settings,
                                     mine.shares,       mine.places};
  std::vector<std::int64_t> all(size * kFields);
  CollectiveCall call;
  call.kind = CollectiveKind::kAllgather;
  // Ranks learn only from these facts whether they share memory.
  call.algorithm = &collectives::kDoublingAllgather;
  call.input = out;
  call.output = all.data();
  call.count = kFields;
  call.dtype = call.wire = DType::kInt64;
  GF_RETURN_IF_ERROR(RunAtOpening(args, call));
  std::vector<RankFacts> ranks;
  for (std::size_t r = 0; r < size; ++r) {
    const std::int64_t* fields = all.data() + r * kFields;
    ranks.push_back(
        {fields[0], fields[1], fields[2], fields[3], fields[4], fields[5]});
    if (ranks[r].settings != ranks[0].settings) {
      return Status(StatusCode::kInvalidArgument,
                    StrCat("rank ", r, " has other settings than rank 0"));
    }
  }
  return ranks;
}

// All ranks see the same facts, and so they decide alike.
bool AllCanNccl(const std::vector<RankFacts>& ranks, std::string* why) {
  std::map<std::int64_t, std::size_t> owners;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const RankFacts& rank = ranks[r];
    if (rank.on_device == 0) {
      *why = StrCat("rank ", r, " has its gradients on the CPU");
      return false;
    }
    if (rank.nccl_version == 0) {
      *why = StrCat("rank ", r, " has no NCCL");
      return false;
    }
    // NCCL itself refuses to connect to another version.
    if (rank.nccl_version != ranks[0].nccl_version) {
      *why = StrCat("rank ", r, " has NCCL ",
                    NcclVersionText(static_cast<int>(rank.nccl_version)),
                    ", rank 0 has ",
                    NcclVersionText(static_cast<int>(ranks[0].nccl_version)));
      return false;
    }
    const auto [owner, first] = owners.emplace(rank.device_id, r);
    if (!first) {
      *why = StrCat("ranks ", owner->second, " and ", r, " share a GPU");
      return false;
    }
  }
  return true;
}

int RankThatDoesNotShare(const std::vector<RankFacts>& ranks) {
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].shares == 0) return static_cast<int>(r);
  }
  return -1;
}

int RankWithoutPlaces(const std::vector<RankFacts>& ranks) {
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].places == 0) return static_cast<int>(r);
  }
  return -1;
}

bool Mixed(const std::vector<RankFacts>& ranks) {
  return std::any_of(ranks.begin(), ranks.end(), [&](const RankFacts& rank) {
    return rank.on_device != ranks[0].on_device;
  });
}

}  // namespace gradientflow
