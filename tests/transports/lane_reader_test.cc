#include "transports/tcp/lane_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "transports/wire.h"

// How many reads messages take. What becomes of their bytes, in whatever pieces
// they come, is for wire_fuzz.cc.
namespace gradientflow {
namespace {

constexpr std::size_t kBudget = std::size_t{1} << 20;

// All bytes have come at once.
class Stream final : public LaneReader::Source {
 public:
  void Append(Tag tag, std::size_t payload_bytes) {
    Header header;
    header.tag = tag;
    header.payload_bytes = payload_bytes;
    const auto encoded = EncodeHeader(header);
    bytes_.insert(bytes_.end(), encoded.begin(), encoded.end());
    bytes_.resize(bytes_.size() + payload_bytes, static_cast<std::byte>(tag));
  }
  std::int64_t Read(const iovec* pieces, int count) override {
    ++reads;
    std::size_t read = 0;
    for (int i = 0; i < count; ++i) {
      const std::size_t n = std::min(pieces[i].iov_len, bytes_.size() - at_);
      if (n > 0) std::memcpy(pieces[i].iov_base, &bytes_[at_], n);
      at_ += n;
      read += n;
    }
    return read > 0 ? static_cast<std::int64_t>(read) : -EAGAIN;
  }

  int reads = 0;

 private:
  std::vector<std::byte> bytes_;
  std::size_t at_ = 0;
};

// Expects that the payload of a message repeats its tag.
class Taker final : public LaneReader::Sink {
 public:
  Result<LinkEvents::Landing> OnHeader(int, const Header& header) override {
    landing_.assign(header.payload_bytes, std::byte{0xee});
    return LinkEvents::Landing{landing_.data(), false};
  }
  void OnMessage(int, const Header& header) override {
    ++messages;
    EXPECT_EQ(landing_,
              std::vector<std::byte>(header.payload_bytes,
                                     static_cast<std::byte>(header.tag)));
  }

  int messages = 0;

 private:
  std::vector<std::byte> landing_;
};

class LaneReaderTest : public ::testing::Test {
 protected:
  void ReadAll() {
    bool moved = false;
    EXPECT_EQ(reader_.Advance(kBudget, &moved), LaneReader::Outcome::kDrained);
    EXPECT_TRUE(moved);
  }

  Stream stream_;
  Taker taker_;
  LaneReader reader_{0, &stream_, &taker_};
};

// A peer that has this rank's message of one call sends that of the next, so
// both are there when this rank looks.
TEST_F(LaneReaderTest, TwoSmallMessagesTakeOneRead) {
  stream_.Append(1, 4096);
  stream_.Append(2, 4096);
  ReadAll();
  EXPECT_EQ(taker_.messages, 2);
  EXPECT_EQ(stream_.reads, 1);
}

TEST_F(LaneReaderTest, ALargerMessageTakesTwoReads) {
  stream_.Append(1, 100'000);
  ReadAll();
  EXPECT_EQ(taker_.messages, 1);
  EXPECT_EQ(stream_.reads, 2);
}

}  // namespace
}  // namespace gradientflow
