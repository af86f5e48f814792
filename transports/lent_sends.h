#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/done.h"
#include "transports/link.h"
#include "transports/wire.h"

namespace gradientflow {

// What a message carries besides its payload.
struct Stamp {
  std::uint64_t signature = 0;  // See Header::signature.
  std::uint32_t flags = 0;
};

// The sends whose buffers are lent to the fabric, until a link has given them
// back or the job has failed. They are kept apart from the links, so that each
// Done runs even if its link is dropped. A send that may not go unasked is
// announced, and its payload follows once the peer has answered (see
// matcher.cc).
// NOT thread-safe. Slots are numbers of sends, and are used again.
class LentSends {
 public:
  std::uint64_t Add(int peer, MessageId id, ConstBufferView src, Stamp stamp,
                    Done done);
  // The message of a send, under the id by which the peer knows it. Its Done
  // ends the send.
  OutMessage MessageOf(std::uint64_t slot, MessageKind kind, MessageId id);
  // The announcement of a send. The peer will answer it.
  OutMessage Announce(std::uint64_t slot);
  // `peer` answers to the announcement of a send. Returns false if it had none
  // to answer.
  bool Answered(int peer, std::uint64_t slot);
  // The send has ended well; its Done runs.
  void End(std::uint64_t slot) { OnSent(this, slot, 0, Status()); }

  bool HasAny(int peer) const;
  bool AwaitsAnswer(int peer) const;
  // Ends all of them with `why`: their Dones are due. REQUIRES that no link
  // has any of their messages.
  void FailAll(const Status& why, DoneQueue* due);

 private:
  struct Lent {
    Done done;
    int peer = 0;
    MessageId id;
    ConstBufferView src;
    Stamp stamp;
    bool announced = false;  // The peer has yet to answer.
    AnnouncementBytes announcement;
  };
  static void OnSent(void* self, std::uint64_t slot, std::uint32_t flags,
                     const Status& status);

  std::deque<Lent> sends_;  // By slot. Entries stay where they are.
  std::vector<std::uint64_t> free_;
};

}  // namespace gradientflow
