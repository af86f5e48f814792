#pragma once

#include <sys/socket.h>

#include <memory>
#include <span>
#include <utility>

#include "gradientflow/base/fd.h"
#include "tests/transports/link_conformance.h"
#include "transports/shm/fifo.h"
#include "transports/shm/shm_arena.h"
#include "transports/shm/shm_link.h"

namespace gradientflow::testing {

// Rank 1 of shared memory is the test: it owns the other ends of both FIFOs and
// of the socket, and may break the rules.
class RawShmPeer final : public RawPeer {
 public:
  static constexpr std::size_t kFifo = 4096;

  // `kind` is a literal.
  RawShmPeer(const char* kind, LinkOwner* owner)
      : mine_(ShmArena::Create(std::size_t{1} << 20).value()),
        peers_(ShmArena::Create(std::size_t{1} << 20).value()) {
    mine_->SetSelf(0);
    EXPECT_TRUE(mine_->AddMember(1, peers_->mapping()).ok());
    int sockets[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    socket = Fd(sockets[1]);
    ShmLinkArgs args;
    args.peer = 1;
    args.kind = kind;
    args.address = "pid 1";
    args.socket = Fd(sockets[0]);
    args.in = in = Fifo(*mine_, 0, *mine_);
    args.out = out = Fifo(*peers_, 1, *mine_);
    args.arena = mine_;
    args.poller = owner->poller();
    args.events = owner;
    writer_ = std::make_unique<FifoWriter>(in);
    owner->TakeOne(ShmLink::Create(std::move(args)).value());
  }
  void Write(std::span<const std::byte> bytes) override {
    EXPECT_TRUE(writer_->Refresh().ok());
    writer_->Write(bytes);
    writer_->Publish();
  }

  FifoMemory in;   // Read by the link.
  FifoMemory out;  // Written by the link.
  Fd socket;

 private:
  static FifoMemory Fifo(ShmArena& owner, int rank, const ShmArena& viewer) {
    const BufferView view = owner.AllocateFifo(kFifo).value();
    return viewer.FifoAt(rank, owner.OffsetOf(view.data), kFifo).value();
  }

  std::shared_ptr<ShmArena> mine_;
  std::shared_ptr<ShmArena> peers_;
  std::unique_ptr<FifoWriter> writer_;
};

}  // namespace gradientflow::testing
