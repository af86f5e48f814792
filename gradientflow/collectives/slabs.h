#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace gradientflow {

// Scratch memory that is used again and again, so that after the first few
// segments the executor allocates nothing. Sizes are rounded up to powers of
// two. What is not used any more goes back to the system with Trim().
// NOT thread-safe. Must outlive its slabs.
class Slabs {
 public:
  class Slab {
   public:
    Slab() = default;
    std::byte* data() const { return data_.get(); }
    bool empty() const { return data_ == nullptr; }

   private:
    friend class Slabs;
    std::unique_ptr<std::byte[]> data_;
    int order_ = 0;
  };

  Slab Take(std::size_t bytes) {
    Slab slab;
    slab.order_ = std::bit_width(std::max<std::size_t>(bytes, kLeast) - 1);
    FreeSlabs& free = free_[slab.order_];
    if (free.slabs.empty()) {
      // The 64 extra bytes let vector instructions read past the end of an
      // array.
      slab.data_.reset(new std::byte[(std::size_t{1} << slab.order_) + 64]);
    } else {
      slab.data_ = std::move(free.slabs.back());
      free.slabs.pop_back();
      free.unused = std::min(free.unused, free.slabs.size());
    }
    return slab;
  }

  void Give(Slab slab) {
    if (slab.empty()) return;
    free_[slab.order_].slabs.push_back(std::move(slab.data_));
  }

  // Gives back the memory that was free all the time since the last Trim().
  void Trim() {
    for (FreeSlabs& free : free_) {
      // The last one given is the first one taken, so these are at the bottom.
      free.slabs.erase(
          free.slabs.begin(),
          free.slabs.begin() + static_cast<std::ptrdiff_t>(free.unused));
      free.unused = free.slabs.size();
    }
  }

  // Bytes that are free at present. Tests see that they shrink.
  std::size_t free_bytes() const {
    std::size_t bytes = 0;
    for (std::size_t order = 0; order < free_.size(); ++order) {
      bytes += free_[order].slabs.size() << order;
    }
    return bytes;
  }

 private:
  struct FreeSlabs {
    std::vector<std::unique_ptr<std::byte[]>> slabs;
    // The fewest that there have been since the last Trim().
    std::size_t unused = 0;
  };

  static constexpr std::size_t kLeast = 4096;
  std::array<FreeSlabs, 64> free_;
};

}  // namespace gradientflow
