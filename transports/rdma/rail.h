#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/status.h"
#include "transports/poller.h"
#include "transports/rdma/card_memory.h"
#include "transports/rdma/choose.h"
#include "transports/rdma/retry_counter.h"
#include "transports/rdma/verbs_api.h"
#include "transports/remote_writes.h"

namespace gradientflow {

class QueuePair;

// What a rank has posted and seen, for reports and for tests that count.
struct RdmaStats {
  std::uint64_t data_writes = 0;     // That carry bytes of messages.
  std::uint64_t control_writes = 0;  // Everything below that is not data.
  std::uint64_t frames = 0;          // Messages that went through a ring,
  std::uint64_t requests = 0;        // or that only asked for a place there.
  std::uint64_t grants = 0;          // Places that were given to peers.
  std::uint64_t credits = 0;         // Messages with nothing but credits.
  std::uint64_t puts = 0;            // Placed messages.
  std::uint64_t notices = 0;         // Those that came.
  std::uint64_t bytes = 0;           // Of data.
};

struct RailArgs {
  std::shared_ptr<const VerbsApi> verbs;
  RdmaChoice choice;
  int links = 1;          // At most so many queue pairs,
  int receives = 0;       // each with at most so many (QueuePair::Create()).
  int traffic_class = 0;  // Of all packets; networks prefer some of them.
  // How long the card repeats a packet that is not acknowledged.
  double retry_seconds = 4;
};

// One port of a device, as this rank uses it:
//
//   queue pairs ─> completion queue ─> Poll() ─> owner of the queue pair
//                        │ if armed
//                        └> channel ─> Poller     (so that the rank may sleep)
//   device ─> asynchronous events ─> Poller ─> the queue pairs that they end
//
// Registered memory belongs to its protection domain. NOT thread-safe: driven
// by the thread that drives the fabric.
class Rail final : public WriteCounter, private Poller::Target {
 public:
  // Opens the device. Errors name it and say what to do about them.
  static Result<std::shared_ptr<Rail>> Open(RailArgs args);
  ~Rail() override;
  Rail(const Rail&) = delete;
  Rail& operator=(const Rail&) = delete;

  // Wakes the poller's thread when something has arrived, as long as there are
  // queue pairs. `poller` outlives these. To be called when all of them are
  // made, since a pair that cannot be made may have been the only one so far.
  Status Start(Poller* poller);

  const VerbsApi& verbs() const { return *args_.verbs; }
  ibv_pd* pd() const { return pd_; }
  ibv_cq* cq() const { return cq_; }
  const RailArgs& args() const { return args_; }
  const RdmaPort& port() const { return args_.choice.port; }
  // "mlx5_0:1"
  const std::string& name() const { return name_; }
  RdmaStats& stats() { return stats_; }
  RemoteWrites Count() override;

  // What the card reaches of the memory that others own.
  CardReach& reach() { return reach_; }
  // Where messages are copied to that leave from other memory, or go there.
  CardSlots& staging() { return staging_; }
  CardSlots& landings() { return landings_; }

  // Takes what the completion queue has, a bounded number at a time, and posts
  // what its owners wrote meanwhile. Returns whether there was anything.
  bool Poll();
  // Asks to be woken by the next completion. Returns false if there is one
  // already, which the next Poll() takes.
  bool PrepareToSleep();

  // For queue pairs. An index is never given twice, since completions of a pair
  // that was destroyed may still come.
  std::uint32_t Add(QueuePair* pair);
  void Remove(std::uint32_t index);
  // The pair has work requests to post.
  void SetDirty(QueuePair* pair) { dirty_.push_back(pair); }
  void Flush();
  // The other ports of this rank. A completion of this one may make an owner
  // write by another, which is then posted when this one has been polled.
  void SetOthers(std::vector<std::weak_ptr<Rail>> others) {
    others_ = std::move(others);
  }
  // Ends the pairs for which the device reports an error.
  bool TakeAsyncEvents();
  // Whether this is the first pair that there is: its owner polls the rail for
  // all.
  bool IsFirst(const QueuePair* pair) const {
    return pair != nullptr && pair == first_;
  }

 private:
  explicit Rail(RailArgs args);
  void Stop();
  Status Init();
  Status MakeSlots();
  Status Failure(const std::string& call, int error) const;
  bool OnEvents(std::uint64_t cookie, std::uint32_t events) override;
  void OnAsyncEvent(ibv_event_type type, const ibv_qp* pair, int port);
  void BreakWithoutAddress(const std::string& why);
  void Dispatch(const ibv_wc& completion);
  void BreakAll(const std::string& why);

  const RailArgs args_;
  std::string name_;
  RdmaStats stats_;
  RetryCounter retries_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* cq_ = nullptr;
  unsigned unacknowledged_ = 0;       // Events of the channel.
  Poller* poller_ = nullptr;          // Null until Start().
  std::vector<QueuePair*> pairs_;     // By index; null if destroyed.
  const QueuePair* first_ = nullptr;  // Of those that are not,
  std::size_t live_ = 0;              // and how many these are.
  std::vector<QueuePair*> dirty_;
  std::vector<std::weak_ptr<Rail>> others_;
  bool polling_ = false;
  ibv_wc seen_ = {};  // A completion that PrepareToSleep() has come upon.
  bool has_seen_ = false;
  CardReach reach_;
  CardSlots staging_;
  CardSlots landings_;
};

}  // namespace gradientflow
