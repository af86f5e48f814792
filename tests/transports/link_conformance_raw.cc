#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"
#include "tests/transports/link_conformance.h"
#include "transports/wire.h"

// How a link reacts to a peer that is not a link.
namespace gradientflow::testing {
namespace {

std::vector<std::byte> Frame(std::uint64_t tag, std::size_t bytes) {
  Header header;
  header.tag = tag;
  header.payload_bytes = bytes;
  const auto encoded = EncodeHeader(header);
  std::vector<std::byte> frame(encoded.begin(), encoded.end());
  const auto payload = Pattern(tag, bytes);
  frame.insert(frame.end(), payload.begin(), payload.end());
  return frame;
}

// Three frames, one after the other, and the end of each.
struct Stream {
  Stream() {
    for (const std::size_t bytes : {0, 5, 70}) {
      const auto frame = Frame(ends.size(), bytes);
      data.insert(data.end(), frame.begin(), frame.end());
      ends.push_back(data.size());
    }
  }
  // The number of frames that are complete in the first `bytes`.
  std::size_t WholeIn(std::size_t bytes) const {
    return static_cast<std::size_t>(
        std::count_if(ends.begin(), ends.end(),
                      [&](std::size_t end) { return end <= bytes; }));
  }
  std::vector<std::byte> data;
  std::vector<std::size_t> ends;
};

}  // namespace

TEST_P(StreamConformance, FramesThatComeByteByByteAreTakenWhenTheyAreWhole) {
  const Stream stream;
  const auto peer = GetParam().join_raw(&a_);
  for (std::size_t i = 0; i < stream.data.size(); ++i) {
    peer->Write({&stream.data[i], 1});
    const std::size_t whole = stream.WholeIn(i + 1);
    ASSERT_TRUE(testing::Drive({&a_}, [&] { return a_.messages == whole; }))
        << "byte " << i;
    a_.PollOnce();
    ASSERT_EQ(a_.messages, whole) << "byte " << i;
  }
  for (const Received& message : a_.received) EXPECT_TRUE(Intact(message));
  EXPECT_TRUE(a_.down.empty());
}

TEST_P(StreamConformance, ADeathAtAnyByteEndsTheLinkAfterWhatWasWhole) {
  const Stream stream;
  for (std::size_t cut = 0; cut <= stream.data.size(); ++cut) {
    LinkOwner owner;
    auto peer = GetParam().join_raw(&owner);
    peer->Write({stream.data.data(), cut});
    peer.reset();
    ASSERT_TRUE(testing::Drive({&owner}, [&] { return !owner.down.empty(); }));
    for (int i = 0; i < 3; ++i) owner.PollOnce();
    ExpectDown(owner, StatusCode::kUnavailable);
    const std::size_t whole = stream.WholeIn(cut);
    ASSERT_EQ(owner.received.size(), whole) << "cut at " << cut;
    for (const Received& message : owner.received) {
      ASSERT_TRUE(Intact(message)) << "cut at " << cut;
    }
    const std::size_t end = whole == 0 ? 0 : stream.ends[whole - 1];
    const std::string& why = owner.down[0].second.message();
    ASSERT_EQ(why.find("mid-message") != std::string::npos, cut != end)
        << "cut at " << cut << ": " << why;
  }
}

TEST_P(StreamConformance, AFlippedBitInAHeaderEndsTheLink) {
  for (std::size_t bit = 0; bit < 8 * kHeaderBytes; bit += 5) {
    LinkOwner owner;
    const auto peer = GetParam().join_raw(&owner);
    peer->Write(Frame(1, 9));
    std::vector<std::byte> bad = Frame(2, 9);
    bad[bit / 8] ^= std::byte{1} << (bit % 8);
    peer->Write(bad);
    ASSERT_TRUE(testing::Drive({&owner}, [&] { return !owner.down.empty(); }))
        << "bit " << bit;
    ExpectDown(owner, StatusCode::kDataLoss);
    ASSERT_EQ(owner.received.size(), 1U) << "bit " << bit;
    EXPECT_EQ(owner.headers, 1U);
  }
}

TEST_P(StreamConformance, GarbageEndsTheLinkAndItsSends) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    LinkOwner owner;
    const auto peer = GetParam().join_raw(&owner);
    owner.Send(1, 1, std::size_t{32} << 20);
    peer->Write(Pattern(seed, 41 + 100 * seed));
    ASSERT_TRUE(testing::Drive({&owner}, [&] { return !owner.sent.empty(); }));
    ExpectDown(owner, StatusCode::kDataLoss);
    EXPECT_EQ(owner.sent[0].second.code(), StatusCode::kDataLoss);
    EXPECT_EQ(owner.headers, 0U);
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StreamConformance);

}  // namespace gradientflow::testing
