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
  const char* kind = "shm";  // A string literal.
  std::string address;       // The peer's, for error messages.
  // A connected stream: the doorbell; it hangs up when the peer dies.
  Fd socket;
  // Readable once the process of the peer has ended; may be absent. The socket
  // alone does not tell if another process holds a copy of it.
  Fd process;
  FifoMemory in;  // In this rank's arena: the reader's.
  FifoMemory out;
  std::shared_ptr<ShmArena> arena;  // Keeps the memory of both FIFOs mapped.
  Poller* poller = nullptr;         // Outlives the link.
  LinkEvents* events = nullptr;     // Outlives the link.
};

// Frames through one byte FIFO per direction. While both ends are awake there
// are no system calls. An end that wants to block marks itself asleep in the
// FIFO that it reads, and its peer rings it through the socket. Used by the
// transports inproc and shm. A callback may Close() the link, but must not
// destroy it.
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

  // Each returns whether anything moved, and may end in Fail().
  bool MoveIn();
  bool MoveOut();
  // Reads the next piece of the message that is being read.
  // REQUIRES CanRead().
  void ReadSome();
  void ReadHeader();
  void FindLanding();
  void ReadPayload();
  void ReleaseRead();
  std::size_t WriteSome();
  void PublishWritten();

  // Returns true if nothing more will come and what is in the FIFO has been
  // delivered.
  bool Drained();

  bool CanRead() const;
  bool CanWrite() const;
  // CompleteWritten() runs the Done of each message that has been written.
  // CompleteAll() runs those of all messages, with `why`.
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

  // Messages [0, completed_) are done, and [completed_, written_) are in the
  // FIFO. `front_bytes_` of the next message are there, too, including its
  // header.
  std::vector<OutMessage> queue_;
  std::size_t completed_ = 0;
  std::size_t written_ = 0;
  std::size_t front_bytes_ = 0;

  std::uint64_t seen_publications_ = 0;
  bool connected_ = true;
  bool closed_ = false;            // By Close(): no callback runs any more.
  bool down_ = false;              // OnDown() has been called.
  std::optional<Status> hung_up_;  // What is in the FIFO is still delivered.
};

}  // namespace gradientflow
