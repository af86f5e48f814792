#include "transports/tcp/set_up.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "transports/tcp/interfaces.h"
#include "transports/tcp/lane_maker.h"
#include "transports/tcp/last_word.h"

namespace gradientflow {
namespace {

using std::chrono::milliseconds;

// The longest wait, so that a clock that does not follow the kernel's is looked
// at, too.
constexpr milliseconds kLongestWait(100);
// How often to look after peers while others are awaited. A higher rank has
// that long to connect.
constexpr milliseconds kLookEvery(200);
// Higher ranks that are dialled at the same time.
constexpr int kMostLate = 16;
// How long all addresses of a peer on another host may refuse if others are
// late as well, or if the network refuses for the peer: it may be behind a
// firewall, and then has to connect within this time.
constexpr std::chrono::seconds kRefusedByAnybody(5);
// A watch has reported every death by then. Other signs of a death count only
// after that, because a rank that ends since it has learned of a death is not
// to blame.
constexpr std::chrono::seconds kWatchKnows(2);

// The state of one Connect(). In each pair the higher rank dials at once, and
// the lower one when it has waited for kLookEvery: the higher one may have
// ended, which then refuses, or what is between them may let connections
// through in one direction only. A peer whose lanes are complete is still
// looked at, since it may fail meanwhile, and say why.
class SetUp final : private LaneMaker::Sink {
 public:
  SetUp(const SetUpArgs& args, std::vector<InterfaceAddress> interfaces)
      : job_(args.job),
        address_(args.address),
        io_(args.io),
        maker_(ForMaker(args, std::move(interfaces))),
        kept_(static_cast<std::size_t>(job_.size)),
        heard_(static_cast<std::size_t>(job_.size)) {}

  Result<std::vector<std::unique_ptr<Link>>> Run();

 private:
  LaneMaker::Args ForMaker(const SetUpArgs& args,
                           std::vector<InterfaceAddress> interfaces);
  // Returns whether this rank is to be linked to `rank`.
  bool IsPeer(int rank) const {
    return rank != job_.rank && !AddressOf(rank).empty();
  }
  const std::string& AddressOf(int rank) const {
    return job_.addresses[static_cast<std::size_t>(rank)];
  }
  bool IsConnected(int peer) const {
    return !kept_[static_cast<std::size_t>(peer)].empty();
  }
  Status OnLanes(int peer, std::vector<Socket> lanes) override;
  Status Prepare();
  void DialTheLate();
  Status CheckWatched();
  Status Look(Clock::Time now);
  bool HasEnded(const PeerRefusal& refusal, bool all_others_came) const;
  Status CheckRefusals() const;
  Status Connect();
  Status Round(Clock::Time now);
  Status Missing() const;
  Result<std::vector<std::unique_ptr<Link>>> MakeLinks();

