#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "transports/rendezvous/directory.h"
#include "transports/rendezvous/frames.h"
#include "transports/rendezvous/process.h"
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
// join.r overwritten leaves: of two processes with one rank, the later counts.
//
// Ranks of one host see each other's processes. The others renew their join.r
// all the time, and one that does so no more has ended.
//
// A rank that has read the end removes its own files, and the last one the
// common ones. So they stay for a rank that looks late, as it must where a file
// server's client keeps what it has seen for a while; and nobody waits for it
// here.
namespace gradientflow::rendezvous {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstNap(2);
constexpr milliseconds kLastNap(50);
// How often to make the file system look again. Each time costs a file server
// two changes.
constexpr milliseconds kRefreshEvery(500);
// How often a rank renews its join.r, and how long it may fail to do so: a file
// server may stall it. Where renewals take longer than they should, others are
// given more time, too.
constexpr milliseconds kRenewEvery(200);
constexpr milliseconds kSilence(2000);
constexpr int kMissedRenewals = 4;
// The most that counts between two looks, since this process may have been
// stopped meanwhile, or the file server: then nobody could be heard.
constexpr milliseconds kMostBetweenLooks(100);

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

// What a join.r says.
struct Entry {
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
  std::string nonce;
  std::string claimant;  // For people.
  std::string process;   // For HasEnded().
  std::string card;
};

std::string EncodeEntry(const Entry& entry) {
  std::string body;
  PutNumber(entry.rank, &body);
  PutNumber(entry.size, &body);
  for (const std::string* text :
       {&entry.nonce, &entry.claimant, &entry.process, &entry.card}) {
    PutText(*text, &body);
  }
  return body;
}

std::optional<Entry> DecodeEntry(std::string_view body) {
  BodyReader reader(body);
  Entry entry;
  entry.rank = reader.Number();
  entry.size = reader.Number();
  for (std::string* text :
       {&entry.nonce, &entry.claimant, &entry.process, &entry.card}) {
    *text = reader.Text();
  }
  if (!reader.Complete()) return std::nullopt;
  return entry;
}

// A rank's join.r as it was when it was last read.
struct Joined {
  Directory::Version version;
  std::optional<Entry> entry;
  bool ended = false;  // As its host sees, or by its silence.
  std::string alive;   // The nonce of the process that was last seen to run.
  int renewals = 0;    // That were seen of this entry.
  Clock::Time looked_at{};
  Clock::Time silence{};  // Since the file was renewed, as far as it counts.
  std::string acked;      // The id of the verdict.
};

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
  // Removes the files that nobody needs any more.
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  Result<std::vector<std::string>> Run();

 private:
  using Answer = std::optional<Result<std::vector<std::string>>>;

  int rank() const { return call_.options.rank; }
  int size() const { return call_.options.size; }
  std::size_t count() const { return static_cast<std::size_t>(size()); }
  Joined& joined(int rank) { return joined_[static_cast<std::size_t>(rank)]; }

  // Reads join.r if it has changed, and finds out whether its writer runs.
  void SeeJoin(int rank);
  // For a writer that cannot be seen from here.
  bool IsSilent(Joined& it, const std::string& before, bool renewed);
  // Renews this rank's join.r, if somebody needs that.
  void Renew(Clock::Time now);
  void SeeVerdict();
  Status WriteVerdict();
  // Returns an error if another process has claimed this rank later. It may
  // have left already, and taken its file along.
  Status CheckClaim();
  // Returns an error if the process that wrote join.r during this meeting has
  // ended.
  Status CheckAlive(int rank);
  bool HasJoined(int rank);
  bool IsLast();

  Answer FollowStep();
  Answer LeadStep();
  Status Publish();
  std::vector<int> Awaited();
  Status TooLate();
  Status Fail(const Status& why);

  const Call& call_;
  Directory directory_;
  const std::string nonce_;
  const std::string process_ = ThisProcess();
  Directory::Version mine_;  // Of this rank's join.
  std::vector<Joined> joined_;
  // The latest: the one that rank 0 has written, or that another rank has read.
  std::optional<Verdict> verdict_;
  Directory::Version verdict_version_;
  std::string acked_;  // Id of the verdict.
  std::vector<std::string> cards_;
  Clock::Time renew_at_{};
  Clock::Time longest_silence_{};  // After which a rank was heard again.
};

