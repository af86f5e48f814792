#pragma once

#include <integrations/c/gradientflow.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "hooks.h"
#include "session.h"

namespace gft {

// Some or all ranks of a session, and the operations under way in the group,
// which keep it alive. Thread-safe. In a fork of the session's process no
// operation begins, and nothing is waited for.
class Group {
 public:
  // The group of all ranks.
  explicit Group(std::shared_ptr<Session> session);
  // Rank i of the group is the session's rank ranks[i]. See
  // gf_comm_open_group().
  Group(std::shared_ptr<Session> session, uint32_t id,
        const std::vector<int32_t>& ranks);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  Session& session() const { return *session_; }
  uint32_t id() const { return id_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  // The session's ranks, in the group's order.
  const std::vector<int32_t>& ranks() const { return ranks_; }
  // "ranks 0, 2 and 5".
  std::string Description() const;

  Hooks& hooks() { return hooks_; }
  // Called around each operation.
  void Enter();
  void Leave();
  // Returns whether no operation is under way, or all ended in time.
  bool WaitUntilIdle(std::chrono::milliseconds timeout);
  // Removes the group from the session. If operations are under way, it stays
  // until the session closes, and they end as usual.
  void Close();

 private:
  const std::shared_ptr<Session> session_;
  const uint32_t id_;
  std::vector<int32_t> ranks_;
  int rank_ = 0;
  Hooks hooks_;
  std::mutex mutex_;
  std::condition_variable idle_;
  int under_way_ = 0;
  int waiting_ = 0;
  bool closed_ = false;
};

}  // namespace gft
