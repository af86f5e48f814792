#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace gradientflow {

// A queue that allocates nothing once it has had its greatest length, unlike
// std::deque, which allocates every few items. NOT thread-safe.
template <typename T>
class GrowingQueue {
 public:
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  // REQUIRES !empty(), as does pop_front().
  T& front() { return items_[first_]; }

  void push_back(T item) {
    if (size_ == items_.size()) Grow();
    items_[(first_ + size_++) % items_.size()] = std::move(item);
  }
  T pop_front() {
    T item = std::exchange(items_[first_], T());
    first_ = (first_ + 1) % items_.size();
    --size_;
    return item;
  }

 private:
  void Grow() {
    std::vector<T> more(2 * items_.size() + 4);
    for (std::size_t i = 0; i < size_; ++i) {
      more[i] = std::move(items_[(first_ + i) % items_.size()]);
    }
    items_ = std::move(more);
    first_ = 0;
  }

  std::vector<T> items_;
  std::size_t first_ = 0;
  std::size_t size_ = 0;
};

}  // namespace gradientflow
