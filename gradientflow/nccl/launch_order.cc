#include "gradientflow/nccl/launch_order.h"

#include <algorithm>
#include <map>

namespace gradientflow {
namespace {

// Number of calls that may wait at a time without an allocation.
constexpr std::size_t kUsualCalls = 512;

struct Orders {
  Mutex mutex;
  std::map<std::uint64_t, std::weak_ptr<LaunchOrder>> by_device
      GF_GUARDED_BY(mutex);
};

}  // namespace

std::shared_ptr<LaunchOrder> LaunchOrder::Of(std::uint64_t device) {
  // Never destroyed: a communicator may be left behind as the process ends.
  static auto* const orders = new Orders;
  const MutexLock lock(orders->mutex);
  std::weak_ptr<LaunchOrder>& known = orders->by_device[device];
  std::shared_ptr<LaunchOrder> order = known.lock();
  if (order == nullptr) {
    order = std::make_shared<LaunchOrder>();
    known = order;
  }
  return order;
}

LaunchOrder::LaunchOrder() {
  const MutexLock lock(mutex_);
  line_.reserve(kUsualCalls);
}

void LaunchOrder::Enter(User user) {
  const MutexLock lock(mutex_);
  members_.push_back({user, false});
}

void LaunchOrder::Exit(User user) {
  const MutexLock lock(mutex_);
  std::erase_if(members_, [user](const Member& m) { return m.user == user; });
  std::erase(line_, user);
}

std::size_t LaunchOrder::users() const {
  const MutexLock lock(mutex_);
  return members_.size();
}

void LaunchOrder::Join(User user) {
  const MutexLock lock(mutex_);
  line_.push_back(user);
}

bool LaunchOrder::May(User user) {
  const MutexLock lock(mutex_);
  Find(user)->aside = false;
  return First() == user;
}

void LaunchOrder::Leave(User user) {
  const MutexLock lock(mutex_);
  const auto first = std::find(line_.begin(), line_.end(), user);
  if (first != line_.end()) line_.erase(first);
}

void LaunchOrder::StepAside(User user) {
  const MutexLock lock(mutex_);
  Find(user)->aside = true;
}

void LaunchOrder::Overtake(User user) {
  const MutexLock lock(mutex_);
  for (User first = First(); first != nullptr && first != user;
       first = First()) {
    Find(first)->aside = true;
  }
}

// There are two or a few.
LaunchOrder::Member* LaunchOrder::Find(User user) {
  return &*std::find_if(members_.begin(), members_.end(),
                        [user](const Member& m) { return m.user == user; });
}

LaunchOrder::User LaunchOrder::First() {
  for (const User user : line_) {
    if (!Find(user)->aside) return user;
  }
  return nullptr;
}

}  // namespace gradientflow
