#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/status.h"
#include "transports/rdma/rail.h"
#include "transports/rdma/verbs_api.h"
#include "transports/remote_places.h"

namespace gradientflow {

// What one end of a connection has to know about the other.
struct RdmaAddress {
  std::uint32_t number = 0;  // Of its queue pair.
  std::uint32_t psn = 0;     // Its first packet; random.
  std::uint16_t lid = 0;
  int mtu = 0;  // In bytes.
  RdmaGid gid;
};

// A reliable connection to one peer. Work requests are posted when Flush()
// comes, all with one call, and only the last one of them is signalled: its
// completion says that those before it are done, too. A signalled one after
// each batch also means that nothing is ever left unaccounted for.
//
//   Write() ─> batch ─Flush()─> card ─> wire
//                                 └> completion ─> OnWritten(cookie)...
//
// NOT thread-safe.
class QueuePair {
 public:
  // A callback may destroy the queue pair. Rail::Poll() makes all of them;
  // OnBroken() may also come from Flush() of any pair of the rail.
  class Owner {
   public:
    virtual ~Owner() = default;
    // A write of the peer with this immediate number has arrived; it had
    // `bytes` bytes.
    virtual void OnImmediate(std::uint32_t immediate, std::uint32_t bytes) = 0;
    // The peer's card has the bytes of the write with this cookie: what was
    // lent may change.
    virtual void OnWritten(std::uint64_t cookie) = 0;
    // The connection is of no more use. At most once.
    virtual void OnBroken(const Status& why) = 0;
  };

  struct WriteArgs {
    // Appends a piece of memory, at most kMostPutPieces.
    void Add(const void* data, std::size_t bytes, std::uint32_t local_key) {
      if (bytes == 0) return;
      pieces[static_cast<std::size_t>(count++)] = {
          reinterpret_cast<std::uintptr_t>(data),
          static_cast<std::uint32_t>(bytes), local_key};
    }
    // In the card's own format, so that they are only copied: `count` pieces,
    // which are written one behind the other.
    std::array<ibv_sge, kMostPutPieces> pieces = {};
    int count = 0;
    RemotePlace there;  // Ignored without bytes.
    std::optional<std::uint32_t> immediate;
    std::uint64_t cookie = 0;  // 0: nobody is told when it ends.
  };

  // The most work requests that may be under way.
  static constexpr int kDepth = 128;
  // The peer may send `receives` immediate numbers before they are taken.
  static Result<std::unique_ptr<QueuePair>> Create(Rail* rail, Owner* owner,
                                                   int receives);
  // Completions that such a pair can have outstanding.
  static int MostCompletions(int receives);
  // From then on the card touches no memory for this connection.
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  // This end; without a GID, which depends on the peer's.
  RdmaAddress address() const;
  // Ready to receive and to send. `mine` is this rank's address for this peer.
  Status Connect(const RdmaGid& mine, const RdmaAddress& peer);

  // Number of work requests that can be written now.
  int room() const { return kDepth - static_cast<int>(written_ - completed_); }
  // REQUIRES room() > 0.
  void Write(const WriteArgs& args);
  void Flush() {
    if (dirty()) Post();
  }
  // Whether the peer's card has everything.
  bool idle() const { return written_ == completed_; }

  // From the rail.
  // The index of the pair that a completion is of; see Rail::Add().
  static std::uint32_t IndexOf(const ibv_wc& completion) {
    return static_cast<std::uint32_t>((completion.wr_id & ~kReceiveBit) >>
                                      kIndexShift);
  }
  void OnCompletion(const ibv_wc& completion);
  void Break(const Status& why);
  bool Is(const ibv_qp* pair) const { return pair == pair_; }
  // Whether the port still has the address from which this pair sends.
  bool HasAddress(const RdmaPort& now) const;
  // The subject of the texts of errors: whose connection it is, and to whom.
  void SetName(std::string name) { name_ = std::move(name); }
  // Whether something has been written and not posted.
  bool dirty() const { return batched_ > 0; }
  // Whether the pair has been ended by something that has not been named.
  bool flushed() const { return flushed_; }

 private:
  // A wr_id: whether it is a receive, the index of the pair, and the low bits
  // of the number of the write.
  static constexpr int kIndexShift = 32;
  static constexpr std::uint64_t kReceiveBit = std::uint64_t{1} << 63;

  struct Request {
    ibv_send_wr request;
    std::array<ibv_sge, kMostPutPieces> pieces;
  };
  struct Lent {
    std::uint64_t write = 0;
    std::uint64_t cookie = 0;
  };

  QueuePair(Rail* rail, Owner* owner, int receives);
  Status Modify(ibv_qp_attr* attributes, int mask, const char* to);
  void Post();
  Status PostReceives(int count);
  ibv_qp_attr PathTo(const RdmaGid& mine, const RdmaAddress& peer) const;
  void OnError(const ibv_wc& completion);
  void OnSent(std::uint32_t low);
  void OnReceived(const ibv_wc& completion);

  Rail* const rail_;
  Owner* const owner_;
  const int receives_;  // Posted, less those that wait for their batch.
  std::string name_;
  std::optional<RdmaGid> mine_;  // Once connected.
  ibv_qp* pair_ = nullptr;
  std::uint32_t index_ = 0;
  std::uint32_t psn_ = 0;
  int received_ = 0;  // Receives to be posted again.
  std::uint64_t written_ = 0;
  std::uint64_t completed_ = 0;
  std::array<Lent, kDepth> lent_;  // A ring, as long as there can be writes.
  std::uint64_t lent_first_ = 0;
  std::uint64_t lent_end_ = 0;
  bool* destroyed_ = nullptr;  // Where to say so, while a callback runs.
  // One request for each write that can be under way. The first batched_ of
  // them wait to be posted. Fields that are the same for all writes are set
  // once.
  std::vector<Request> requests_;
  std::size_t batched_ = 0;
  bool broken_ = false;
  bool flushed_ = false;
};

}  // namespace gradientflow
