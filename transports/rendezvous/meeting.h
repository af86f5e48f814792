#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/fd.h"
#include "gradientflow/base/status.h"
#include "transports/rendezvous/directory.h"
#include "transports/rendezvous/process.h"
#include "transports/rendezvous/rendezvous.h"

// How ranks meet in the files of a shared directory:
//
//   join.r   written by each rank r: its nonce (fresh in each process) and card
//   verdict  written by rank 0: an id, and nonces and cards of all joins that
//            it has seen; written again whenever a join has changed
//   ack.r    written by each rank r that finds its nonce in the verdict: the id
//   go       written by rank 0 when all have acknowledged the latest id
//   over     written by who ends the job while a rank may still have to join:
//            rank 0's nonce, and why
//
// So nothing that an earlier run left behind can count. A rank that finds its
// join.r overwritten leaves: of two processes with one rank, the later counts,
// unless rank 0 has written `go` for the earlier. Both write the same ack.r, so
// a rank writes its own again where it finds another.
//
// Ranks of one host see each other's processes. The others lock their join.r,
// which the kernel unlocks as a process ends. On a file system whose locks
// other hosts do not see, they keep renewing it, and a process that stops doing
// so has ended.
//
// A rank that has read the end removes its own files, and the last one the
// common ones. So they stay for a rank that looks late, as it must where a file
// server's client keeps what it has seen for a while; and nobody waits for it
// here. With a RendezvousWatch a rank keeps its files until it is linked. Then
// join.r says that it still connects, and
//
//   verdict  written by rank 0 once more, if a rank has ended or failed: why
//   ack.r    written by rank r once more, if it has failed: the id, and why
//
// A rank that comes when the others have gone finds `over`. The next rank 0
// removes it. Until then it may be older than a new job with the same secret,
// so it does not concern a process that has started since, nor one that has
// taken part in what it tells of.
namespace gradientflow::rendezvous {

// What a join.r says.
struct Entry {
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
  std::string nonce;
  std::string claimant;  // For people.
  std::string process;   // For HasEnded().
  std::string card;
};

std::string Named(const char* what, int rank);
// This process, for people.
std::string Claimant();

// A rank's join.r as it was when it was last read.
struct Joined {
  Directory::Version version;
  std::optional<Entry> entry;
  bool ended = false;  // As its host sees, or by its silence.
  std::string alive;   // The nonce of the process that was last seen to run.
  int renewals = 0;    // That were seen of this entry.
  Clock::Time looked_at{};
  Clock::Time silence{};  // Since the file was renewed, as far as it counts.
  std::string holder;     // The nonce of a process that was seen to lock it.
  std::optional<Clock::Time> let_go_at;  // When that was first seen.
  std::string acked;                     // The id of the verdict.
};

struct Verdict {
  bool failed = false;
  std::string id;
  std::vector<std::string> nonces;  // By rank; empty if none was seen.
  std::string rest;                 // The cards, or the error.
};

// One rank's part in a meeting. NOT thread-safe.
class Meeting {
 public:
  // `clock` outlives the object.
  Meeting(const RendezvousOptions& options, const Clock& clock,
          Directory directory, std::string nonce)
      : options_(options),
        clock_(clock),
        directory_(std::move(directory)),
        nonce_(std::move(nonce)) {}
  // Removes the files that nobody needs any more.
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // Meets: returns the cards of all ranks.
  Result<std::vector<std::string>> Run(const std::string& my_card);

  // From here on the ranks connect. See RendezvousWatch.
  void BeginWatch();
  Status Watch();
  bool WatchIsOver() const;
  // For people.
  std::string Who() const;
  // This rank could not connect.
  void TellFailure(const Status& why);

 private:
  using Answer = std::optional<Result<std::vector<std::string>>>;

  int rank() const { return options_.rank; }
  int size() const { return options_.size; }
  std::size_t count() const { return static_cast<std::size_t>(size()); }
  Joined& joined(int rank) { return joined_[static_cast<std::size_t>(rank)]; }

  // Writes this rank's join.r.
  Status ShowCard(const std::string& my_card);
  // Reads join.r if it has changed, and finds out whether its writer runs.
  void SeeJoin(int rank);
  // For writers that cannot be seen from here. Returns whether the process let
  // its lock go.
  bool HasLetGo(Joined& it, bool held);
  bool IsSilent(Joined& it, const std::string& before, bool renewed, bool held);
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
  void RemoveFilesOf(int rank);
  // Whether the process whose join.r was just seen, and is there, has ended, or
  // has let its lock go as it left.
  bool IsGone(int rank);

  Answer FollowStep();
  Answer LeadStep();
  // Writes this rank's ack.r again if another process has overwritten it.
  void KeepAck();
  // Returns why the job was over before this rank joined, if it was.
  Status CheckOver() const;
  // Tells that to the ranks that have not joined. REQUIRES that rank 0's join
  // was seen.
  void TellLateRanks(const Status& why);
  Status Publish();
  std::vector<int> Awaited();
  Status TooLate();
  Status Fail(const Status& why);

  // Whether the rank whose join.r was just seen has left the watch.
  bool HasLeft(int rank);
  Status WatchOver(int rank);
  // Why the rank could not connect, if it has written that.
  std::optional<Status> FailureOf(int rank);
  // Removes ack.r if it is of this run.
  void RemoveAck(int rank);
  // Whether a file with that id is. REQUIRES a verdict.
  bool IsOfThisRun(const std::optional<std::string>& id) const;

  const RendezvousOptions options_;
  const Clock& clock_;
  Directory directory_;
  const std::string nonce_;
  const std::string process_ = ThisProcess();
  Directory::Version mine_;  // Of this rank's join.
  Fd lock_;                  // Of the same. Let go after the file is removed.
  std::vector<Joined> joined_;
  // The latest: the one that rank 0 has written, or that another rank has read.
  std::optional<Verdict> verdict_;
  Directory::Version verdict_version_;
  bool verdict_is_ours_ = false;  // The one of that version.
  std::string acked_;             // Id of the verdict.
  std::vector<std::string> cards_;
  std::string zero_;             // The nonce of the rank 0 last seen.
  double patience_seconds_ = 0;  // From joining to the deadline.
  Clock::Time renew_at_{};
  Clock::Time longest_silence_{};  // After which a rank was heard again.
  std::string met_;  // While the ranks connect: the id by which all have met.
  std::vector<bool>
      left_;  // By rank: it has left the watch, or is not watched.
};

}  // namespace gradientflow::rendezvous