// The verdict and what goes with it is removed by the last that it concerns.
// Two that leave at the same time may both be the last.
Meeting::~Meeting() {
  SeeJoin(rank());
  const std::optional<Entry>& mine = joined(rank()).entry;
  if (mine && mine->nonce == nonce_) directory_.Remove(Named("join", rank()));
  if (!acked_.empty() &&
      directory_.Read(Named("ack", rank()), FrameType::kAck) == acked_) {
    directory_.Remove(Named("ack", rank()));
  }
  if (!verdict_ || !IsLast()) return;
  for (int r = 0; r < size(); ++r) {
    const auto ack = directory_.Read(Named("ack", r), FrameType::kAck);
    if (ack == verdict_->id) directory_.Remove(Named("ack", r));
  }
  if (directory_.Read("go", FrameType::kGo) == verdict_->id) {
    directory_.Remove("go");
  }
  const Directory::Version known = verdict_version_;
  SeeVerdict();
  if (known != verdict_version_) return;  // Of another run.
  directory_.SweepUnfinished("verdict");
  directory_.Remove("verdict");
}

// Returns whether no other process has yet to read the verdict. Removes the
// joins of those that died before they could.
bool Meeting::IsLast() {
  for (int r = 0; r < size(); ++r) {
    SeeJoin(r);
    const std::optional<Entry>& entry = joined(r).entry;
    const std::string& concerned =
        verdict_->nonces[static_cast<std::size_t>(r)];
    if (!entry || entry->nonce != concerned) continue;
    if (!joined(r).ended) return false;
    directory_.Remove(Named("join", r));
  }
  return true;
}

void Meeting::SeeJoin(int rank) {
  Joined& it = joined(rank);
  const std::string before = it.entry ? it.entry->nonce : "";
  Frame frame;
  const Directory::Look look =
      directory_.Read(Named("join", rank), &it.version, &frame);
  if (look != Directory::Look::kSame) it.entry.reset();
  if (look == Directory::Look::kRead && frame.type == FrameType::kJoin) {
    it.entry = DecodeEntry(frame.body);
    if (it.entry && it.entry->rank != static_cast<std::uint32_t>(rank)) {
      it.entry.reset();
    }
  }
  const Clock::Time since = std::exchange(it.looked_at, call_.clock.Now());
  it.silence += std::min<Clock::Time>(it.looked_at - since, kMostBetweenLooks);
  it.ended = false;
  if (!it.entry || rank == this->rank()) return;
  if (!SeeEachOther(it.entry->process, process_)) {
    it.ended = IsSilent(it, before, look == Directory::Look::kRead);
    return;
  }
  it.ended = HasEnded(it.entry->process, process_);
  if (!it.ended) it.alive = it.entry->nonce;
}

// A file that was not seen to be renewed may be left over from an earlier run.
// The first renewal ends only the part of an interval that was watched, which
// tells nothing of how seldom renewals show where times are coarse or kept in a
// cache.
bool Meeting::IsSilent(Joined& it, const std::string& before, bool renewed) {
  if (renewed) {
    const Clock::Time silence = std::exchange(it.silence, Clock::Time(0));
    it.renewals = it.entry->nonce == before ? it.renewals + 1 : 0;
    if (it.renewals < 2) return false;
    it.alive = before;
    longest_silence_ = std::max(longest_silence_, silence);
  }
  return it.alive == it.entry->nonce &&
         it.silence > std::max<Clock::Time>(kSilence,
                                            longest_silence_ * kMissedRenewals);
}

void Meeting::Renew(Clock::Time now) {
  if (now < renew_at_) return;
  renew_at_ = now + kRenewEvery;
  // Rank 0 looks after all others, and they look after rank 0.
  const int last = rank() == 0 ? size() - 1 : 0;
  bool seen = true;
  for (int r = rank() == 0 ? 1 : 0; r <= last; ++r) {
    const std::optional<Entry>& entry = joined(r).entry;
    seen = seen && entry && SeeEachOther(entry->process, process_);
  }
  if (!seen) directory_.Renew(Named("join", rank()));
}

// For ranks other than 0: takes a verdict that concerns this process.
void Meeting::SeeVerdict() {
  Frame frame;
  if (directory_.Read("verdict", &verdict_version_, &frame) !=
          Directory::Look::kRead ||
      (frame.type != FrameType::kIntroduction &&
       frame.type != FrameType::kFailed)) {
    return;
  }
  BodyReader reader(frame.body);
  Verdict verdict;
  verdict.failed = frame.type == FrameType::kFailed;
  verdict.id = reader.Text();
  auto nonces = DecodeTexts(reader.Text(), count());
  verdict.rest = reader.Text();
  if (!reader.Complete() || !nonces) return;
  verdict.nonces = *std::move(nonces);
  if (verdict.nonces[static_cast<std::size_t>(rank())] == nonce_) {
    verdict_ = std::move(verdict);
  }
}

