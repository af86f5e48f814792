#include "transports/rdma/card_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/rdma/fake_verbs.h"

// Memory that the card reaches: how it is mapped, and what is registered.
namespace gradientflow {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kPage = 4096;

// The line of /proc/self/maps about this address.
std::string MappingOf(const void* data) {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  while (std::getline(maps, line)) {
    std::size_t end = 0;
    const std::uintptr_t first = std::stoull(line, &end, 16);
    const std::uintptr_t last = std::stoull(line.substr(end + 1), nullptr, 16);
    if (at >= first && at < last) return line;
  }
  return {};
}

TEST(CardMemory, IsSharedZeroedWholePages) {
  for (const std::size_t bytes :
       {std::size_t{1}, kPage - 1, kPage, kPage + 1, std::size_t{3} << 20}) {
    const auto mapped = CardMemory::Map(bytes);
    ASSERT_TRUE(mapped.ok()) << mapped.status().ToString();
    const CardMemory& memory = mapped.value();
    EXPECT_GE(memory.bytes(), bytes);
    EXPECT_EQ(memory.bytes() % kPage, 0U);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data()) % kPage, 0U);
    EXPECT_TRUE(std::all_of(memory.data(), memory.data() + memory.bytes(),
                            [](std::byte b) { return b == std::byte{0}; }));
    EXPECT_THAT(MappingOf(memory.data()), HasSubstr("rw-s"));
  }
  EXPECT_EQ(CardMemory::Map(0).value().data(), nullptr);
}

TEST(CardMemory, GoesWithItsOwner) {
  std::byte* data = nullptr;
  {
    CardMemory moved;
    auto mapped = CardMemory::Map(kPage);
    data = mapped.value().data();
    moved = std::move(mapped).value();
    EXPECT_EQ(moved.data(), data);
    EXPECT_THAT(MappingOf(data), HasSubstr("rw-s"));
  }
  EXPECT_EQ(MappingOf(data).find("memfd:gradientflow"), std::string::npos);
}

// What the child writes stays with the child, so the card goes on reading what
// this process has, and what this process writes.
TEST(CardMemory, AForkedChildHasACopy) {
  const auto mapped = CardMemory::Map(2 * kPage);
  std::byte* const data = mapped.value().data();
  data[0] = std::byte{17};
  const pid_t child = ::fork();
  if (child == 0) {
    const bool same = data[0] == std::byte{17} && data[kPage] == std::byte{0};
    data[0] = data[kPage] = std::byte{99};
    const bool own = MappingOf(data).find("rw-p") != std::string::npos;
    ::_exit(same && own ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(data[0], std::byte{17});
  EXPECT_EQ(data[kPage], std::byte{0});
  EXPECT_THAT(MappingOf(data), HasSubstr("rw-s"));
}

// ---- Registrations

class Registrations : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    ibv_device** const list = verbs().get_device_list(&count);
    ASSERT_EQ(count, 1);
    context_ = verbs().open_device(list[0]);
    verbs().free_device_list(list);
    pd_ = verbs().alloc_pd(context_);
    memory_ = CardMemory::Map(std::size_t{16} * kPage).value();
  }
  void TearDown() override {
    EXPECT_EQ(verbs().dealloc_pd(pd_), 0) << "something is still registered";
    EXPECT_EQ(verbs().close_device(context_), 0);
  }
  const VerbsApi& verbs() const { return *api_; }
  BufferView At(std::size_t offset, std::size_t bytes) const {
    return {memory_.data() + offset, bytes, {}};
  }

  FakeVerbs fake_{1};
  const std::shared_ptr<const VerbsApi> api_ = fake_.api(0);
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  CardMemory memory_;
};

TEST_F(Registrations, RightsAreTheLeastThatWork) {
  {
    const auto read = Registration::Make(verbs(), pd_, At(0, kPage),
                                         CardRights::kRead, "a ring");
    ASSERT_TRUE(read.ok());
    EXPECT_EQ(fake_.stats(0).access_granted, 0U);
    const auto write = Registration::Make(verbs(), pd_, At(kPage, kPage),
                                          CardRights::kPeersMayWrite, "slots");
    ASSERT_TRUE(write.ok());
    EXPECT_EQ(
        fake_.stats(0).access_granted,
        static_cast<unsigned>(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                              IBV_ACCESS_RELAXED_ORDERING));
    EXPECT_NE(write.value().local_key(), write.value().remote_key());
    EXPECT_EQ(fake_.stats(0).registered_bytes, 2 * kPage);
  }
  EXPECT_EQ(fake_.stats(0).registered_bytes, 0U);
}

TEST_F(Registrations, CoverWhatLiesWithin) {
  const auto made = Registration::Make(verbs(), pd_, At(kPage, 2 * kPage),
                                       CardRights::kRead, "x");
  const Registration& registration = made.value();
  const std::byte* const begin = memory_.data() + kPage;
  EXPECT_TRUE(registration.Covers(begin, 2 * kPage));
  EXPECT_TRUE(registration.Covers(begin, 0));
  EXPECT_TRUE(registration.Covers(begin + 2 * kPage - 1, 1));
  EXPECT_TRUE(registration.Covers(begin + 2 * kPage, 0));
  EXPECT_FALSE(registration.Covers(begin + 2 * kPage, 1));
  EXPECT_FALSE(registration.Covers(begin + 2 * kPage + 1, 0));
  EXPECT_FALSE(registration.Covers(begin - 1, 1));
  EXPECT_FALSE(registration.Covers(begin - 1, 3));
  EXPECT_FALSE(registration.Covers(begin, 2 * kPage + 1));
  EXPECT_FALSE(registration.Covers(begin + 1, SIZE_MAX));
  EXPECT_FALSE(registration.Covers(begin + 1, SIZE_MAX - kPage));
  EXPECT_FALSE(registration.Covers(nullptr, 0));
}

