#pragma once

#include <cstddef>
#include <type_traits>
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
  const T& front() const { return items_[first_]; }
  // The item that `index` others come before. REQUIRES index < size().
  T& operator[](std::size_t index) { return items_[PlaceOf(index)]; }
  const T& operator[](std::size_t index) const {
    return items_[PlaceOf(index)];
  }

  void push_back(T item) {
    if (size_ == items_.size()) Grow();
    items_[PlaceOf(size_++)] = std::move(item);
  }
  T pop_front() {
    T item = std::move(items_[first_]);
    // What the item owns is given back now, and not when its place is used
    // again.
    if constexpr (!std::is_trivially_destructible_v<T>) items_[first_] = T();
    first_ = PlaceOf(1);
    --size_;
    return item;
  }
  // Keeps the memory.
  void clear() {
    while (!empty()) pop_front();
  }

 private:
  // The length of items_ is a power of two, as divisions are slow.
  std::size_t PlaceOf(std::size_t index) const {
    return (first_ + index) & (items_.size() - 1);
  }
  void Grow() {
    std::vector<T> more(items_.empty() ? 4 : 2 * items_.size());
    for (std::size_t i = 0; i < size_; ++i) more[i] = std::move((*this)[i]);
    items_ = std::move(more);
    first_ = 0;
  }

  std::vector<T> items_;
  std::size_t first_ = 0;
  std::size_t size_ = 0;
};

}  // namespace gradientflow