Status Meeting::WriteVerdict() {
  std::string body;
  PutText(verdict_->id, &body);
  PutText(EncodeTexts(verdict_->nonces), &body);
  PutText(verdict_->rest, &body);
  const FrameType type =
      verdict_->failed ? FrameType::kFailed : FrameType::kIntroduction;
  GF_RETURN_IF_ERROR(directory_.Write("verdict", type, body));
  Frame ignored;  // Only the version is of interest.
  directory_.Read("verdict", &verdict_version_, &ignored);
  return Status();
}

Status Meeting::CheckClaim() {
  SeeJoin(rank());
  const std::optional<Entry>& entry = joined(rank()).entry;
  if (entry && entry->nonce == nonce_) return Status();
  return Status(StatusCode::kInvalidArgument,
                StrCat("rendezvous in ", directory_.path(), ": rank ", rank(),
                       " is claimed twice: by ", Claimant(), " and, later, by ",
                       entry ? entry->claimant : "one that has gone again"));
}

// A file from before this meeting, of a process that was never seen to run, is
// left over from an earlier run.
Status Meeting::CheckAlive(int rank) {
  const Joined& it = joined(rank);
  const bool of_this_run =
      it.ended &&
      (it.alive == it.entry->nonce || it.version.changed_ns > mine_.changed_ns);
  if (!of_this_run) return Status();
  return Status(StatusCode::kUnavailable,
                StrCat("rank ", rank, " (", it.entry->claimant,
                       ") ended during the rendezvous in ", directory_.path()));
}

bool Meeting::HasJoined(int rank) {
  const Joined& it = joined(rank);
  return it.entry && !it.ended &&
         it.entry->size == static_cast<std::uint32_t>(size());
}

// ---- Ranks other than 0.

// Rank 0 writes its last word before it removes its join.0, so that is looked
// at first.
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
  if (call_.clock.Now() < call_.options.deadline + grace) return std::nullopt;
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
      Renew(call_.clock.Now());
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
  static_cast<void>(WriteVerdict());
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
    Renew(call_.clock.Now());  // A slow server takes long for so many files.
  }
  if (const Status written = Publish(); !written.ok()) return Fail(written);
  if (verdict_ && Awaited().empty()) {
    const Status written = directory_.Write("go", FrameType::kGo, verdict_->id);
    if (!written.ok()) return Fail(written);
    return std::move(cards_);
  }
  if (call_.clock.Now() < call_.options.deadline) return std::nullopt;
  return Fail(TooLate());
}

Result<std::vector<std::string>> Meeting::Run() {
  joined_.resize(count());
  Entry entry;
  entry.rank = static_cast<std::uint32_t>(rank());
  entry.size = static_cast<std::uint32_t>(size());
  entry.nonce = nonce_;
  entry.claimant = Claimant();
  entry.process = process_;
  entry.card = call_.my_card;
  GF_RETURN_IF_ERROR(directory_.Write(Named("join", rank()), FrameType::kJoin,
                                      EncodeEntry(entry)));
  SeeJoin(rank());
  mine_ = joined(rank()).version;
  Clock::Time refresh_at = call_.clock.Now() + kRefreshEvery;
  for (milliseconds nap = kFirstNap;; nap = std::min(nap * 2, kLastNap)) {
    Answer answer = rank() == 0 ? LeadStep() : FollowStep();
    if (answer) return *std::move(answer);
    const Clock::Time now = call_.clock.Now();
    Renew(now);
    if (now >= refresh_at) {
      refresh_at = now + kRefreshEvery;
      directory_.Refresh();
    }
    Nap(nap);
  }
}

}  // namespace

Result<std::vector<std::string>> MeetInFiles(const Call& call,
                                             const std::string& directory) {
  const Result<std::string> nonce = MakeNonce();
  if (!nonce.ok()) return nonce.status();
  Result<Directory> opened =
      Directory::Open(directory, call.options.secret, nonce.value());
  if (!opened.ok()) return opened.status();
  return Meeting(call, std::move(opened).value(), nonce.value()).Run();
}

}  // namespace gradientflow::rendezvous
