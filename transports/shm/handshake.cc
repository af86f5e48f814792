#include "transports/shm/handshake.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

// More connections than this without a hello are strangers'.
constexpr std::size_t kMaxSilent = 256;

bool Readable(const Fd& fd) {
  pollfd item = {fd.get(), POLLIN, 0};
  return ::poll(&item, 1, 0) > 0;
}

}  // namespace

ShmHandshake::ShmHandshake(const ShmConnectArgs& args, const Fd& listener,
                           std::shared_ptr<ShmArena> arena,
                           std::size_t fifo_bytes)
    : args_(args),
      listener_(listener),
      arena_(std::move(arena)),
      fifo_bytes_(fifo_bytes),
      ends_(static_cast<std::size_t>(args.size)),
      fifo_offsets_(static_cast<std::size_t>(args.size)) {}

Result<std::vector<ShmLinkArgs>> ShmHandshake::Run() {
  GF_RETURN_IF_ERROR(AllocateFifos());
  for (int rank = 0; rank < args_.rank; ++rank) {
    if (Expects(rank)) outgoing_.push_back({rank, Fd()});
  }
  for (;;) {
    for (std::size_t i = 0; i < outgoing_.size();) {
      bool done = false;
      Outgoing& peer = outgoing_[i];
      GF_RETURN_IF_ERROR(peer.socket.valid() ? ReadReply(&peer, &done)
                                             : Connect(&peer));
      if (done) {
        outgoing_.erase(outgoing_.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
    GF_RETURN_IF_ERROR(AcceptAll());
    if (Missing().empty()) return std::move(ends_);
    if (args_.clock->Now() >= args_.deadline) return Late();
    Wait();
  }
}

Status ShmHandshake::AllocateFifos() {
  for (int rank = 0; rank < args_.size; ++rank) {
    if (!Expects(rank)) continue;
    Result<BufferView> fifo = arena_->AllocateFifo(fifo_bytes_);
    if (!fifo.ok()) return fifo.status();
    fifo_offsets_[rank] = arena_->OffsetOf(fifo.value().data);
  }
  return Status();
}

bool ShmHandshake::Expects(int rank) const {
  return rank >= 0 && rank < args_.size && rank != args_.rank &&
         !args_.addresses[rank].empty() && !ends_[rank].socket.valid();
}

std::vector<int> ShmHandshake::Missing() const {
  std::vector<int> missing;
  for (int rank = 0; rank < args_.size; ++rank) {
    if (Expects(rank)) missing.push_back(rank);
  }
  return missing;
}

Status ShmHandshake::Late() const {
  std::string names;
  for (const int rank : Missing()) {
    names += StrCat(names.empty() ? "" : ", ", rank);
  }
  return Status(
      StatusCode::kDeadlineExceeded,
      StrCat("rank ", args_.rank,
             ": no shared-memory connection in time with rank(s) ", names,
             last_stranger_.empty() ? "" : "; turned away: ", last_stranger_));
}

void ShmHandshake::Wait() {
  std::vector<pollfd> items = {{listener_.get(), POLLIN, 0}};
  // The clock may be a test's; a full listener queue gives no event.
  int limit_ms = 20;
  for (const Outgoing& peer : outgoing_) {
    if (!peer.socket.valid()) limit_ms = 1;
    items.push_back({peer.socket.get(), POLLIN, 0});
  }
  for (const Fd& peer : incoming_) items.push_back({peer.get(), POLLIN, 0});
  ::poll(items.data(), items.size(), limit_ms);
}

Status ShmHandshake::Connect(Outgoing* to) {
  const auto explain = [&](const Status& why) {
    return Status(why.code(), StrCat("rank ", args_.rank, " to rank ", to->rank,
                                     ": ", why.message()));
  };
  Result<Fd> socket = ConnectAbstract(args_.addresses[to->rank]);
  if (!socket.ok()) return explain(socket.status());
  if (!socket.value().valid()) return Status();
  if (Status user = CheckPeerUser(socket.value()); !user.ok()) {
    return explain(user);
  }
  const Status sent =
      SendHello(socket.value(), HelloTo(to->rank), arena_->mapping()->fd());
  if (!sent.ok()) return explain(sent);
  to->socket = std::move(socket).value();
  return Status();
}

Status ShmHandshake::ReadReply(Outgoing* from, bool* done) {
  if (!Readable(from->socket)) return Status();
  const auto explain = [&](const Status& why, const char* hint) {
    return Status(why.code(), StrCat("rank ", args_.rank, " to rank ",
                                     from->rank, ": ", why.message(), hint));
  };
  Result<ReceivedHello> reply = ReceiveHello(from->socket);
  if (!reply.ok()) {
    return explain(reply.status(),
                   " (it ended, or belongs to another session)");
  }
  Status fits = CheckHello(reply.value().hello);
  if (fits.ok() && reply.value().hello.rank != from->rank) {
    fits = Status(StatusCode::kDataLoss,
                  StrCat("rank ", reply.value().hello.rank, " answered"));
  }
  if (fits.ok()) {
    fits = Finish(std::move(reply).value(), std::move(from->socket));
  }
  *done = true;
  return fits.ok() ? fits : explain(fits, "");
}

Status ShmHandshake::AcceptAll() {
  while (incoming_.size() < kMaxSilent) {
    Fd socket = AcceptAbstract(listener_);
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
    last_stranger_ = received.status().message();
    return Status();
  }
  const Hello hello = received.value().hello;
  Status fits = CheckHello(hello);
  if (fits.ok() && (hello.rank < args_.rank || !Expects(hello.rank))) {
    fits = Status(StatusCode::kDataLoss,
                  StrCat("rank ", hello.rank, " was not expected"));
  }
  if (!fits.ok()) {
    last_stranger_ = fits.message();
    return Status();
  }
  // First take it in, then answer: who has an answer may use the link.
  GF_RETURN_IF_ERROR(Finish(std::move(received).value(), std::move(*from)));
  // That a peer has died since is for its link to tell.
  (void)SendHello(ends_[hello.rank].socket, HelloTo(hello.rank),
                  arena_->mapping()->fd());
  return Status();
}

Status ShmHandshake::CheckHello(const Hello& hello) const {
  if (hello.session_key != args_.session_key) {
    return Status(StatusCode::kDataLoss,
                  StrCat("rank ", hello.rank, " of another session (pid ",
                         hello.pid, ")"));
  }
  if (hello.size != args_.size) {
    return Status(StatusCode::kDataLoss,
                  StrCat("rank ", hello.rank, " (pid ", hello.pid,
                         "): expected a job of size ", args_.size, ", seen ",
                         hello.size));
  }
  return Status();
}

Hello ShmHandshake::HelloTo(int rank) const {
  Hello hello;
  hello.rank = args_.rank;
  hello.size = args_.size;
  hello.pid = ::getpid();
  hello.session_key = args_.session_key;
  hello.arena_bytes = arena_->mapping()->bytes();
  hello.fifo_offset = fifo_offsets_[rank];
  hello.fifo_bytes = fifo_bytes_;
  return hello;
}

Status ShmHandshake::Finish(ReceivedHello received, Fd socket) {
  const Hello& hello = received.hello;
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
  end.process = WatchProcess(socket, hello.pid);
  end.socket = std::move(socket);
  end.in = in.value();
  end.out = out.value();
  end.arena = arena_;
  end.poller = args_.poller;
  end.events = args_.events;
  return Status();
}

}  // namespace gradientflow
