#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace gradientflow {

// Scratch memory that is used again and again, so that after the first few
// segments the executor allocates nothing. Sizes are rounded up to powers of
// two. NOT thread-safe. Must outlive its slabs.
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
    auto& free = free_[slab.order_];
    if (free.empty()) {
      // The 64 extra bytes let vector instructions read past the end of an
      // array.
      slab.data_.reset(new std::byte[(std::size_t{1} << slab.order_) + 64]);
    } else {
      slab.data_ = std::move(free.back());
      free.pop_back();
    }
    return slab;
  }

  void Give(Slab slab) {
    if (!slab.empty()) free_[slab.order_].push_back(std::move(slab.data_));
  }

 private:
  static constexpr std::size_t kLeast = 4096;
  std::array<std::vector<std::unique_ptr<std::byte[]>>, 64> free_;
};

}  // namespace gradientflow
