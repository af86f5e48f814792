#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradientflow/base/fd.h"
#include "gradientflow/base/status.h"
#include "transports/link.h"
#include "transports/poller.h"
#include "transports/shm/doorbell.h"
#include "transports/shm/fifo.h"
#include "transports/shm/shm_arena.h"
#include "transports/wire.h"

namespace gradientflow {

struct ShmLinkArgs {
  int peer = 0;
  const char* kind = "shm";  // A literal.
  std::string address;       // Of the peer, for error messages.
  Fd socket;  // A connected stream: doorbell, and hang-up at death.
  // Readable once the peer's process has ended; may be absent. The socket
  // alone does not tell if another process has a copy of it.
  Fd process;
  FifoMemory in;  // In this rank's arena: the reader's.
  FifoMemory out;
  std::shared_ptr<ShmArena> arena;  // Keeps both mapped.
  Poller* poller = nullptr;         // Outlives the link.
  LinkEvents* events = nullptr;     // Outlives the link.
};

// Frames through a byte FIFO per direction. While both ends are awake no
// system call is made; who wants to block marks itself asleep in the FIFO it
// reads, and is rung through the socket. Transports: inproc and shm alike.
// A callback may Close() the link, but not destroy it.
class ShmLink final : public Link, private Poller::Target {
 public:
  static Result<std::unique_ptr<ShmLink>> Create(ShmLinkArgs args);
  ~ShmLink() override;

  const char* kind() const override { return args_.kind; }
  const char* address() const override { return args_.address.c_str(); }
  int lanes() const override { return 1; }
  void Send(int lane, const OutMessage& message) override;
  bool Poll() override;
  void Resume(int lane) override;
  bool PrepareToSleep() override;
  void WakeUp() override;
  bool hung_up() const override { return hung_up_.has_value(); }
  void Beat() override;
  std::uint64_t beats() const override;
  std::size_t queued_messages() const override;
  void Close() override;

 private:
  enum class Reading : std::uint8_t { kHeader, kLanding, kPayload };

  explicit ShmLink(ShmLinkArgs args);
  Status Register();
  bool OnEvents(std::uint64_t cookie, std::uint32_t events) override;
  void HangUp(const char* cause);

  // Each returns whether anything moved; may end in Fail().
  bool MoveIn();
  bool MoveOut();
  // The next step of the message under way. REQUIRES CanRead().
  void ReadStep();
  void ReadHeader();
  void FindLanding();
  void ReadPayload();
  void ReleaseRead();
  std::size_t WriteStep();
  void PublishWritten();

  // Nothing more will come; what is in the FIFO has been delivered.
  bool Drained();

  bool CanRead() const;
  bool CanWrite() const;
  // Done of what has been written; later, of everything, with `why`.
  void CompleteWritten();
  bool CompleteAll(const Status& why);
  void Fail(const Status& why);
  void Disconnect();
  Status Explain(const Status& why) const;

  ShmLinkArgs args_;
  const Doorbell bell_;
  FifoReader in_;
  FifoWriter out_;

  Reading reading_ = Reading::kHeader;
  bool paused_ = false;
  Header in_header_;
  std::byte* landing_ = nullptr;
  std::size_t landed_bytes_ = 0;

  // [0, completed_) are done, [completed_, written_) in the FIFO; of the next
  // one `front_bytes_` are, header included.
  std::vector<OutMessage> queue_;
  std::size_t completed_ = 0;
  std::size_t written_ = 0;
  std::size_t front_bytes_ = 0;

  std::uint64_t seen_publications_ = 0;
  bool connected_ = true;
  bool closed_ = false;            // By Close(): nothing runs any more.
  bool down_ = false;              // OnDown() has been told.
  std::optional<Status> hung_up_;  // What is in the FIFO is still delivered.
};

}  // namespace gradientflow
