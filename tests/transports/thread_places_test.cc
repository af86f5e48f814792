#include "tests/transports/thread_places.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

// The network that tests of placed messages rely on: it keeps the promises of
// RemotePlaces, and sees what does not keep to them.
namespace gradientflow::testing {
namespace {

constexpr std::size_t kSlots = 8192;

class Notices final : public RemotePlaces::Sink {
 public:
  void OnNotice(int peer, std::uint32_t notice) override {
    of[peer].push_back(notice);
  }
  std::map<int, std::vector<std::uint32_t>> of;
};

void Ended(void* self, std::uint64_t, std::uint32_t, const Status&) {
  ++*static_cast<int*>(self);
}

TEST(ThreadPlaces, BringDataAndThenItsNoticeInAnyOrder) {
  bool overtaken = false;
  bool reordered = false;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    PlacesNetwork network(3, kSlots, seed);
    Notices notices;
    network.places(2).SetSink(&notices);
    for (const int r : {0, 1}) network.places(r).SetSink(&notices);
    int ended = 0;
    for (std::uint32_t i = 0; i < 30; ++i) {
      for (const int from : {0, 1}) {
        ThreadPlaces& places = network.places(from);
        std::byte* slots = places.slots().data + i * 16;
        std::memset(slots, static_cast<int>(i) + 100 * from, 16);
        const ConstBufferView pieces[] = {{slots, 5, {}}, {slots + 5, 11, {}}};
        places.Put(2, pieces, places.SlotsOf(2).At(i * 16 + 4096 * from), i,
                   {&Ended, &ended, 0});
      }
    }
    std::size_t seen = 0;
    while (ended < 60 || seen < 60) {
      for (const int r : {0, 1, 2}) network.places(r).Poll();
      seen = notices.of[0].size() + notices.of[1].size();
      overtaken |= notices.of[1].size() > notices.of[0].size() + 3;
      for (const int from : {0, 1}) {
        reordered |=
            !std::is_sorted(notices.of[from].begin(), notices.of[from].end());
        for (const std::uint32_t i : notices.of[from]) {
          const std::byte* at = network.places(2).slots().data + i * 16 +
                                static_cast<std::size_t>(4096 * from);
          for (int b = 0; b < 16; ++b) {
            ASSERT_EQ(static_cast<int>(at[b]),
                      static_cast<int>(i) + 100 * from);
          }
        }
      }
    }
    for (const int from : {0, 1}) {
      std::sort(notices.of[from].begin(), notices.of[from].end());
      for (std::uint32_t i = 0; i < 30; ++i) {
        EXPECT_EQ(notices.of[from][i], i) << "each once";
      }
    }
    EXPECT_EQ(network.error(), "");
    EXPECT_EQ(network.places(0).counts().puts, 30U);
    EXPECT_EQ(network.places(0).counts().bytes, 30U * 16);
    EXPECT_EQ(network.places(1).counts().done, 30U);
    EXPECT_EQ(network.places(2).counts().notices, 60U);
  }
  EXPECT_TRUE(overtaken) << "one pair is as fast as the other";
  EXPECT_TRUE(reordered);
}

// What the network says of a Put() of rank 0 to rank 1.
std::string ErrorOf(
    const std::function<void(ThreadPlaces&, ThreadPlaces&)>& put) {
  PlacesNetwork network(2, kSlots, 3);
  Notices notices;
  network.places(1).SetSink(&notices);
  put(network.places(0), network.places(1));
  while (network.undelivered(0, 1) > 0) network.places(0).Poll();
  network.places(1).Tell();
  const std::string error = network.error();
  EXPECT_EQ(notices.of[0].empty(), !error.empty()) << error;
  return error;
}

void PutOne(ThreadPlaces& from, const void* data, std::size_t bytes,
            RemotePlace there, std::uint32_t notice = 7) {
  const ConstBufferView pieces[] = {
      {static_cast<const std::byte*>(data), bytes, {}}};
  from.Put(1, pieces, there, notice, {});
}

TEST(ThreadPlaces, SeeEveryAccessThatIsWrong) {
  std::vector<std::byte> memory(100);
  using Places = ThreadPlaces;
  EXPECT_EQ(ErrorOf([&](Places& from, Places& to) {
              from.Register(memory.data(), 100);
              to.Register(memory.data(), 100);
              PutOne(from, memory.data() + 1, 9, to.NameOf(&memory[91]));
            }),
            "");
  EXPECT_NE(ErrorOf([&](Places& from, Places& to) {
              from.Register(memory.data(), 100);
              to.Register(memory.data(), 100);
              PutOne(from, memory.data(), 10, to.NameOf(&memory[91]));
            }).find("outside of its memory"),
            std::string::npos);
  EXPECT_NE(ErrorOf([&](Places& from, Places& to) {
              PutOne(from, from.slots().data, 1,
                     {to.SlotsOf(1).address, to.SlotsOf(1).key + 1});
            }).find("outside of its memory"),
            std::string::npos);
  EXPECT_NE(ErrorOf([&](Places& from, Places& to) {
              PutOne(from, memory.data(), 10, to.SlotsOf(1));
            }).find("not registered"),
            std::string::npos);
  EXPECT_NE(ErrorOf([&](Places& from, Places& to) {
              from.Register(memory.data(), 100);
              PutOne(from, memory.data(), 10, to.SlotsOf(1));
              from.Deregister(memory.data());
            }).find("that is lent"),
            std::string::npos);
  EXPECT_NE(ErrorOf([&](Places& from, Places& to) {
              PutOne(from, from.slots().data, 1, to.SlotsOf(1),
                     1U << kNoticeBits);
            }).find("puts 1 pieces"),
            std::string::npos);
}

// Delivered is not done.
TEST(ThreadPlaces, LendMemoryUntilItsDoneHasRun) {
  std::vector<std::byte> memory(100);
  for (const bool done : {false, true}) {
    PlacesNetwork network(2, kSlots, 3);
    Notices notices;
    int ended = 0;
    ThreadPlaces& from = network.places(0);
    from.Register(memory.data(), 100);
    const ConstBufferView pieces[] = {{memory.data(), 100, {}}};
    from.Put(1, pieces, from.SlotsOf(1), 1, {&Ended, &ended, 0});
    while (network.undelivered(0, 1) > 0) network.places(1).Poll();
    if (done) {
      from.SetSink(&notices);
      from.Tell(/*all=*/true);
    }
    EXPECT_EQ(ended, done ? 1 : 0);
    from.Deregister(memory.data());
    EXPECT_EQ(network.error().empty(), done) << network.error();
  }
}

TEST(ThreadPlaces, SeeThatSlotsChangeWhileTheyAreLent) {
  for (const bool change : {false, true}) {
    PlacesNetwork network(2, kSlots, 3);
    Notices notices;
    int ended = 0;
    ThreadPlaces& from = network.places(0);
    const ConstBufferView pieces[] = {{from.slots().data + 8, 100, {}}};
    from.Put(1, pieces, from.SlotsOf(1), 1, {&Ended, &ended, 0});
    while (network.undelivered(0, 1) > 0) network.places(1).Poll();
    if (change) from.slots().data[107] = std::byte{1};
    from.SetSink(&notices);
    from.Tell(/*all=*/true);
    EXPECT_EQ(ended, 1);
    EXPECT_EQ(network.error().empty(), !change) << network.error();
  }
}

TEST(ThreadPlaces, TouchNothingOnceThePairIsClosed) {
  for (const bool by_sender : {false, true}) {
    PlacesNetwork network(2, kSlots, 3);
    Notices notices;
    network.places(1).SetSink(&notices);
    ThreadPlaces& from = network.places(0);
    from.slots().data[0] = std::byte{1};
    PutOne(from, from.slots().data, 1, from.SlotsOf(1));
    if (by_sender) {
      from.Close(1);
    } else {
      network.places(1).Close(0);
    }
    PutOne(from, from.slots().data, 1, from.SlotsOf(1));
    for (int i = 0; i < 50; ++i) network.places(1).Poll();
    EXPECT_TRUE(notices.of[0].empty());
    EXPECT_EQ(network.places(1).slots().data[0], std::byte{0});
    EXPECT_EQ(network.undelivered(0, 1), 0U);
  }
}

}  // namespace
}  // namespace gradientflow::testing
