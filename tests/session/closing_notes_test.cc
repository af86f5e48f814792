#include "gradientflow/session/closing_notes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/manual_clock.h"
#include "transports/link.h"
#include "transports/link_source.h"
#include "transports/poller.h"

// The notes of many ranks, whose fabrics are driven in turn on one thread over
// a network that makes links when they are asked for.
namespace gradientflow {
namespace {

using Others = ClosingNotes::Others;
using Headers = std::deque<Header>;

constexpr GroupId kNotes = 3;
constexpr std::uint64_t kSteps = 5;  // That were finished.

// Carries messages without payload.
class NumberLink final : public Link {
 public:
  NumberLink(int peer, std::shared_ptr<Headers> in,
             std::shared_ptr<Headers> out, LinkEvents* events)
      : peer_(peer),
        in_(std::move(in)),
        out_(std::move(out)),
        events_(events) {}
  ~NumberLink() override { NumberLink::Close(); }

  const char* kind() const override { return "numbers"; }
  const char* address() const override { return "here"; }
  int lanes() const override { return 1; }
  void Send(int, const OutMessage& message) override {
    out_->push_back(message.header);
    sent_.push_back(message.done);
  }
  bool Poll() override {
    const bool moves = !sent_.empty() || !in_->empty();
    for (const Done& done : std::exchange(sent_, {})) done(Status());
    while (!in_->empty()) {
      const Header header = in_->front();
      in_->pop_front();
      EXPECT_TRUE(events_->OnHeader(peer_, 0, header).ok());
      events_->OnMessage(peer_, 0, header);
    }
    return moves;
  }
  void Resume(int) override {}
  bool PrepareToSleep() override { return in_->empty(); }
  void WakeUp() override {}
  std::size_t queued_messages() const override { return sent_.size(); }
  void Close() override { sent_.clear(); }

 private:
  const int peer_;
  const std::shared_ptr<Headers> in_;
  const std::shared_ptr<Headers> out_;
  LinkEvents* const events_;
  std::vector<Done> sent_;
};

struct Network {
  struct End {
    int peer = 0;
    std::shared_ptr<Headers> in;
    std::shared_ptr<Headers> out;
  };
  explicit Network(int size) : made(static_cast<std::size_t>(size)) {}
  std::set<std::pair<int, int>> pairs;  // That have asked for a link.
  std::vector<std::vector<End>> made;   // By rank: links to be taken.
};

class Source final : public LinkSource {
 public:
  Source(int rank, Network* network, Fabric* fabric)
      : rank_(rank), network_(network), fabric_(fabric) {}

  Status Learn(const std::vector<std::string>&) override { return Status(); }
  void Dial(int peer) override {
    if (!network_->pairs.insert(std::minmax(rank_, peer)).second) return;
    auto there = std::make_shared<Headers>();
    auto back = std::make_shared<Headers>();
    made(rank_).push_back({peer, back, there});
    made(peer).push_back({rank_, there, back});
  }
  std::string AddressOf(int) const override { return "here"; }
  std::string TroubleWith(int) const override { return ""; }
  bool Poll() override {
    const std::vector<Network::End> ends = std::exchange(made(rank_), {});
    for (const Network::End& end : ends) {
      static_cast<LinkSource::Sink*>(fabric_)->OnLink(
          end.peer,
          std::make_unique<NumberLink>(end.peer, end.in, end.out, fabric_));
    }
    return !ends.empty();
  }
  bool busy() const override { return false; }
  std::chrono::nanoseconds Patience() const override {
    return std::chrono::seconds(1);
  }

 private:
  std::vector<Network::End>& made(int rank) {
    return network_->made[static_cast<std::size_t>(rank)];
  }

