#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/mutex.h"
#include "gradientflow/base/str_cat.h"
#include "transports/rendezvous/directory.h"
#include "transports/rendezvous/frames.h"
#include "transports/rendezvous/meeting.h"
#include "transports/rendezvous/watch.h"
#include "transports/rendezvous/ways.h"

// What ranks do until they have met.
namespace gradientflow::rendezvous {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstNap(2);
constexpr milliseconds kLastNap(50);
// How often to look whether the job is over, and to make the file system look
// again. Each time costs a file server two changes.
constexpr milliseconds kLookEvery(500);

// What this process has seen to end, by rank, with rank 0's nonce. A rank that
// tries once more must not take it for the end of its next try.
class SeenEnds {
 public:
  // Returns false if it was there already.
  bool Add(int rank, const std::string& zero) GF_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return seen_.emplace(rank, zero).second;
  }

 private:
  Mutex mutex_;
  std::set<std::pair<int, std::string>> seen_ GF_GUARDED_BY(mutex_);
};

SeenEnds& SeenByThisProcess() {
  static SeenEnds* const seen = new SeenEnds;  // Never destroyed.
  return *seen;
}

void Nap(milliseconds nap) {
  ::poll(nullptr, 0, static_cast<int>(nap.count()));
}

}  // namespace

// ---- Ranks other than 0.

// Rank 0 writes its last word before it removes its join.0. So this looks at
// join.0 first, and then finds that word if join.0 is gone.
Meeting::Answer Meeting::FollowStep() {
  SeeJoin(0);
  const Status zero = CheckAlive(0);
  SeeVerdict();
  const bool met =
      !acked_.empty() && directory_.Read("go", FrameType::kGo) == acked_;
  // Rank 0 may already count on a process that has acknowledged its verdict. So
  // that process gives way to a later claimant only when rank 0 has, which then
  // writes another verdict.
  if (!met && (acked_.empty() || !verdict_is_ours_)) {
    GF_RETURN_IF_ERROR(CheckClaim());
  }
  if (verdict_ && verdict_->failed) {
    zero_ = verdict_->id;
    return DecodeStatus(verdict_->rest);
  }
  if (met) return std::move(cards_);
  if (verdict_ && verdict_->id != acked_) {
    auto cards = DecodeTexts(verdict_->rest, count());
    if (!cards) {
      return Status(StatusCode::kDataLoss, "rank 0 wrote cards that are none");
    }
    cards_ = *std::move(cards);
    acked_ = verdict_->id;
    GF_RETURN_IF_ERROR(
        directory_.Write(Named("ack", rank()), FrameType::kAck, acked_));
  }
  if (!zero.ok()) {
    TellLateRanks(zero);
    return zero;
  }
  const Clock::Time grace =
      verdict_ ? Clock::Time(kGrace) : Clock::Time(kGrace / 2);
  if (clock_.Now() < options_.deadline + grace) return std::nullopt;
  return Status(StatusCode::kDeadlineExceeded,
                StrCat("rendezvous in ", directory_.path(), ": rank ", rank(),
                       " joined, but had no word from rank 0 in time"));
}

// An earlier process with this rank may have overwritten the ack: it had read
// its own verdict, but was slow.
void Meeting::KeepAck() {
  if (acked_.empty() || !verdict_is_ours_ || !CheckClaim().ok()) return;
  const std::string name = Named("ack", rank());
  if (directory_.Read(name, FrameType::kAck) == acked_) return;
  static_cast<void>(directory_.Write(name, FrameType::kAck, acked_));
}

// All times are of the file system's clock: hosts' clocks may differ.
Status Meeting::CheckOver() const {
  if (rank() == 0) return Status();  // A job begins with rank 0.
  Directory::Version version;
  Frame frame;
  if (directory_.Read("over", &version, &frame) != Directory::Look::kRead ||
      frame.type != FrameType::kFailed) {
    return Status();
  }
  BodyReader reader(frame.body);
  const std::string zero = reader.Text();
  const std::string why = reader.Text();
  if (!reader.Complete()) return Status();
  const std::optional<Entry>& now = joined_.front().entry;
  if (now && now->nonce != zero) return Status();  // Another job has begun.
  const double before =
      Seconds(Clock::Time(mine_.changed_ns - version.changed_ns));
  if (before >= AgeOfThisProcess().value_or(0) || before >= patience_seconds_ ||
      !SeenByThisProcess().Add(rank(), zero)) {
    return Status();
  }
  const Status status = DecodeStatus(why);
  return Status(status.code(), StrCat("rendezvous in ", directory_.path(),
                                      ": the others gave up before rank ",
                                      rank(), " joined: ", status.message()));
}

// If it cannot be written, who joins late waits until its deadline. Once there
// is a verdict, everybody has joined.
void Meeting::TellLateRanks(const Status& why) {
  if (verdict_) return;
  std::string body;
  PutText(zero_, &body);
  PutText(EncodeStatus(why), &body);
  static_cast<void>(directory_.Write("over", FrameType::kFailed, body));
}

// ---- Rank 0.

