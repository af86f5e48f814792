#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gradientflow/collectives/collective.h"

namespace gradientflow::testing {

// A collective that keeps its calls until the test ends them.
class ManualCollective final : public Collective {
 public:
  struct Begun {
    CollectiveCall call;
    Done done;
    bool ended = false;
  };

  void Start(const CollectiveCall& call, Done done) override {
    calls.push_back({call, done});
  }
  bool Poll() override { return false; }
  std::size_t in_flight() const override {
    return static_cast<std::size_t>(
        std::count_if(calls.begin(), calls.end(),
                      [](const Begun& call) { return !call.ended; }));
  }
  bool Busy(GroupId, Channel) const override { return in_flight() > 0; }
  std::uint64_t bytes_sent(GroupId, Channel) const override { return bytes; }
  std::string OldestCall() const override { return {}; }

  // Fed calls only double their input. REQUIRES that it is there.
  void Finish(std::size_t i, std::size_t begin, std::size_t count) {
    const CollectiveCall& of = calls[i].call;
    ASSERT_LE(begin + count, of.feed->available());
    auto* values = static_cast<float*>(of.output);
    for (std::size_t j = begin; j < begin + count; ++j) values[j] *= 2.0F;
    of.feed->Finished(begin, count);
  }
  void End(std::size_t i, const Status& status = Status(),
           std::uint32_t flags = 0) {
    calls[i].ended = true;
    const Done done = calls[i].done;
    done(status, flags);
  }

  std::vector<Begun> calls;
  std::uint64_t bytes = 0;  // What bytes_sent() returns.
};

}  // namespace gradientflow::testing