  const int rank_;
  Network* const network_;
  Fabric* const fabric_;
};

class Ranks {
 public:
  explicit Ranks(int size) : size_(size), network_(size) {
    for (int r = 0; r < size; ++r) {
      fabrics_.push_back(std::make_unique<Fabric>(
          r, size, clock_, Poller::Create().value(), FabricOptions()));
      Fabric* const fabric = fabrics_.back().get();
      fabric->Connect(
          std::vector<std::unique_ptr<Link>>(static_cast<std::size_t>(size)),
          std::make_unique<Source>(r, &network_, fabric));
      CallGroup group;
      group.rank = r;
      group.size = size;
      notes_.push_back(std::make_unique<ClosingNotes>(*fabric, group, kNotes));
    }
  }
  ClosingNotes& notes(int rank) {
    return *notes_[static_cast<std::size_t>(rank)];
  }
  // What all the ranks that close inside step kSteps find out, once nothing
  // moves any more.
  std::set<Others> AskAll(const std::vector<int>& inside) {
    std::set<Others> answers;
    // An answer may tell others something.
    for (int idle = 0; idle < 2; ++idle) {
      answers.clear();
      for (const auto& fabric : fabrics_) {
        if (fabric->Poll()) idle = -1;
      }
      for (const int r : inside) answers.insert(notes(r).Ask(kSteps));
    }
    return answers;
  }
  std::size_t links() const { return network_.pairs.size(); }
  int rounds() const {
    return std::bit_width(static_cast<unsigned>(size_) - 1U);
  }

 private:
  const int size_;
  Network network_;
  ManualClock clock_;
  std::vector<std::unique_ptr<Fabric>> fabrics_;
  std::vector<std::unique_ptr<ClosingNotes>> notes_;
};

class Closing : public ::testing::TestWithParam<int> {
 protected:
  // All ranks close inside the step, but for `odd`.
  void CloseAllBut(int odd) {
    for (int r = 0; r < size_; ++r) {
      if (r == odd) continue;
      inside_.push_back(r);
      ranks_.notes(r).Tell(kSteps, true);
    }
  }
  const int size_ = GetParam();
  Ranks ranks_{size_};
  std::vector<int> inside_;
};

TEST_P(Closing, TakesFewLinksAndEndsWithTheLastOne) {
  const int last = size_ / 3;
  CloseAllBut(last);
  if (size_ > 1) {
    EXPECT_EQ(ranks_.AskAll(inside_), std::set{Others::kAwaited});
  }
  inside_.push_back(last);
  ranks_.notes(last).Tell(kSteps, true);
  EXPECT_EQ(ranks_.AskAll(inside_), std::set{Others::kInside});
  EXPECT_LE(ranks_.links(), static_cast<std::size_t>(size_ * ranks_.rounds()));
}

TEST_P(Closing, AllHearOfARankThatHasGoneWithoutTheStep) {
  if (size_ == 1) return;
  const int gone = size_ / 2;
  CloseAllBut(gone);
  EXPECT_EQ(ranks_.AskAll(inside_), std::set{Others::kAwaited});
  ranks_.notes(gone).Tell(kSteps, false);
  EXPECT_EQ(ranks_.AskAll(inside_), std::set{Others::kGone});
  EXPECT_LE(ranks_.links(), static_cast<std::size_t>(size_ * ranks_.rounds()));
}

TEST_P(Closing, WhoIsPastTheStepAwaitsNobody) {
  if (size_ == 1) return;
  for (const bool inside : {false, true}) {
    Ranks ranks(size_);
    std::vector<int> others;
    ranks.notes(size_ - 1).Tell(kSteps + 1, inside);
    for (int r = 0; r + 1 < size_; ++r) {
      others.push_back(r);
      ranks.notes(r).Tell(kSteps, true);
    }
    EXPECT_EQ(ranks.AskAll(others), std::set{Others::kInside});
    if (!inside) continue;
    EXPECT_EQ(ranks.notes(size_ - 1).Ask(kSteps + 1), Others::kGone);
  }
}

TEST_P(Closing, ARankThatWaitsIsToldWhoHasClosed) {
  if (size_ == 1) return;
  ranks_.notes(0).Tell(kSteps, true);
  EXPECT_EQ(ranks_.AskAll({0}), std::set{Others::kAwaited});
  EXPECT_TRUE(ranks_.notes(1).Check(kSteps, false).ok());
  EXPECT_TRUE(ranks_.notes(1)
                  .Check(kSteps, true)
                  .message()
                  .starts_with("rank 0 has closed its session after 5 steps"));
}

INSTANTIATE_TEST_SUITE_P(Sizes, Closing,
                         ::testing::Values(1, 2, 3, 5, 8, 65, 128, 256));

}  // namespace
}  // namespace gradientflow
