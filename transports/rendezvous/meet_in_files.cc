#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "transports/rendezvous/directory.h"
#include "transports/rendezvous/frames.h"
#include "transports/rendezvous/ways.h"

// How ranks meet in the files of a shared directory:
//
//   join.r   written by each rank r: its nonce (fresh in each process) and card
//   verdict  written by rank 0: an id, and nonces and cards of all joins that
//            it has seen; written again whenever a join has changed
//   ack.r    written by each rank r that finds its nonce in the verdict: the id
//   go       written by rank 0 when all have acknowledged the latest id
//
// So nothing that an earlier run left behind can count. A rank that finds its
// join.r overwritten writes dup.r for rank 0, whose verdict then is an error.
namespace gradientflow::rendezvous {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kFirstNap(2);
constexpr milliseconds kLastNap(50);
// How long rank 0 lets the others see the end before it removes the files.
constexpr seconds kFarewell(2);

std::string Named(const char* what, int rank) {
  return StrCat(what, ".", rank);
}

void Nap(milliseconds nap) {
  ::poll(nullptr, 0, static_cast<int>(nap.count()));
}

std::string Claimant() {
  char host[256] = "";
  ::gethostname(host, sizeof(host) - 1);
  return StrCat("process ", ::getpid(), " on ", host);
}

struct Verdict {
  bool failed = false;
  std::string id;
  std::vector<std::string> nonces;  // By rank; empty if none was seen.
  std::string rest;                 // The cards, or the error.
};

class Meeting {
 public:
  Meeting(const Call& call, Directory directory, std::string nonce)
      : call_(call),
        directory_(std::move(directory)),
        nonce_(std::move(nonce)) {}
  // Removes the files of this process.
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  Result<std::vector<std::string>> Run();

 private:
  using Answer = std::optional<Result<std::vector<std::string>>>;

  int rank() const { return call_.options.rank; }
  int size() const { return call_.options.size; }
  std::size_t count() const { return static_cast<std::size_t>(size()); }

  std::optional<Join> ReadJoin(int rank) const;
  std::optional<Verdict> ReadVerdict() const;
  Status WriteVerdict(const Verdict& verdict);
  // Returns an error if another process has claimed this rank, too.
  Status CheckClaim();

  Answer FollowStep();
  Answer LeadStep();
  void SeeJoins();
  Status CheckDuplicates() const;
  std::vector<int> Awaited() const;
  Status TooLate() const;
  Answer Fail(const Status& why);
  // Rank 0, after its verdict: waits for the others and removes the files.
  void Finish();

  const Call& call_;
  const Directory directory_;
  const std::string nonce_;
  std::string acked_;  // Id of the verdict.
  std::vector<std::string> cards_;

