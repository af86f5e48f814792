#include "group.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace gft {

Group::Group(std::shared_ptr<Session> session)
    : session_(std::move(session)),
      id_(0),
      ranks_(session_->size()),
      rank_(session_->rank()) {
  std::iota(ranks_.begin(), ranks_.end(), 0);
}

Group::Group(std::shared_ptr<Session> session, uint32_t id,
             const std::vector<int32_t>& ranks)
    : session_(std::move(session)), id_(id), ranks_(ranks) {
  const auto mine = std::find(ranks_.begin(), ranks_.end(), session_->rank());
  rank_ = static_cast<int>(mine - ranks_.begin());
  const Session::Use use(*session_);
  Check(gf_comm_open_group(use, id_, ranks_.data(), ranks_.size()),
        "opening a group");
}

std::string Group::Description() const {
  constexpr size_t kNamed = 16;
  std::string text = "ranks";
  for (size_t i = 0; i < std::min(ranks_.size(), kNamed); ++i) {
    text += (i == 0 ? " " : ", ") + std::to_string(ranks_[i]);
  }
  if (ranks_.size() > kNamed) {
    text += " and " + std::to_string(ranks_.size() - kNamed) + " more";
  }
  return text;
}

void Group::Enter() {
  session_->CheckProcess();
  const std::lock_guard lock(mutex_);
  ++under_way_;
}

void Group::Leave() {
  if (session_->forked()) return;
  const std::lock_guard lock(mutex_);
  if (--under_way_ == 0 && waiting_ > 0) idle_.notify_all();
}

bool Group::WaitUntilIdle(std::chrono::milliseconds timeout) {
  if (session_->forked()) return true;
  std::unique_lock lock(mutex_);
  ++waiting_;
  const bool idle =
      idle_.wait_for(lock, timeout, [this] { return under_way_ == 0; });
  --waiting_;
  return idle;
}

void Group::Close() {
  if (session_->forked()) return;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true) || id_ == 0 || under_way_ > 0) return;
  }
  try {
    const Session::Use use(*session_);
    gf_comm_close_group(use, id_);
  } catch (const c10::Error&) {
    // The session is closed, and its groups with it.
  }
}

}  // namespace gft
