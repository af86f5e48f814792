#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "gradientflow/collectives/executor.h"

namespace gradientflow {

// The executor as the owner of one group's gradient channel sees it. Calls are
// made in that group, and questions (ranks, bytes, whether it is busy) are
// answered for that group alone. NOT thread-safe, as its base says.
class GroupCollective final : public Collective {
 public:
  // `executor` is borrowed and must outlive this object. REQUIRES that `group`
  // is open, and stays open.
  GroupCollective(Executor& executor, GroupId group)
      : executor_(executor),
        group_(group),
        rank_(executor.FindGroup(group)->rank),
        size_(executor.FindGroup(group)->size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void Start(const CollectiveCall& call, Done done) override;
  bool Poll() override { return executor_.Poll(); }
  std::size_t in_flight() const override { return executor_.in_flight(); }
  bool Busy(Channel channel) const override {
    return executor_.Busy(group_, channel);
  }
  std::uint64_t bytes_sent(Channel channel) const override {
    return executor_.bytes_sent(group_, channel);
  }
  std::string OldestCall() const override { return executor_.OldestCall(); }

 private:
  Executor& executor_;
  const GroupId group_;
  const int rank_;
  const int size_;
};

}  // namespace gradientflow