  // For rank 0 only.
  std::vector<std::optional<Join>> joins_;
  Verdict published_;
};

Meeting::~Meeting() {
  const std::optional<Join> mine = ReadJoin(rank());
  if (mine && mine->token == nonce_) directory_.Remove(Named("join", rank()));
  const auto ack = directory_.Read(Named("ack", rank()), FrameType::kAck);
  if (ack && !acked_.empty() && *ack == acked_) {
    directory_.Remove(Named("ack", rank()));
  }
}

std::optional<Join> Meeting::ReadJoin(int rank) const {
  const auto body = directory_.Read(Named("join", rank), FrameType::kJoin);
  if (!body) return std::nullopt;
  std::optional<Join> join = DecodeJoin(*body);
  if (!join || join->rank != static_cast<std::uint32_t>(rank)) {
    return std::nullopt;
  }
  return join;
}

std::optional<Verdict> Meeting::ReadVerdict() const {
  const std::optional<Frame> frame = directory_.Read("verdict");
  if (!frame ||
      (frame->type != FrameType::kCards && frame->type != FrameType::kFailed)) {
    return std::nullopt;
  }
  BodyReader reader(frame->body);
  Verdict verdict;
  verdict.failed = frame->type == FrameType::kFailed;
  verdict.id = reader.Text();
  auto nonces = DecodeTexts(reader.Text(), count());
  verdict.rest = reader.Text();
  if (!reader.Complete() || !nonces) return std::nullopt;
  verdict.nonces = *std::move(nonces);
  if (verdict.nonces[static_cast<std::size_t>(rank())] != nonce_) {
    return std::nullopt;
  }
  return verdict;
}

Status Meeting::WriteVerdict(const Verdict& verdict) {
  std::string body;
  PutText(verdict.id, &body);
  PutText(EncodeTexts(verdict.nonces), &body);
  PutText(verdict.rest, &body);
  return directory_.Write(
      "verdict", verdict.failed ? FrameType::kFailed : FrameType::kCards, body);
}

Status Meeting::CheckClaim() {
  const std::optional<Join> join = ReadJoin(rank());
  if (!join || join->token == nonce_) return Status();
  const Status why(
      StatusCode::kInvalidArgument,
      StrCat("rendezvous in ", directory_.path(), ": rank ", rank(),
             " is claimed twice: by ", Claimant(), " and by ", join->claimant));
  std::string body;
  PutText(join->token, &body);
  PutText(EncodeStatus(why), &body);
  const Status written =
      directory_.Write(Named("dup", rank()), FrameType::kFailed, body);
  return written.ok() ? why : written;
}

// ---- Ranks other than 0.

Meeting::Answer Meeting::FollowStep() {
  if (const Status claim = CheckClaim(); !claim.ok()) return claim;
  const std::optional<Verdict> verdict = ReadVerdict();
  if (verdict && verdict->failed) return DecodeStatus(verdict->rest);
  if (verdict && verdict->id != acked_) {
    auto cards = DecodeTexts(verdict->rest, count());
    if (!cards) return std::nullopt;
    cards_ = *std::move(cards);
    acked_ = verdict->id;
    const Status written =
        directory_.Write(Named("ack", rank()), FrameType::kAck, acked_);
    if (!written.ok()) return written;
  }
  const auto go = directory_.Read("go", FrameType::kGo);
  if (go && !acked_.empty() && *go == acked_) return std::move(cards_);
  const Clock::Time grace = verdict || !acked_.empty()
                                ? Clock::Time(kGrace)
                                : Clock::Time(kGrace / 2);
  if (call_.clock.Now() < call_.options.deadline + grace) return std::nullopt;
  return Status(StatusCode::kDeadlineExceeded,
                StrCat("rendezvous in ", directory_.path(), ": rank ", rank(),
                       " joined, but had no word from rank 0 in time"));
}

// ---- Rank 0.

void Meeting::SeeJoins() {
  for (int r = 0; r < size(); ++r) {
    joins_[static_cast<std::size_t>(r)] = ReadJoin(r);
  }
}

Status Meeting::CheckDuplicates() const {
  for (int r = 0; r < size(); ++r) {
    const std::optional<Join>& join = joins_[static_cast<std::size_t>(r)];
    const auto dup = directory_.Read(Named("dup", r), FrameType::kFailed);
    if (!dup || !join) continue;
    BodyReader reader(*dup);
    // A dup.r that names another process is of an earlier run.
    if (reader.Text() == join->token) return DecodeStatus(reader.Text());
  }
  return Status();
}

std::vector<int> Meeting::Awaited() const {
  std::vector<int> awaited;
  for (int r = 0; r < size(); ++r) {
    const std::optional<Join>& join = joins_[static_cast<std::size_t>(r)];
    bool there = join && join->size == static_cast<std::uint32_t>(size());
    if (there && r > 0 && !published_.id.empty()) {
      there =
          directory_.Read(Named("ack", r), FrameType::kAck) == published_.id;
    }
    if (!there) awaited.push_back(r);
  }
  return awaited;
}

Status Meeting::TooLate() const {
  const std::vector<int> awaited = Awaited();
  std::string why =
      StrCat("rendezvous in ", directory_.path(), ": ranks ",
             NameRanks(awaited, size()), " did not ",
             published_.id.empty() ? "join" : "confirm", " in time");
  for (const int r : awaited) {
    const std::optional<Join>& join = joins_[static_cast<std::size_t>(r)];
    if (!join) continue;
    why += StrCat("; rank ", r, "'s file is of ", join->claimant, ", ",
                  join->size == static_cast<std::uint32_t>(size())
                      ? "dead or of an earlier run"
                      : StrCat("which expects ", join->size,
                               " ranks, rank 0 expects ", size()));
  }
  return Status(StatusCode::kDeadlineExceeded, why);
}

Meeting::Answer Meeting::Fail(const Status& why) {
  published_.failed = true;
  published_.id = nonce_;
  published_.nonces.clear();
  for (const std::optional<Join>& join : joins_) {
    published_.nonces.push_back(join ? join->token : "");
  }
  published_.rest = EncodeStatus(why);
  // If this cannot be written, the others will report that rank 0 is silent.
  if (WriteVerdict(published_).ok()) Finish();
  return why;
}

Meeting::Answer Meeting::LeadStep() {
  SeeJoins();
  if (const Status claim = CheckClaim(); !claim.ok()) return Fail(claim);
  if (const Status twice = CheckDuplicates(); !twice.ok()) return Fail(twice);
  std::vector<std::string> nonces, cards;
  for (const std::optional<Join>& join : joins_) {
    if (!join || join->size != static_cast<std::uint32_t>(size())) break;
    nonces.push_back(join->token);
    cards.push_back(join->card);
  }
  if (nonces.size() == count() && nonces != published_.nonces) {
    const Result<std::string> id = MakeNonce();
    if (!id.ok()) return Fail(id.status());
    published_ = {false, id.value(), nonces, EncodeTexts(cards)};
    cards_ = std::move(cards);
    const Status written = WriteVerdict(published_);
    if (!written.ok()) return written;
  }
  if (!published_.id.empty() && Awaited().empty()) {
    const Status written =
        directory_.Write("go", FrameType::kGo, published_.id);
    if (!written.ok()) return Fail(written);
    Finish();
    return std::move(cards_);
  }
  if (call_.clock.Now() < call_.options.deadline) return std::nullopt;
  return Fail(TooLate());
}

void Meeting::Finish() {
  const Clock::Time give_up = call_.clock.Now() + kFarewell;
  std::vector<int> there;
  for (int r = 1; r < size(); ++r) {
    if (!published_.nonces[static_cast<std::size_t>(r)].empty()) {
      there.push_back(r);
    }
  }
  const auto is_there = [&](int r) {
    const std::optional<Join> join = ReadJoin(r);
    return join &&
           join->token == published_.nonces[static_cast<std::size_t>(r)];
  };
  for (;;) {
    there.erase(std::remove_if(there.begin(), there.end(),
                               [&](int r) { return !is_there(r); }),
                there.end());
    if (there.empty() || call_.clock.Now() >= give_up) break;
    Nap(kFirstNap);
  }
  // These processes, of this run or of an earlier one, ended without removing
  // their files.
  for (const int r : there) {
    if (is_there(r)) directory_.Remove(Named("join", r));
    directory_.Remove(Named("ack", r));
  }
  for (int r = 0; r < size(); ++r) directory_.Remove(Named("dup", r));
  directory_.Remove("go");
  directory_.SweepUnfinished("verdict");
  directory_.Remove("verdict");
}

Result<std::vector<std::string>> Meeting::Run() {
  joins_.resize(count());
  Join join;
  join.rank = static_cast<std::uint32_t>(rank());
  join.size = static_cast<std::uint32_t>(size());
  join.token = nonce_;
  join.claimant = Claimant();
  join.card = call_.my_card;
  GF_RETURN_IF_ERROR(directory_.Write(Named("join", rank()), FrameType::kJoin,
                                      EncodeJoin(join)));
  for (milliseconds nap = kFirstNap;; nap = std::min(nap * 2, kLastNap)) {
    Answer answer = rank() == 0 ? LeadStep() : FollowStep();
    if (answer) return *std::move(answer);
    Nap(nap);
  }
}

}  // namespace

Result<std::vector<std::string>> MeetInFiles(const Call& call,
                                             const std::string& directory) {
  const Result<std::string> nonce = MakeNonce();
  if (!nonce.ok()) return nonce.status();
  Result<Directory> opened =
      Directory::Open(directory, call.options.job_token, nonce.value());
  if (!opened.ok()) return opened.status();
  return Meeting(call, std::move(opened).value(), nonce.value()).Run();
}

}  // namespace gradientflow::rendezvous
