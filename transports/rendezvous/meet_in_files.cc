#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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
// How often to make the file system look again. Each time costs a file server
// two changes.
constexpr milliseconds kRefreshEvery(500);

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
  GF_RETURN_IF_ERROR(CheckClaim());
  SeeVerdict();
  if (verdict_ && verdict_->failed) return DecodeStatus(verdict_->rest);
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
  if (!acked_.empty() && directory_.Read("go", FrameType::kGo) == acked_) {
    return std::move(cards_);
  }
  GF_RETURN_IF_ERROR(zero);
  const Clock::Time grace =
      verdict_ ? Clock::Time(kGrace) : Clock::Time(kGrace / 2);
  if (clock_.Now() < options_.deadline + grace) return std::nullopt;
  return Status(StatusCode::kDeadlineExceeded,
                StrCat("rendezvous in ", directory_.path(), ": rank ", rank(),
                       " joined, but had no word from rank 0 in time"));
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
  Clock::Time refresh_at = clock_.Now() + kRefreshEvery;
  for (milliseconds nap = kFirstNap;; nap = std::min(nap * 2, kLastNap)) {
    Answer answer = rank() == 0 ? LeadStep() : FollowStep();
    if (answer) return *std::move(answer);
    const Clock::Time now = clock_.Now();
    Renew(now);
    if (now >= refresh_at) {
      refresh_at = now + kRefreshEvery;
      directory_.Refresh();
    }
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
