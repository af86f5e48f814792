#pragma once

#include <cstddef>
#include <cstdint>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/done.h"
#include "gradientflow/base/status.h"
#include "transports/wire.h"

namespace gradientflow {

// What a Link tells its owner, the Fabric. Called only from Link::Poll(),
// Link::Look() or Poller::Poll(), on the thread that drives them.
class LinkEvents {
 public:
  virtual ~LinkEvents() = default;

  // Where the payload of a message goes.
  struct Landing {
    std::byte* data = nullptr;  // Room for payload_bytes; null if 0.
    // If true, the link reads no more of this lane until Link::Resume(lane),
    // and then asks again.
    bool paused = false;
  };

  // A well-formed header has arrived. The landing is lent to the link until
  // OnMessage() for that header, or OnDown(). An error fails the link.
  virtual Result<Landing> OnHeader(int peer, int lane,
                                   const Header& header) = 0;
  // The payload is complete. The messages of one lane complete in order.
  virtual void OnMessage(int peer, int lane, const Header& header) = 0;
  // The peer is gone or sent garbage; `why` names rank, address and cause.
  // Called at most once per link, and nothing follows it. The link has given
  // back every landing, and its queued sends complete with `why`.
  virtual void OnDown(int peer, const Status& why) = 0;
};

struct OutMessage {
  Header header;            // REQUIRES payload_bytes == payload.bytes.
  ConstBufferView payload;  // Lent until `done` runs.
  Done done;                // May be empty.
};

// The connection to one peer: framed messages over one or more lanes, each of
// which keeps their order. There is one folder per kind: tcp, shm, rdma.
// NOT thread-safe: a single thread at a time drives a fabric and all its links.
class Link {
 public:
  virtual ~Link() = default;             // Calls Close().
  virtual const char* kind() const = 0;  // The transport: "tcp", "inproc", ...
  // The peer's address, for error messages: "10.0.0.2:4321", "pid 17".
  virtual const char* address() const = 0;
  // Number of lanes. Lane 0 carries control messages. If there are more lanes,
  // they carry the data.
  virtual int lanes() const = 0;
  // The lane for a data message: the same for the same `spread`, unless the
  // link has several networks and chooses by what they carry.
  virtual int DataLane(std::uint64_t spread) { return FixedLane(spread); }
  // The lane for a data message whatever the networks carry.
  int FixedLane(std::uint64_t spread) const {
    if (lanes() == 1) return 0;
    return 1 +
           static_cast<int>(spread % static_cast<std::uint64_t>(lanes() - 1));
  }

  // Queues a message. Never blocks, and runs no completion. Messages that are
  // queued between two Poll()s leave together.
  virtual void Send(int lane, const OutMessage& message) = 0;

  // Moves what can be moved without blocking, and runs completions. Returns
  // whether anything moved.
  virtual bool Poll() = 0;

  virtual void Resume(int lane) = 0;

  // The lane on which a data message comes that the peer sends with `spread`,
  // if Look() can read it; -1 if not.
  virtual int LaneToLook(std::uint64_t spread) const {
    static_cast<void>(spread);
    return -1;
  }
  // Reads what has come on the lane, which saves asking the Poller whether
  // anything has. Returns whether anything moved. REQUIRES a lane that
  // LaneToLook() has returned.
  virtual bool Look(int lane) {
    static_cast<void>(lane);
    return false;
  }
  // A lane that is looked at may be no event of the Poller. From here on, until
  // the next Look(), all lanes are. Returns false if the Poller refuses one;
  // Poll() then fails the link.
  virtual bool WatchAll() { return true; }

  // Returns whether data from the peer shows up as an event of the Poller,
  // which then has to be polled often. A link whose data comes through
  // Link::Poll() alone needs the Poller only to learn that the peer is gone.
  virtual bool sockets_carry_data() const { return false; }

  // Called before the driving thread blocks in Poller::Poll(): asks the peer to
  // ring when it sends. Returns false if something has arrived already, so that
  // the thread must not block. A link whose file descriptors wake the Poller
  // has to WatchAll() of them. WakeUp() takes the request back, whether the
  // thread has blocked or not.
  virtual bool PrepareToSleep() = 0;
  virtual void WakeUp() = 0;

  // Tells the measured rate, in Mb/s, at which a rank sends to other hosts. The
  // number is the same on all ranks; 0 if it is not known. A link may move
  // bytes in another way from here on.
  virtual void LineMeasured(int mbps) { static_cast<void>(mbps); }

  // Gives the peer a sign of life. Only a link whose control messages can be
  // delayed by data needs this separate way, which nothing may delay.
  virtual void Beat() {}
  // Number of beats that came from the peer.
  virtual std::uint64_t beats() const { return 0; }

  // Number of messages that Send() accepted and that have not left; 0 if
  // flushed.
  virtual std::size_t queued_messages() const = 0;

  // Drops the connection at once. No event and no completion runs after it.
  virtual void Close() = 0;
};

}  // namespace gradientflow
