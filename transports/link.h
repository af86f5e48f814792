#pragma once

#include <cstddef>
#include <cstdint>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/done.h"
#include "gradientflow/base/status.h"
#include "transports/wire.h"

namespace gradientflow {

// What a Link tells its owner (the Fabric). Called from Link::Poll() or from
// Poller::Poll() only, on the thread that drives them.
class LinkEvents {
 public:
  virtual ~LinkEvents() = default;

  // Where the payload of a message goes.
  struct Landing {
    std::byte* data = nullptr;  // payload_bytes long; null if there are none.
    bool paused = false;        // Not now: read no more of this lane until
                                // Link::Resume(lane), then ask again.
  };

  // A well-formed header has arrived. The landing is lent to the link until
  // OnMessage() for it, or OnDown(). An error fails the link with it.
  virtual Result<Landing> OnHeader(int peer, int lane,
                                   const Header& header) = 0;
  // The payload is complete. Messages of one lane complete in order.
  virtual void OnMessage(int peer, int lane, const Header& header) = 0;
  // The peer is gone or sent garbage; `why` says rank, address and cause. At
  // most once per link, and nothing follows. The link has given back every
  // landing; its queued sends complete with `why`.
  virtual void OnDown(int peer, const Status& why) = 0;
};

struct OutMessage {
  Header header;            // payload_bytes == payload.bytes.
  ConstBufferView payload;  // Lent until done.
  Done done;                // May be empty.
};

// The connection to one peer: framed messages over one or more lanes, each of
// which keeps order. One folder per kind: tcp, shm, inproc.
// NOT thread-safe: one thread at a time drives a fabric and all its links.
class Link {
 public:
  virtual ~Link() = default;             // Close()s.
  virtual const char* kind() const = 0;  // The transport: "tcp", "inproc", ...
  // Of the peer, for error messages: "10.0.0.2:4321", "pid 17".
  virtual const char* address() const = 0;
  // Lane 0 also carries control messages. With more than one, data goes by the
  // others.
  virtual int lanes() const = 0;

  // Queues; never blocks, runs no completion. What is queued by one Poll() to
  // the next leaves together.
  virtual void Send(int lane, const OutMessage& message) = 0;

  // Moves what can be moved without blocking, and runs completions. Returns
  // whether anything moved.
  virtual bool Poll() = 0;

  virtual void Resume(int lane) = 0;

  // Whether what the peer sends shows as an event of the Poller, which then has
  // to be asked often. A link that Poll() alone moves needs that only for its
  // end.
  virtual bool sockets_carry_data() const { return false; }

  // Before the driving thread blocks in Poller::Poll(): asks the peer to ring
  // when it sends. False: something is there already, do not block. Links
  // whose file descriptors tell by themselves return true. After blocking (or
  // not) WakeUp() takes it back.
  virtual bool PrepareToSleep() = 0;
  virtual void WakeUp() = 0;

  // The peer is gone and OnDown() is not yet told: what it had sent still
  // comes. Pausing that would hide the end, and bounds little: it is all here.
  virtual bool hung_up() const { return false; }

  // A sign of life, for the peer: a link whose control messages can wait behind
  // data has a way for it that nothing holds up. Others need none.
  virtual void Beat() {}
  // The peer's, counted.
  virtual std::uint64_t beats() const { return 0; }

  // Messages accepted by Send() that have not yet left. 0 once flushed.
  virtual std::size_t queued_messages() const = 0;

  // Drops the connection at once; no event, no completion runs after it.
  virtual void Close() = 0;
};

}  // namespace gradientflow
