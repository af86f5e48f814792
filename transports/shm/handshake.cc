#include "transports/shm/handshake.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "gradientflow/base/str_cat.h"

// The hellos on the connection between a pair of ranks, where the higher one
// connects:
//
//   higher -> lower  kOffer, with the memory of its arena
//   lower -> higher  kOffer, with the memory of its arena
//   both ways        kReady, once the sender has an offer of each of its peers
//   at any time      kFailed: the sender gives up and says why
//   instead of any of these
//                    kDeclined: these two ranks will not be linked
//
// A rank is done when it has said kReady and has heard it from all of its
// peers. So both ranks of a pair know whether they are linked.
namespace gradientflow {
namespace {

using std::chrono::milliseconds;

// Connections beyond this number that have sent no hello belong to strangers.
constexpr std::size_t kMaxSilent = 256;
// A peer that goes may be a victim of another failure. This is how long to wait
// for a rank that tells why.
constexpr milliseconds kVerdictPatience(200);
// How often to look after peers that are awaited.
constexpr milliseconds kLookEvery(200);
// How long to wait for peers that have yet to connect, to tell them of a
// failure.
constexpr milliseconds kFarewell(2000);

bool Readable(const Fd& fd) {
  pollfd item = {fd.get(), POLLIN, 0};
  return ::poll(&item, 1, 0) > 0;
}

}  // namespace

ShmHandshake::ShmHandshake(const ConnectArgs& args, const ShmListener& listener,
                           std::shared_ptr<ShmArena> arena,
                           std::size_t fifo_bytes)
    : args_(args),
      listener_(listener),
      arena_(std::move(arena)),
      fifo_bytes_(fifo_bytes),
      ends_(static_cast<std::size_t>(args.size)),
      declined_(ends_.size()),
      lacking_(ends_.size()),
      fifo_offsets_(ends_.size()),
      ready_(ends_.size()),
      told_(ends_.size()) {}

Result<std::vector<ShmLinkArgs>> ShmHandshake::Run() {
  for (int rank = 0; rank < args_.rank; ++rank) {
    if (IsPeer(rank)) outgoing_.push_back({rank, Fd()});
  }
  Status why = AllocateFifos();
  look_at_ = args_.clock->Now() + kLookEvery;
  while (why.ok()) {
    why = Round();
    if (!why.ok()) break;
    SayReady();
    if (Done()) {
      if (MayDecline()) *args_.unlinked = std::move(declined_);
      return std::move(ends_);
    }
    const bool late = args_.clock->Now() >= args_.deadline;
    if (Suspicious() || (late && !suspect_.ok())) {
      why = suspect_;
    } else if (late) {
      why = Late();
      // The other ranks are late as well, so none has to be told.
      told_by_peer_ = true;
    } else {
      Wait();
    }
  }
  TellAll(why, told_by_peer_ ? Clock::Time(0) : Clock::Time(kFarewell));
  return why;
}

Status ShmHandshake::AllocateFifos() {
  for (int rank = 0; rank < args_.size; ++rank) {
    if (!IsPeer(rank)) continue;
    Result<BufferView> fifo = arena_->AllocateFifo(fifo_bytes_);
    if (!fifo.ok()) {
      lacking_[rank] = To(rank, fifo.status());
      if (!MayDecline()) return lacking_[rank];
      continue;
    }
    fifo_offsets_[rank] = arena_->OffsetOf(fifo.value().data);
  }
  return Status();
}

Status ShmHandshake::Round() {
  for (std::size_t i = 0; i < outgoing_.size();) {
    bool done = false;
    Outgoing& peer = outgoing_[i];
    GF_RETURN_IF_ERROR(peer.socket.valid() ? ReadReply(&peer, &done)
                                           : Connect(&peer, &done));
    if (done) {
      outgoing_.erase(outgoing_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  GF_RETURN_IF_ERROR(AcceptAll());
  for (int rank = 0; rank < args_.size; ++rank) {
    GF_RETURN_IF_ERROR(ReadPeer(rank));
  }
  return args_.clock->Now() < look_at_ ? Status() : LookAfterAwaited();
}

// A rank's listener disappears as the rank ends, and is there before others
// know its name.
Status ShmHandshake::Gone(int rank) const {
  const Result<Fd> probe = ConnectAbstract(args_.addresses[rank]);
  return probe.status().code() == StatusCode::kUnavailable ? probe.status()
                                                           : Status();
}

// A higher rank that has ended does not connect.
Status ShmHandshake::LookAfterAwaited() {
  look_at_ = args_.clock->Now() + kLookEvery;
  for (int rank = args_.rank + 1; rank < args_.size; ++rank) {
    if (!Expects(rank)) continue;
    const Status gone = Gone(rank);
    if (gone.ok()) continue;
    Suspect(rank, Status(gone.code(), StrCat(gone.message(), " (it has ended)",
                                             TurnedAway())));
    told_[rank] = true;
  }
  if (!args_.look) return Status();
  const Status seen = args_.look();
  told_by_peer_ |= !seen.ok();  // All others learn it in the same way.
  return seen;
}

bool ShmHandshake::IsPeer(int rank) const {
  return rank >= 0 && rank < args_.size && rank != args_.rank &&
         !args_.addresses[rank].empty() && declined_[rank].ok();
}

bool ShmHandshake::Expects(int rank) const {
  return IsPeer(rank) && !ends_[rank].socket.valid();
}

std::vector<int> ShmHandshake::Missing() const {
  std::vector<int> missing;
  for (int rank = 0; rank < args_.size; ++rank) {
    if (Expects(rank)) missing.push_back(rank);
  }
  for (int rank = 0; rank < args_.size && missing.empty(); ++rank) {
    if (IsPeer(rank) && !ready_[rank]) missing.push_back(rank);
  }
  return missing;
}

void ShmHandshake::SayReady() {
  for (int rank = 0; rank < args_.size; ++rank) {
    if (Expects(rank)) return;
  }
  if (said_ready_) return;
  said_ready_ = true;
  for (int rank = 0; rank < args_.size; ++rank) {
    if (!IsPeer(rank)) continue;
    Hello ready = HelloTo(rank);
    ready.kind = Hello::kReady;
    // If a peer has died in the meantime, reading from it will show that.
    (void)SendHello(ends_[rank].socket, ready, -1);
  }
}

bool ShmHandshake::Done() const { return said_ready_ && Missing().empty(); }

std::string ShmHandshake::TurnedAway() const {
  return (last_stranger_.empty() ? "" : "; turned away: ") + last_stranger_;
}

Status ShmHandshake::Late() const {
  std::string names;
  for (const int rank : Missing()) {
    names += StrCat(names.empty() ? "" : ", ", rank);
  }
  return Status(StatusCode::kDeadlineExceeded,
                StrCat("rank ", args_.rank,
                       ": no shared-memory connection in time with rank(s) ",
                       names, TurnedAway()));
}

void ShmHandshake::Wait() {
  std::vector<pollfd> items = {{listener_.socket.get(), POLLIN, 0}};
  // The clock may be a test's, and a full listener queue causes no event.
  int limit_ms = 20;
  for (const Outgoing& peer : outgoing_) {
    if (!peer.socket.valid()) limit_ms = 1;
    items.push_back({peer.socket.get(), POLLIN, 0});
  }
  for (const Fd& peer : incoming_) items.push_back({peer.get(), POLLIN, 0});
  for (std::size_t rank = 0; rank < ends_.size(); ++rank) {
    if (ready_[rank] || told_[rank]) continue;
    items.push_back({ends_[rank].socket.get(), POLLIN, 0});
  }
  ::poll(items.data(), items.size(), limit_ms);
}

void ShmHandshake::Suspect(int rank, const Status& why) {
  if (!suspect_.ok()) return;
  suspect_ = Status(why.code(), StrCat("rank ", args_.rank, " to rank ", rank,
                                       ": ", why.message()));
  suspect_since_ = args_.clock->Now();
}

bool ShmHandshake::Suspicious() const {
  return !suspect_.ok() &&
         args_.clock->Now() - suspect_since_ >= kVerdictPatience;
}

Status ShmHandshake::Connect(Outgoing* to, bool* done) {
  Result<Fd> socket = ConnectAbstract(args_.addresses[to->rank]);
  if (socket.ok() && !socket.value().valid()) return Status();
  Status why = socket.status();
  if (why.ok()) why = CheckPeerUser(socket.value());
  if (why.ok() && !lacking_[to->rank].ok()) {
    Decline(to->rank, lacking_[to->rank], socket.value());
    *done = true;
    return Status();
  }
  if (why.ok()) {
    why = SendHello(socket.value(), HelloTo(to->rank), arena_->mapping()->fd());
  }
  if (why.ok()) {
    to->socket = std::move(socket).value();
  } else if (why.code() == StatusCode::kUnavailable) {
    Suspect(to->rank, why);
    *done = true;
  } else {
    return To(to->rank, why);
  }
  return Status();
}

Status ShmHandshake::ReadReply(Outgoing* from, bool* done) {
  if (!Readable(from->socket)) return Status();
  Result<ReceivedHello> reply = ReceiveHello(from->socket);
  if (!reply.ok()) {
    Suspect(from->rank, Status(reply.status().code(),
                               reply.status().message() +
                                   " (it ended, or belongs to another "
                                   "session)"));
    *done = true;
    return Status();
  }
  const Hello& hello = reply.value().hello;
  Status fits = CheckHello(hello);
  if (fits.ok() && hello.rank != from->rank) {
    fits =
        Status(StatusCode::kDataLoss, StrCat("rank ", hello.rank, " answered"));
  }
  if (fits.ok() && hello.kind == Hello::kFailed) {
    told_by_peer_ = true;
    return FailureOf(hello);
  }
  *done = true;
  if (fits.ok() && hello.kind == Hello::kDeclined) {
    return OnDeclined(from->rank, hello);
  }
  const bool is_peer = fits.ok();
  if (fits.ok()) fits = Finish(reply.value(), &from->socket);
  if (fits.ok()) return fits;
  fits = To(from->rank, fits);
  *done = is_peer && MayDecline();
  if (!*done) return fits;
  Decline(from->rank, fits, from->socket);
  return Status();
}

void ShmHandshake::Decline(int rank, const Status& why, const Fd& socket) {
  Hello hello = HelloTo(rank);
  SetFailure(why, &hello);
  hello.kind = Hello::kDeclined;
  // A peer that has gone will not miss it.
  (void)SendHello(socket, hello, -1);
  declined_[rank] = why;
}

Status ShmHandshake::OnDeclined(int rank, const Hello& hello) {
  const Status why = FailureOf(hello);
  if (!MayDecline()) {
    told_by_peer_ = true;
    return why;
  }
  ends_[rank] = ShmLinkArgs();
  declined_[rank] = why;
  return Status();
}

Status ShmHandshake::To(int rank, const Status& why) const {
  return Status(why.code(), StrCat("rank ", args_.rank, " to rank ", rank, ": ",
                                   why.message()));
}

Status ShmHandshake::AcceptAll() {
  // Without a free descriptor accept() fails even if nobody waits.
  while (incoming_.size() < kMaxSilent && Readable(listener_.socket)) {
    Result<Fd> accepted = AcceptAbstract(listener_.socket);
    if (!accepted.ok()) {
      // A stranger may hold the descriptor that is lacking.
      if (incoming_.empty()) {
        return Status(
            accepted.status().code(),
            StrCat("rank ", args_.rank, ": ", accepted.status().message()));
      }
      incoming_.erase(incoming_.begin());
      break;
    }
    Fd& socket = accepted.value();
    if (!socket.valid()) break;
    if (const Status user = CheckPeerUser(socket); user.ok()) {
      incoming_.push_back(std::move(socket));
    } else {
      last_stranger_ = user.message();
    }
  }
  for (std::size_t i = 0; i < incoming_.size();) {
    bool done = false;
    GF_RETURN_IF_ERROR(ReadIncoming(&incoming_[i], &done));
    if (done) {
      incoming_.erase(incoming_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  if (incoming_.size() == kMaxSilent) incoming_.erase(incoming_.begin());
  return Status();
}

Status ShmHandshake::ReadIncoming(Fd* from, bool* done) {
  if (!Readable(*from)) return Status();
  *done = true;
  Result<ReceivedHello> received = ReceiveHello(*from);
  if (!received.ok()) {
    // A peer that only looked whether this rank runs says less than a stranger
    // that came before.
    if (last_stranger_.empty()) last_stranger_ = received.status().message();
    return Status();
  }
  const Hello& hello = received.value().hello;
  Status fits = CheckHello(hello);
  if (fits.ok() && (hello.rank < args_.rank || !Expects(hello.rank))) {
    fits = Status(StatusCode::kDataLoss,
                  StrCat("rank ", hello.rank, " was not expected"));
  }
  if (!fits.ok()) {
    last_stranger_ = fits.message();
    return Status();
  }
  if (!failed_.ok()) {
    Tell(*from, hello.rank);
    told_[hello.rank] = true;  // Or it has gone.
    return Status();
  }
  if (hello.kind == Hello::kFailed) {
    told_by_peer_ = true;
    return FailureOf(hello);
  }
  if (hello.kind == Hello::kDeclined) return OnDeclined(hello.rank, hello);
  // The peer is taken in before it is answered: once it has an answer, it may
  // use the link.
  Status taken = Finish(received.value(), from);
  if (!taken.ok()) {
    taken = To(hello.rank, taken);
    if (MayDecline()) {
      Decline(hello.rank, taken, *from);
      return Status();
    }
    failed_ = taken;
    Tell(*from, hello.rank);
    told_[hello.rank] = true;  // Or it has gone.
    return failed_;
  }
  // If a peer has died in the meantime, reading from it will show that.
  (void)SendHello(ends_[hello.rank].socket, HelloTo(hello.rank),
                  arena_->mapping()->fd());
  return Status();
}

// Reads what a peer says after its offer. What follows kReady is for the link
// to read.
Status ShmHandshake::ReadPeer(int rank) {
  const Fd& socket = ends_[rank].socket;
  if (!socket.valid() || ready_[rank] || told_[rank] || !Readable(socket)) {
    return Status();
  }
  const Result<ReceivedHello> received = ReceiveHello(socket);
  if (!received.ok()) {
    Suspect(rank, received.status());
    told_[rank] = true;  // It neither hears nor says anything more.
    return Status();
  }
  if (received.value().hello.kind == Hello::kFailed) {
    told_by_peer_ = true;
    return FailureOf(received.value().hello);
  }
  if (received.value().hello.kind == Hello::kDeclined) {
    return OnDeclined(rank, received.value().hello);
  }
  ready_[rank] = true;
  return Status();
}

void ShmHandshake::Tell(const Fd& socket, int rank) {
  Hello hello = HelloTo(rank);
  SetFailure(failed_, &hello);
  // A peer that has gone need not be told.
  (void)SendHello(socket, hello, -1);
}

void ShmHandshake::TellAll(const Status& why, Clock::Time patience) {
  failed_ = why;
  for (std::size_t rank = 0; rank < ends_.size(); ++rank) {
    if (!ends_[rank].socket.valid()) continue;
    Tell(ends_[rank].socket, static_cast<int>(rank));
    told_[rank] = true;
  }
  const Clock::Time give_up = args_.clock->Now() + patience;
  for (;;) {
    // Lower ranks listen, or have gone.
    for (Outgoing& peer : outgoing_) {
      if (told_[peer.rank]) continue;
      if (!peer.socket.valid()) {
        Result<Fd> socket = ConnectAbstract(args_.addresses[peer.rank]);
        // Its queue is full.
        if (socket.ok() && !socket.value().valid()) continue;
        if (socket.ok()) peer.socket = std::move(socket).value();
      }
      if (peer.socket.valid()) Tell(peer.socket, peer.rank);
      told_[peer.rank] = true;
    }
    static_cast<void>(AcceptAll());
    const bool look = args_.clock->Now() >= look_at_;
    if (look) look_at_ = args_.clock->Now() + kLookEvery;
    bool all = true;
    for (int rank = args_.rank + 1; rank < args_.size; ++rank) {
      if (!IsPeer(rank) || told_[rank]) continue;
      // It may have heard of the failure from another rank, and have ended.
      told_[rank] = look && !Gone(rank).ok();
      all = all && told_[rank];
    }
    if (all || args_.clock->Now() >= give_up) return;
    Wait();
  }
}

Status ShmHandshake::Finish(const ReceivedHello& received, Fd* socket) {
  const Hello& hello = received.hello;
  GF_RETURN_IF_ERROR(lacking_[hello.rank]);
  GF_RETURN_IF_ERROR(received.memory_lost);
  Result<std::shared_ptr<Mapping>> memory =
      Mapping::FromPeer(received.memory, hello.arena_bytes);
  if (!memory.ok()) return memory.status();
  GF_RETURN_IF_ERROR(arena_->AddMember(hello.rank, std::move(memory).value()));
  const Result<FifoMemory> out =
      arena_->FifoAt(hello.rank, hello.fifo_offset, hello.fifo_bytes);
  const Result<FifoMemory> in =
      arena_->FifoAt(args_.rank, fifo_offsets_[hello.rank], fifo_bytes_);
  if (!out.ok()) return out.status();
  if (!in.ok()) return in.status();
  ShmLinkArgs& end = ends_[hello.rank];
  end.peer = hello.rank;
  end.address = StrCat("pid ", hello.pid);
  end.process = WatchProcess(*socket, hello.pid);
  end.socket = std::move(*socket);
  end.in = in.value();
  end.out = out.value();
  end.arena = arena_;
  end.poller = args_.poller;
  end.events = args_.events;
  return Status();
}

}  // namespace gradientflow