  const ConnectArgs& job_;
  const std::string address_;  // This rank's.
  const std::shared_ptr<IoThreads> io_;
  LaneMaker maker_;
  std::vector<std::vector<Socket>> kept_;  // By rank, then by lane.
  int awaited_ = 0;                        // Peers without lanes.
  // Since when all ranks have had their turn to connect, and no more came.
  Clock::Time settled_at_{};
  Clock::Time look_at_{};
  std::vector<bool> heard_;  // By rank: it has all its lanes.
  // The error that a peer is gone. It counts unless the watch knows better by
  // suspect_until_.
  Status suspicion_;
  Clock::Time suspect_until_{};
};

LaneMaker::Args SetUp::ForMaker(const SetUpArgs& args,
                                std::vector<InterfaceAddress> interfaces) {
  LaneMaker::Args maker;
  maker.options = args.options;
  maker.rank = args.job.rank;
  maker.size = args.job.size;
  maker.secret = args.job.secret;
  maker.clock = args.job.clock;
  maker.rails = args.rails;
  maker.listeners = &args.listeners;
  maker.interfaces = std::move(interfaces);
  maker.sink = this;
  return maker;
}

Status SetUp::Prepare() {
  look_at_ = settled_at_ = job_.clock->Now() + kLookEvery;
  for (int peer = 0; peer < job_.size; ++peer) {
    if (!IsPeer(peer)) continue;
    ++awaited_;
    GF_RETURN_IF_ERROR(maker_.Know(peer, AddressOf(peer)));
    if (peer > job_.rank) continue;
    if (!maker_.HasWays(peer)) {
      return Status(StatusCode::kInvalidArgument,
                    StrCat("rank ", peer,
                           ": expected an address of the IP version of rank ",
                           job_.rank, ", seen ", AddressOf(peer)));
    }
    maker_.Dial(peer);
  }
  return Status();
}

Status SetUp::OnLanes(int peer, std::vector<Socket> lanes) {
  kept_[static_cast<std::size_t>(peer)] = std::move(lanes);
  --awaited_;
  settled_at_ = std::max(settled_at_, job_.clock->Now());
  return Status();
}

// Those that have connected meanwhile make room for others.
void SetUp::DialTheLate() {
  int dialled = 0;
  for (int peer = job_.rank + 1; peer < job_.size && dialled < kMostLate;
       ++peer) {
    if (!IsPeer(peer) || IsConnected(peer) || !maker_.HasWays(peer)) continue;
    maker_.DialIfPossible(peer);
    ++dialled;
  }
}

Status SetUp::CheckWatched() {
  for (int peer = 0; peer < job_.size; ++peer) {
    const auto at = static_cast<std::size_t>(peer);
    if (heard_[at] || !IsConnected(peer)) continue;
    bool wordless = false;
    const std::optional<Status> word = LastWord(kept_[at][0], &wordless);
    heard_[at] = !word.has_value();
    if (!word || word->ok()) continue;
    if (word->code() != StatusCode::kUnavailable) return *word;
    const Status failed(
        word->code(),
        StrCat("rank ", peer, " (", AddressOf(peer),
               ") failed while ranks connected: ", word->message()));
    if (!wordless || !job_.look) return failed;
    if (suspicion_.ok()) {
      suspicion_ = failed;
      suspect_until_ = job_.clock->Now() + kWatchKnows;
    }
  }
  return Status();
}

// Looks after those that are connected, and asks the watch. A rank that heard
// of a death before it had all lanes of a peer leaves that one without a word.
Status SetUp::Look(Clock::Time now) {
  GF_RETURN_IF_ERROR(CheckWatched());
  if (job_.look) GF_RETURN_IF_ERROR(job_.look());
  return now < suspect_until_ ? Status() : suspicion_;
}

// A peer that runs behind a firewall connects soon after the others, since all
// begin to connect when they have met.
bool SetUp::HasEnded(const PeerRefusal& refusal, bool all_others_came) const {
  const Clock::Time too_long =
      job_.look ? Clock::Time(kWatchKnows) : Clock::Time(kRefusedTooLong);
  if (refusal.certain) return refusal.Lasted() >= too_long;
  if (all_others_came && !refusal.on_the_way &&
      refusal.Lasted(settled_at_) >= too_long) {
    return true;
  }
  return refusal.Lasted() >= kRefusedByAnybody;
}

Status SetUp::CheckRefusals() const {
  const std::vector<PeerRefusal> refusals = maker_.Refusals();
  const bool all_others_came =
      refusals.size() == static_cast<std::size_t>(awaited_);
  for (const PeerRefusal& refusal : refusals) {
    if (!HasEnded(refusal, all_others_came)) continue;
    std::string or_else;
    if (!refusal.certain) {
      or_else = StrCat(", or cannot be reached by rank ", job_.rank, " (",
                       address_, "), which it has not reached either");
    }
    return Status(StatusCode::kUnavailable,
                  StrCat("rank ", refusal.peer, " (", AddressOf(refusal.peer),
                         ") ended while ranks connected", or_else, ": ",
                         refusal.trouble));
  }
  return Status();
}

// Waits for the next event and handles what is ready.
Status SetUp::Round(Clock::Time now) {
  if (now >= look_at_) {
    look_at_ = now + kLookEvery;
    DialTheLate();
    GF_RETURN_IF_ERROR(Look(now));
  }
  const Clock::Time until =
      maker_.DueBy(std::min(job_.deadline, now + kLongestWait));
  const auto patience =
      std::chrono::ceil<milliseconds>(std::max(until, now) - now);
  const Result<bool> moved =
      maker_.Round(now, static_cast<int>(patience.count()));
  if (!moved.ok()) return moved.status();
  // The sender of anything may be the peer that refuses.
  return moved.value() ? Status() : CheckRefusals();
}

Status SetUp::Missing() const {
  std::string missing;
  for (int peer = 0; peer < job_.size; ++peer) {
    if (!IsPeer(peer) || IsConnected(peer)) continue;
    std::string trouble = maker_.TroubleWith(peer);
    if (!maker_.IsDialling(peer)) trouble = "it did not connect";
    missing +=
        StrCat(missing.empty() ? "" : "; ", "rank ", peer, " (",
               AddressOf(peer), ")", trouble.empty() ? "" : ": ", trouble);
  }
  return Status(
      StatusCode::kDeadlineExceeded,
      StrCat("rank ", job_.rank, " (", address_,
             ") has no TCP connection in time with ", missing,
             "; none came in from there either", maker_.TroubleAtTheDoor()));
}

// Makes the links to all peers whose lanes are complete.
Result<std::vector<std::unique_ptr<Link>>> SetUp::MakeLinks() {
  std::vector<std::unique_ptr<Link>> links(kept_.size());
  for (std::size_t peer = 0; peer < kept_.size(); ++peer) {
    if (kept_[peer].empty()) continue;
    auto made = LinkOnLanes(static_cast<int>(peer),
                            std::exchange(kept_[peer], {}), job_, io_);
    if (!made.ok()) return made.status();
    links[peer] = std::move(made).value();
  }
  return links;
}

Status SetUp::Connect() {
  GF_RETURN_IF_ERROR(Prepare());
  while (awaited_ > 0) {
    const Clock::Time now = job_.clock->Now();
    if (now >= job_.deadline) return Missing();
    GF_RETURN_IF_ERROR(Round(now));
  }
  return Status();
}

Result<std::vector<std::unique_ptr<Link>>> SetUp::Run() {
  const Status connected = Connect();
  if (connected.ok()) return MakeLinks();
  if (job_.links_of_failure != nullptr) {
    auto links = MakeLinks();
    if (links.ok()) *job_.links_of_failure = std::move(links).value();
  }
  return connected;
}

}  // namespace

Result<std::vector<std::unique_ptr<Link>>> SetUpLanes(const SetUpArgs& args) {
  auto interfaces = ListInterfaces();
  if (!interfaces.ok()) return interfaces.status();
  return SetUp(args, std::move(interfaces).value()).Run();
}

}  // namespace gradientflow
