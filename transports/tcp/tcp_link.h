#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"
#include "transports/link.h"
#include "transports/poller.h"
#include "transports/tcp/io_threads.h"
#include "transports/tcp/lane_reader.h"
#include "transports/tcp/rails.h"
#include "transports/tcp/socket.h"
#include "transports/tcp/tcp_lane.h"
#include "transports/tcp/unwatched_lanes.h"
#include "transports/wire.h"

namespace gradientflow {

inline constexpr int kMaxTcpLanes = 64;

struct TcpLinkArgs {
  int peer = 0;
  std::string address;           // The peer's, for error messages.
  std::vector<Socket> lanes;     // Connected; 1 to kMaxTcpLanes of them.
  Poller* poller = nullptr;      // Outlives the link.
  LinkEvents* events = nullptr;  // Outlives the link.
  // The io threads of the same rank and poller. If there are none, the
  // thread that drives moves all bytes.
  std::shared_ptr<IoThreads> io;
};

// Frames over TCP connections, one per lane. The link sends in Poll(), and when
// a full connection has room again. It receives when the Poller reports input,
// and by itself on lanes that are looked at (unwatched_lanes.h).
// LaneReader and LaneWriter take the bytes of each lane apart and put them
// together. Large payloads are lent to io threads, if there are any
// (tcp_lane.h).
//
// When one connection ends, the peer has closed or died. The link then reads
// the other connections to their end, too, so that nothing that arrived is
// lost, and calls OnDown(). A callback may Close() the link, but must not
// destroy it.
class TcpLink final : public Link,
                      private Poller::Target,
                      private LaneReader::Sink,
                      private Loan::Lender {
 public:
  static Result<std::unique_ptr<TcpLink>> Create(TcpLinkArgs args);
  ~TcpLink() override;

  const char* kind() const override { return "tcp"; }
  const char* address() const override { return address_.c_str(); }
  int lanes() const override { return static_cast<int>(lanes_.size()); }
  int DataLane(std::uint64_t spread) override;
  void Send(int lane, const OutMessage& message) override;
  bool Poll() override;
  void Resume(int lane) override;
  int LaneToLook(std::uint64_t spread) const override;
  bool Look(int lane) override;
  bool WatchAll() override;
  void LineMeasured(int mbps) override;
  bool sockets_carry_data() const override { return true; }
  bool PrepareToSleep() override;
  void WakeUp() override {}
  std::size_t queued_messages() const override;
  void Close() override;

 private:
  explicit TcpLink(TcpLinkArgs args);

  // From Poller::Target and LaneReader::Sink.
  bool OnEvents(std::uint64_t cookie, std::uint32_t events) override;
  Result<LinkEvents::Landing> OnHeader(int lane, const Header& header) override;
  void OnMessage(int lane, const Header& header) override;

  // From Loan::Lender.
  void OnReturned(Loan* loan) override;
  void OnLentRead(TcpLane& lane);
  void OnLentWritten(TcpLane& lane);

  // Each returns whether anything moved, and may end in Fail().
  bool Read(TcpLane& lane);
  bool Write(TcpLane& lane);
  void CompleteWritten(TcpLane& lane);
  bool CompleteAll(const Status& why);

  // Handles the end of one connection. `error` is an errno, or 0 if it was
  // closed in good order.
  void EndLane(TcpLane& lane, int error);
  // One connection takes nothing more.
  void BreakLane(TcpLane& lane, int error);
  void EndBroken(TcpLane& lane);
  void StopWriting();
  void FailIfDrained();
  void Fail(const Status& why);
  void Disconnect();
  bool gone() const { return closed_ || down_; }
  Status Explain(StatusCode code, const std::string& what) const;

  const int peer_;
  const std::string address_;
  Poller* const poller_;
  LinkEvents* const events_;
  const std::shared_ptr<IoThreads> io_;  // May be null.
  std::vector<std::unique_ptr<TcpLane>> lanes_;
  std::unique_ptr<Rails> rails_;  // Null if all lanes share a network.

  // The lanes, as bits, that Poll() has to handle.
  std::uint64_t to_write_ = 0;
  std::uint64_t to_read_ = 0;
  UnwatchedLanes unwatched_;
  bool bye_ = false;     // The peer has said that it will close.
  bool writing_ = true;  // No lane has ended.
  bool cut_ = false;     // A lane ended in the middle of a message.
  Status cause_;         // Why the first lane ended.
  bool down_ = false;    // OnDown() has been called.
  bool closed_ = false;  // By Close(): no callback runs any more.
};

}  // namespace gradientflow