TEST_F(Registrations, TheReachForgetsWhatIsRemoved) {
  CardReach reach;
  ASSERT_TRUE(reach.Add(verbs(), pd_, At(0, kPage), "a").ok());
  ASSERT_TRUE(reach.Add(verbs(), pd_, At(kPage, kPage), "b").ok());
  ASSERT_TRUE(reach.Add(verbs(), pd_, At(2 * kPage, kPage), "c").ok());
  const Registration* const b = reach.Find(memory_.data() + kPage, kPage);
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->data(), memory_.data() + kPage);
  EXPECT_EQ(reach.Find(memory_.data() + kPage, kPage + 1), nullptr)
      << "no one registration has both";
  reach.Remove(memory_.data());
  EXPECT_EQ(reach.Find(memory_.data(), 1), nullptr);
  ASSERT_NE(reach.Find(memory_.data() + 2 * kPage, 1), nullptr);
  EXPECT_EQ(fake_.stats(0).registered_bytes, 2 * kPage);
}

TEST_F(Registrations, ALimitIsSaidWithItsRemedy) {
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const rlimit low = {65536, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &low), 0);
  for (const int error : {ENOMEM, EPERM, EAGAIN}) {
    fake_.FailCall(0, "reg_mr", 1, error);
    const auto made = Registration::Make(verbs(), pd_, At(0, 5000),
                                         CardRights::kRead, "slots");
    EXPECT_EQ(made.status().code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(made.status().message(),
                HasSubstr("cannot register 5000 bytes of slots for RDMA: "));
    EXPECT_THAT(made.status().message(),
                HasSubstr("; this process may lock 65536 bytes in memory: "
                          "ulimit -l unlimited"));
  }
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &before), 0);
  fake_.FailCall(0, "reg_mr", 1, EFAULT);
  const auto made =
      Registration::Make(verbs(), pd_, At(0, 5000), CardRights::kRead, "slots");
  EXPECT_EQ(made.status().code(), StatusCode::kUnavailable);
}

TEST_F(Registrations, SlotsHaveKeysOfTheirOwn) {
  auto made = CardSlots::Make(verbs(), pd_, 5, 2 * kPage,
                              CardRights::kPeersMayWrite, "landings");
  ASSERT_TRUE(made.ok());
  CardSlots slots = std::move(made).value();
  std::set<std::uint32_t> keys;
  std::set<std::byte*> places;
  std::vector<int> taken;
  const int me = 0;
  while (const auto slot = slots.Take(&me)) {
    keys.insert({slot->local_key, slot->remote_key});
    places.insert(slot->data);
    taken.push_back(slot->index);
  }
  EXPECT_EQ(keys.size(), 10U);
  ASSERT_EQ(places.size(), 5U);
  EXPECT_EQ(*places.rbegin() - *places.begin(),
            static_cast<std::ptrdiff_t>(8 * kPage));
  slots.Give(taken[3]);
  EXPECT_EQ(slots.Take(&me)->index, taken[3]);
}

TEST_F(Registrations, SlotsGoToThoseThatWaitInTurn) {
  auto made =
      CardSlots::Make(verbs(), pd_, 2, kPage, CardRights::kRead, "staging");
  CardSlots slots = std::move(made).value();
  const int greedy = 0;
  const int modest = 0;
  const int third = 0;
  const int first = slots.Take(&greedy)->index;
  const int second = slots.Take(&greedy)->index;
  EXPECT_FALSE(slots.Take(&greedy));
  EXPECT_FALSE(slots.Take(&modest));
  EXPECT_FALSE(slots.Take(&modest)) << "once more does not count twice";
  EXPECT_FALSE(slots.Take(&third));
  slots.Give(first);
  EXPECT_FALSE(slots.HasFor(&modest)) << "it is the other one's turn";
  EXPECT_TRUE(slots.Take(&greedy));
  slots.Give(second);
  EXPECT_FALSE(slots.Take(&greedy)) << "who has had its turn waits again";
  EXPECT_FALSE(slots.HasFor(&third));
  EXPECT_TRUE(slots.Take(&modest));
  slots.Give(first);
  slots.Leave(&third);
  EXPECT_TRUE(slots.HasFor(&greedy)) << "nobody waits for who has left";
  slots.Give(second);
  EXPECT_TRUE(slots.HasFor(&third)) << "there are two, and one waits";
}

TEST_F(Registrations, SlotsThatCannotAllBeRegisteredLeaveNothing) {
  for (int n = 1; n <= 5; ++n) {
    fake_.FailCall(0, "reg_mr", n, ENOMEM);
    EXPECT_FALSE(
        CardSlots::Make(verbs(), pd_, 5, kPage, CardRights::kRead, "x").ok());
    EXPECT_EQ(fake_.stats(0).registered_bytes, 0U);
  }
}

}  // namespace
}  // namespace gradientflow
