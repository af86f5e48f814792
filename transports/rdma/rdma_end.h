#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "transports/link.h"
#include "transports/rdma/card_memory.h"
#include "transports/rdma/inbox.h"
#include "transports/rdma/outbox.h"
#include "transports/rdma/queue_pair.h"
#include "transports/rdma/rail.h"

namespace gradientflow {

// All are borrowed, and outlive the end.
struct RdmaEndArgs {
  int rank = 0;
  int peer = 0;
  const char* address = "";  // The peer's, for error messages.
  Rail* rail = nullptr;
  QueuePair::Owner* owner = nullptr;
  LinkEvents* events = nullptr;
  const Clock* clock = nullptr;  // Null: nobody wants to know how fast it is.
};

// This rank's end of a queue pair, with the memory that a link needs: the ring
// and the grants that the peer writes, and the images of the peer's, which this
// rank writes to them. The outbox and the inbox work on these.
class RdmaEnd {
 public:
  // Makes everything. After an error there is no pair; to be called once.
  Status Make(const RdmaEndArgs& args);

  // Null before Make(), and after Close(). The other two are there from Make()
  // on.
  QueuePair* pair() const { return pair_.get(); }
  Outbox& outbox() const { return *outbox_; }
  Inbox& inbox() const { return *inbox_; }
  bool is_made() const { return inbox_ != nullptr; }
  // The card touches nothing that was lent from here on.
  void Close();

  // Where the peer writes.
  RemotePlace ring() const;
  RemotePlace grants() const;
  // Where it is written to.
  void SetPeer(const RemotePlace& ring, const RemotePlace& grants);

  // Fills the first slot of the peer's ring, and returns what the peer has
  // written to that of this rank's. For the time before the outbox and the
  // inbox are used.
  void WriteFirstSlot(std::span<const std::byte> bytes,
                      const RemotePlace& there);
  std::span<const std::byte> first_slot() const;

 private:
  CardMemory memory_;
  Registration written_by_peer_;
  Registration read_by_card_;
  std::unique_ptr<QueuePair> pair_;
  std::unique_ptr<Outbox> outbox_;
  std::unique_ptr<Inbox> inbox_;
  int owed_credits_ = 0;
};

}  // namespace gradientflow
