#pragma once

#include <cstddef>

#include "gradientflow/base/clock.h"

namespace gradientflow {

// The rate of one way (a port) between two ranks, and from it the time until
// more bytes would have arrived, behind those that are already on that way. A
// side that has several ways gives each message to the one that is quickest for
// it, so each way gets as much as it carries. The driver's rate counts until
// one was measured.
//
//   Began() ─ bytes are on the way ─ Ended()
//      └──── a busy period: its bytes by its time is a sample of the rate
//
// Bytes take longer if the network is slow and if the peer is slow, so a sample
// includes both. A way that is too slow to be chosen gets a message once the
// queues of the others are long enough, and is then measured again.
class Throughput {
 public:
  // What the driver says; 0: nothing.
  explicit Throughput(double gbps) : rate_(gbps > 0 ? gbps * 1e9 / 8 : 1e9) {}

  void Began(std::size_t bytes, Clock::Time now) {
    if (on_way_ == 0) {
      began_ = now;
      carried_ = 0;
    }
    on_way_ += bytes;
  }
  void Ended(std::size_t bytes, Clock::Time now) {
    on_way_ -= bytes;
    carried_ += bytes;
    const bool enough = carried_ >= kSampleBytes;
    if (!enough && (on_way_ > 0 || carried_ < kLeastBytes)) return;
    if (now > began_) {
      const double sample =
          static_cast<double>(carried_) / Seconds(now - began_);
      rate_ = measured_ ? rate_ + (sample - rate_) * kWeight : sample;
      measured_ = true;
    }
    began_ = now;
    carried_ = 0;
  }

  double SecondsFor(std::size_t bytes) const {
    return static_cast<double>(on_way_ + bytes) / rate_;
  }

 private:
  // Less than that says more of latencies than of rates.
  static constexpr std::size_t kLeastBytes = std::size_t{64} << 10;
  // As much is a sample even if the way never gets idle.
  static constexpr std::size_t kSampleBytes = std::size_t{4} << 20;
  static constexpr double kWeight = 0.25;

  double rate_;  // Bytes per second.
  bool measured_ = false;
  std::size_t on_way_ = 0;
  std::size_t carried_ = 0;  // Since began_.
  Clock::Time began_{};
};

// Returns the place of the way that is quickest for `bytes`, by its
// SecondsFor(). Null ones are passed over. REQUIRES that there is one.
template <typename Ways>
std::size_t QuickestOf(const Ways& ways, std::size_t bytes) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < ways.size(); ++i) {
    if (ways[i] == nullptr) continue;
    if (ways[best] == nullptr ||
        ways[i]->SecondsFor(bytes) < ways[best]->SecondsFor(bytes)) {
      best = i;
    }
  }
  return best;
}

}  // namespace gradientflow
