#include "transports/rendezvous/meeting.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string_view>

#include "gradientflow/base/str_cat.h"
#include "transports/rendezvous/frames.h"

// What ranks see in the files, and leave there.
namespace gradientflow::rendezvous {
namespace {

using std::chrono::milliseconds;

// How often a rank renews its join.r, and how long it may fail to do so: a file
// server may stall it. Where renewals take longer than they should, others are
// given more time, too.
constexpr milliseconds kRenewEvery(100);
constexpr milliseconds kSilence(800);
// If its lock is seen, a rank may be paused, but has not ended unless its host
// has.
constexpr milliseconds kLockedSilence(2000);
constexpr int kMissedRenewals = 4;
// At most this much of the time between two looks counts as silence. This
// process or the file server may have been stopped meanwhile, and then no sign
// of life could come through.
constexpr milliseconds kMostBetweenLooks(100);
// How long a file that is still there must have been without its lock.
constexpr milliseconds kLetGo(100);

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

}  // namespace

std::string Named(const char* what, int rank) {
  return StrCat(what, ".", rank);
}

std::string Claimant() {
  char host[256] = "";
  ::gethostname(host, sizeof(host) - 1);
  return StrCat("process ", ::getpid(), " on ", host);
}

std::string Meeting::Who() const {
  return StrCat("rank ", rank(), " (", Claimant(), ")");
}

Status Meeting::ShowCard(const std::string& my_card) {
  joined_.resize(count());
  Entry entry;
  entry.rank = static_cast<std::uint32_t>(rank());
  entry.size = static_cast<std::uint32_t>(size());
  entry.nonce = nonce_;
  entry.claimant = Claimant();
  entry.process = process_;
  entry.card = my_card;
  GF_RETURN_IF_ERROR(directory_.Write(Named("join", rank()), FrameType::kJoin,
                                      EncodeEntry(entry), &lock_));
  SeeJoin(rank());
  mine_ = joined(rank()).version;
  return Status();
}

// The last process that the verdict concerns removes the verdict and what goes
// with it. If two leave at the same time, both may be the last.
Meeting::~Meeting() {
  SeeJoin(rank());
  const std::optional<Entry>& mine = joined(rank()).entry;
  if (mine && mine->nonce == nonce_) directory_.Remove(Named("join", rank()));
  if (!acked_.empty() &&
      directory_.Read(Named("ack", rank()), FrameType::kAck) == acked_) {
    directory_.Remove(Named("ack", rank()));
  }
  if (!verdict_ || !IsLast()) return;
  for (int r = 0; r < size(); ++r) RemoveAck(r);
  if (IsOfThisRun(directory_.Read("go", FrameType::kGo))) {
    directory_.Remove("go");
  }
  // Since this rank last looked, rank 0 may have written why the job ends, or a
  // later run may have written a verdict of its own.
  SeeVerdict();
  if (!verdict_is_ours_) return;
  directory_.SweepUnfinished("verdict");
  directory_.Remove("verdict");
}

bool Meeting::IsOfThisRun(const std::optional<std::string>& id) const {
  return id && (*id == verdict_->id || (!met_.empty() && *id == met_));
}

void Meeting::RemoveAck(int rank) {
  const std::string name = Named("ack", rank);
  const auto failed = directory_.Read(name, FrameType::kFailed);
  if (IsOfThisRun(failed ? BodyReader(*failed).Text()
                         : directory_.Read(name, FrameType::kAck))) {
    directory_.Remove(name);
  }
}

// Returns whether all other processes have left or are dead. If so, removes the
// files of the dead ones. Until then the join of a dead rank 0 stays, because
// it tells the others that rank 0 has died.
bool Meeting::IsLast() {
  std::vector<int> dead;
  for (int r = 0; r < size(); ++r) {
    SeeJoin(r);
    if (!joined(r).entry) continue;
    if (HasLeft(r)) {
      // Another process has claimed its rank. As long as its ack is there, it
      // may still have to read that all have met.
      if (directory_.Read(Named("ack", r), FrameType::kAck) == verdict_->id) {
        return false;
      }
      continue;
    }
    if (!IsGone(r)) return false;
    dead.push_back(r);
  }
  for (const int r : dead) RemoveFilesOf(r);
  return true;
}

// Removes the files of a rank that is dead. Its ack may be older than the
// verdict.
void Meeting::RemoveFilesOf(int rank) {
  const std::string& nonce = joined(rank).entry->nonce;
  for (const std::string& name : {Named("ack", rank), std::string("look"),
                                  std::string("verdict"), std::string("go")}) {
    directory_.RemoveUnfinished(name, nonce);
  }
  directory_.Remove(Named("ack", rank));
  directory_.Remove(Named("join", rank));
}

bool Meeting::IsGone(int rank) {
  const Joined& it = joined(rank);
  return it.ended || (it.let_go_at && it.holder == it.entry->nonce);
}

void Meeting::SeeJoin(int rank) {
  Joined& it = joined(rank);
  const std::string before = it.entry ? it.entry->nonce : "";
  Frame frame;
  bool held = false;
  const Directory::Look look =
      directory_.Read(Named("join", rank), &it.version, &frame, &held);
  if (look != Directory::Look::kSame) it.entry.reset();
  if (look == Directory::Look::kRead && frame.type == FrameType::kJoin) {
    it.entry = DecodeEntry(frame.body);
    if (it.entry && it.entry->rank != static_cast<std::uint32_t>(rank)) {
      it.entry.reset();
    }
  }
  if (rank == 0 && it.entry) zero_ = it.entry->nonce;
  const Clock::Time since = std::exchange(it.looked_at, clock_.Now());
  it.silence += std::min<Clock::Time>(it.looked_at - since, kMostBetweenLooks);
  it.ended = false;
  if (!it.entry || rank == this->rank()) return;
  if (!SeeEachOther(it.entry->process, process_)) {
    const bool silent =
        IsSilent(it, before, look == Directory::Look::kRead, held);
    it.ended = HasLetGo(it, held) || (silent && met_.empty());
    return;
  }
  it.ended = HasEnded(it.entry->process, process_);
  if (!it.ended) it.alive = it.entry->nonce;
}

// A process that leaves removes its file before it unlocks it. So if a file
// without a lock is still there when it is opened again, by its name, its
// process has ended. A client of a file server may need a moment to see that it
// is gone.
bool Meeting::HasLetGo(Joined& it, bool held) {
  if (held) {
    it.holder = it.alive = it.entry->nonce;
    it.let_go_at.reset();
  }
  if (held || it.holder != it.entry->nonce) return false;
  if (!it.let_go_at) it.let_go_at = it.looked_at;
  return it.looked_at - *it.let_go_at >= kLetGo;
}

// A file that was not seen to be renewed may be left over from an earlier run.
// The interval before the first renewal does not count, since only a part of it
// was watched: it does not show how rarely renewals are seen where times are
// coarse or kept in a cache.
bool Meeting::IsSilent(Joined& it, const std::string& before, bool renewed,
                       bool held) {
  if (renewed) {
    const Clock::Time silence = std::exchange(it.silence, Clock::Time(0));
    it.renewals = it.entry->nonce == before ? it.renewals + 1 : 0;
    if (it.renewals < 2) return false;
    it.alive = it.entry->nonce;
    longest_silence_ = std::max(longest_silence_, silence);
  }
  return it.renewals >= 2 &&
         it.silence > std::max<Clock::Time>(held ? kLockedSilence : kSilence,
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
  const Directory::Look look =
      directory_.Read("verdict", &verdict_version_, &frame);
  if (look == Directory::Look::kSame) return;
  verdict_is_ours_ = false;
  if (look != Directory::Look::kRead) return;
  if (frame.type != FrameType::kIntroduction &&
      frame.type != FrameType::kFailed) {
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
    verdict_is_ours_ = true;
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
  verdict_is_ours_ = true;
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

// If a file is older than this meeting and its process was never seen to run,
// it is left over from an earlier run, unless a verdict names it together with
// this rank's file.
Status Meeting::CheckAlive(int rank) {
  const Joined& it = joined(rank);
  const bool of_this_run =
      it.ended &&
      (it.alive == it.entry->nonce || (verdict_ && !HasLeft(rank)) ||
       it.version.changed_ns > mine_.changed_ns);
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

}  // namespace gradientflow::rendezvous
