#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace gradientflow {

// Bounds the memory that a rank gives to early messages, which arrive before
// their receive is posted. Each peer has a credit: the bytes that it may send
// unasked. The credit comes back when a receive has taken them. A message that
// does not fit in the credit is announced, and sent when it is called for. So
// no peer can use up memory that another one needs, and the credits of all
// peers together never exceed the rank's budget.
//
// Half of the budget is divided among the peers. The other half is a reserve,
// from which a peer gets further shares while it waits only for credit.
//
// The ranks of a job must have the same budget. NOT thread-safe.

// What a message takes of a credit: its payload, and the memory of its entry.
// An empty message takes nothing, since a rank must be able to tell a number at
// any time.
constexpr std::uint64_t EarlyCost(std::uint64_t payload_bytes) {
  constexpr std::uint64_t kEntryBytes = 256;
  return payload_bytes == 0 ? 0 : payload_bytes + kEntryBytes;
}

class EarlyBudget {
 public:
  EarlyBudget(std::size_t bytes, int peers)
      : share_(peers > 0 ? bytes / 2 / static_cast<std::size_t>(peers) : 0),
        reserve_(bytes / 2) {}

  // The credit of each peer in the beginning.
  std::size_t share() const { return share_; }
  // Returns the bytes of one more share, or what is left of the reserve.
  std::size_t TakeFromReserve() {
    const std::size_t bytes = std::min(share_, reserve_);
    reserve_ -= bytes;
    return bytes;
  }

 private:
  std::size_t share_;
  std::size_t reserve_;
};

// The sender's side of a credit.
class CreditToSend {
 public:
  explicit CreditToSend(std::size_t bytes = 0) : left_(bytes) {}

  // Returns whether a message may go unasked; it then counts as sent.
  bool Spend(std::uint64_t payload_bytes) {
    const std::uint64_t cost = EarlyCost(payload_bytes);
    if (cost > left_) return false;
    left_ -= cost;
    return true;
  }
  // Returns false if the peer cannot have that many bytes to give, because no
  // credit exceeds `budget_bytes`.
  bool Add(std::uint64_t bytes, std::size_t budget_bytes) {
    if (bytes > budget_bytes || left_ > budget_bytes - bytes) return false;
    left_ += bytes;
    return true;
  }
  std::uint64_t left() const { return left_; }

 private:
  std::uint64_t left_;
};

// The receiver's side. It gathers the bytes that it gives back, so that small
// messages cost few additional ones.
class CreditToReceive {
 public:
  explicit CreditToReceive(std::size_t bytes = 0) : limit_(bytes) {}

  // A message comes unasked. Returns false if that exceeds the credit.
  bool Charge(std::uint64_t payload_bytes) {
    const std::uint64_t cost = EarlyCost(payload_bytes);
    if (cost > limit_ - used_) return false;
    used_ += cost;
    return true;
  }
  // The message has been taken. Returns the bytes to give back to the peer at
  // once; often 0. REQUIRES a message that was charged.
  std::uint64_t Release(std::uint64_t payload_bytes) {
    returns_ += EarlyCost(payload_bytes);
    if (returns_ < limit_ / 2) return 0;
    const std::uint64_t bytes = returns_;
    used_ -= bytes;
    returns_ = 0;
    return bytes;
  }
  // Returns whether the message could come unasked if nothing else had.
  bool Fits(std::uint64_t payload_bytes) const {
    return EarlyCost(payload_bytes) <= limit_;
  }
  void Grow(std::size_t bytes) { limit_ += bytes; }
  std::uint64_t limit() const { return limit_; }

 private:
  std::uint64_t limit_;
  std::uint64_t used_ = 0;     // Sent, and not given back.
  std::uint64_t returns_ = 0;  // Of those: taken by receives.
};

}  // namespace gradientflow