// The ranks that have not joined; if there is a verdict, those that have not
// acknowledged it.
std::vector<int> Meeting::Awaited() {
  std::vector<int> awaited;
  for (int r = 0; r < size(); ++r) {
    bool there = HasJoined(r);
    if (there && r > 0 && verdict_ && joined(r).acked != verdict_->id) {
      const auto ack = directory_.Read(Named("ack", r), FrameType::kAck);
      joined(r).acked = ack.value_or("");
      Renew(clock_.Now());
      there = ack == verdict_->id;
    }
    if (!there) awaited.push_back(r);
  }
  return awaited;
}

Status Meeting::TooLate() {
  const std::vector<int> awaited = Awaited();
  std::string why = StrCat("rendezvous in ", directory_.path(), ": ranks ",
                           NameRanks(awaited, size()), " did not ",
                           verdict_ ? "confirm" : "join", " in time");
  for (const int r : awaited) {
    const std::optional<Entry>& entry = joined(r).entry;
    if (!entry) continue;
    why += StrCat("; rank ", r, "'s file is of ", entry->claimant, ", ",
                  entry->size == static_cast<std::uint32_t>(size())
                      ? "dead or of an earlier run"
                      : StrCat("which expects ", entry->size,
                               " ranks, rank 0 expects ", size()));
  }
  return Status(StatusCode::kDeadlineExceeded, why);
}

// If the verdict cannot be written, the others will report that rank 0 has
// ended or is silent.
Status Meeting::Fail(const Status& why) {
  TellLateRanks(why);
  verdict_ = Verdict{true, nonce_, {}, EncodeStatus(why)};
  for (const Joined& it : joined_) {
    verdict_->nonces.push_back(it.entry ? it.entry->nonce : "");
  }
  if (!WriteVerdict().ok()) return why;
  // Only rank 0 knows who is dead, and now the verdict says what follows.
  for (int r = 1; r < size(); ++r) {
    SeeJoin(r);
    if (joined(r).entry && !HasLeft(r) && IsGone(r)) RemoveFilesOf(r);
  }
  return why;
}

// Writes a verdict if all have joined, and others than before.
Status Meeting::Publish() {
  std::vector<std::string> nonces, cards;
  for (int r = 0; r < size(); ++r) {
    if (!HasJoined(r)) return Status();
    nonces.push_back(joined(r).entry->nonce);
  }
  if (verdict_ && nonces == verdict_->nonces) return Status();
  for (const Joined& it : joined_) cards.push_back(it.entry->card);
  const Result<std::string> id = MakeNonce();
  if (!id.ok()) return id.status();
  verdict_ = {false, id.value(), nonces, EncodeTexts(cards)};
  cards_ = std::move(cards);
  return WriteVerdict();
}

Meeting::Answer Meeting::LeadStep() {
  GF_RETURN_IF_ERROR(CheckClaim());
  for (int r = 1; r < size(); ++r) {
    SeeJoin(r);
    if (const Status alive = CheckAlive(r); !alive.ok()) return Fail(alive);
    Renew(clock_.Now());  // A slow server takes long for so many files.
  }
  if (const Status written = Publish(); !written.ok()) return Fail(written);
  if (verdict_ && Awaited().empty()) {
    const Status written = directory_.Write("go", FrameType::kGo, verdict_->id);
    if (!written.ok()) return Fail(written);
    return std::move(cards_);
  }
  if (clock_.Now() < options_.deadline) return std::nullopt;
  return Fail(TooLate());
}

Result<std::vector<std::string>> Meeting::Run(const std::string& my_card) {
  GF_RETURN_IF_ERROR(ShowCard(my_card));
  patience_seconds_ = Seconds(options_.deadline - clock_.Now());
  if (rank() == 0) directory_.Remove("over");
  Clock::Time look_at{};
  for (milliseconds nap = kFirstNap;; nap = std::min(nap * 2, kLastNap)) {
    Answer answer = rank() == 0 ? LeadStep() : FollowStep();
    const Clock::Time now = clock_.Now();
    if (!answer && now >= look_at) {
      look_at = now + kLookEvery;
      if (nap > kFirstNap) directory_.Refresh();
      if (Status over = CheckOver(); !over.ok()) answer = std::move(over);
      if (rank() != 0) KeepAck();
    }
    if (answer) {
      if (!answer->ok()) SeenByThisProcess().Add(rank(), zero_);
      return *std::move(answer);
    }
    Renew(now);
    Nap(nap);
  }
}

Result<std::vector<std::string>> MeetInFiles(const Call& call,
                                             const std::string& directory) {
  const Result<std::string> nonce = MakeNonce();
  if (!nonce.ok()) return nonce.status();
  Result<Directory> opened =
      Directory::Open(directory, call.options.secret, nonce.value());
  if (!opened.ok()) return opened.status();
  auto meeting = std::make_unique<Meeting>(
      call.options, call.clock, std::move(opened).value(), nonce.value());
  Result<std::vector<std::string>> cards = meeting->Run(call.my_card);
  if (cards.ok() && call.options.watch != nullptr) {
    *call.options.watch = MakeWatch(std::move(meeting));
  }
  return cards;
}

}  // namespace gradientflow::rendezvous
