#include "gradientflow/session/state_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace gradientflow {
namespace {

using Bytes = std::vector<std::byte>;

Bytes Random(std::size_t n, std::mt19937& random) {
  Bytes bytes(n);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

Bytes Copy(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

bool Contains(const Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

// A state with a little of everything.
Bytes SomeState() {
  std::mt19937 random(1);
  const Bytes selection(5, std::byte{1});
  const Bytes residual = Random(36, random);
  const Bytes momentum = Random(44, random);
  return WriteState({.settings = "rank=1\ndtype=float16\n",
                     .job = 0x1234567890ABCDEF,
                     .rank = 3,
                     .step = 12,
                     .loss_scale = 1024.0F,
                     .selection = selection,
                     .residual = residual,
                     .momentum = momentum});
}

TEST(StateFile, GivesBackWhatWasWritten) {
  std::mt19937 random(4);
  for (int round = 0; round < 100; ++round) {
    const std::string settings(random() % 40, 'x');
    const Bytes selection = Random(random() % 20, random);
    const Bytes residual = Random(random() % 100, random);
    const Bytes momentum = Random(random() % 100, random);
    const SavedState state{.settings = settings,
                           .job = std::uint64_t{random()} << 29,
                           .rank = static_cast<std::uint32_t>(random()),
                           .step = std::uint64_t{random()} << 31,
                           .loss_scale = static_cast<float>(random()),
                           .selection = selection,
                           .residual = residual,
                           .momentum = momentum};
    const Bytes bytes = WriteState(state);
    const auto read = ReadState(bytes);
    ASSERT_TRUE(read.ok()) << read.status().ToString();
    EXPECT_EQ(read.value().settings, settings);
    EXPECT_EQ(read.value().job, state.job);
    EXPECT_EQ(read.value().rank, state.rank);
    EXPECT_EQ(read.value().step, state.step);
    EXPECT_EQ(read.value().loss_scale, state.loss_scale);
    EXPECT_EQ(Copy(read.value().selection), selection);
    EXPECT_EQ(Copy(read.value().residual), residual);
    EXPECT_EQ(Copy(read.value().momentum), momentum);
    ASSERT_EQ(WriteState(read.value()), bytes);
    EXPECT_EQ(StateBytes({settings.size(), selection.size(), residual.size(),
                          momentum.size()}),
              bytes.size());
  }
}

TEST(StateFile, RefusesEveryTruncation) {
  const Bytes bytes = SomeState();
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    // A copy of exactly this size, so that the address sanitizer sees an
    // overrun.
    const Bytes part(bytes.begin(), bytes.begin() + static_cast<long>(n));
    const auto read = ReadState(part);
    ASSERT_EQ(read.status().code(), StatusCode::kDataLoss) << n;
    ASSERT_TRUE(Contains(read.status(), "seen " + std::to_string(n)))
        << read.status().message();
  }
}

TEST(StateFile, RefusesBytesBehindTheEnd) {
  Bytes bytes = SomeState();
  const std::string expected = std::to_string(bytes.size());
  bytes.push_back(std::byte{0});
  const auto read = ReadState(bytes);
  EXPECT_EQ(read.status().code(), StatusCode::kDataLoss);
  EXPECT_TRUE(Contains(read.status(), "expected " + expected + " bytes"))
      << read.status().message();
}

TEST(StateFile, RefusesEveryFlippedBit) {
  Bytes bytes = SomeState();
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      bytes[i] ^= static_cast<std::byte>(1 << bit);
      ASSERT_EQ(ReadState(bytes).status().code(), StatusCode::kDataLoss)
          << "byte " << i << " bit " << bit;
      bytes[i] ^= static_cast<std::byte>(1 << bit);
    }
  }
  EXPECT_TRUE(ReadState(bytes).ok());
}

TEST(StateFile, RefusesSwappedAndRandomlyDamagedBytes) {
  const Bytes good = SomeState();
  std::mt19937 random(9);
  for (int round = 0; round < 3000; ++round) {
    Bytes bytes = good;
    for (std::size_t n = 1 + random() % 6; n > 0; --n) {
      std::swap(bytes[random() % bytes.size()], bytes[random() % bytes.size()]);
    }
    ASSERT_EQ(ReadState(bytes).ok(), bytes == good);
  }
  for (int round = 0; round < 3000; ++round) {
    ASSERT_FALSE(ReadState(Random(random() % 200, random)).ok());
  }
}

// The writer's checksum, corrected after damage so that the later checks are
// reached: what a hostile or buggy writer could produce.
std::uint64_t ChecksumOf(std::span<const std::byte> body) {
  std::uint64_t sum = 0x6a09e667f3bcc909U ^ body.size();
  for (std::size_t i = 0; i < body.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, body.data() + i,
                std::min<std::size_t>(8, body.size() - i));
    sum = (sum ^ word) * 0x9e3779b97f4a7c15U;
    sum = (sum << 29) | (sum >> 35);
  }
  return sum ^ (sum >> 32);
}

void Seal(Bytes* bytes) {
  const std::uint64_t total = bytes->size();
  std::memcpy(bytes->data() + 16, &total, 8);
  const std::uint64_t sum =
      ChecksumOf(std::span(*bytes).first(bytes->size() - 8));
  std::memcpy(bytes->data() + bytes->size() - 8, &sum, 8);
}

TEST(StateFile, KeepsItsFormat) {
  Bytes bytes = SomeState();
  const Bytes before = bytes;
  Seal(&bytes);
  EXPECT_EQ(bytes, before);  // The checksum of version 3.
  EXPECT_EQ(std::memcmp(bytes.data(), "GFSTATE\0\3\0\0\0\10\0\0\0", 16), 0);
  EXPECT_EQ(std::memcmp(bytes.data() + 40, "settingsrank=1\n", 15), 0);
}

TEST(StateFile, NamesAnotherVersion) {
  Bytes bytes = SomeState();
  bytes[8] = std::byte{2};
  Seal(&bytes);
  const auto read = ReadState(bytes);
  EXPECT_EQ(read.status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Contains(read.status(), "expected version 3, seen 2"))
      << read.status().message();
}

TEST(StateFile, SurvivesAnyLengthsUnderAValidChecksum) {
  const Bytes good = SomeState();
  std::mt19937 random(11);
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    Bytes bytes = good;
    if (random() % 2 == 0) bytes.resize(32 + random() % (good.size() - 32));
    for (std::size_t n = random() % 4; n > 0; --n) {
      const std::size_t at = 12 + random() % (bytes.size() - 20);
      bytes[at] = static_cast<std::byte>(random() % 2 == 0 ? 255 : random());
    }
    Seal(&bytes);
    const auto read = ReadState(bytes);
    if (!read.ok()) {
      ++refused;
      ASSERT_EQ(read.status().code(), StatusCode::kDataLoss);
      continue;
    }
    // All views lie within the bytes.
    for (const auto& view :
         {read.value().selection, read.value().residual, read.value().momentum,
          std::as_bytes(std::span(read.value().settings))}) {
      ASSERT_GE(view.data(), bytes.data());
      ASSERT_LE(view.data() + view.size(), bytes.data() + bytes.size());
    }
  }
  EXPECT_GT(refused, 5000);
}

TEST(StateFile, RefusesAPayloadThatReachesIntoTheChecksum) {
  const Bytes good = SomeState();
  // Behind the last section's length: its name (8), payload (44), checksum.
  const std::size_t length_at = good.size() - 8 - 44 - 8 - 8;
  for (std::uint64_t claimed = 45; claimed <= 60; ++claimed) {
    Bytes bytes = good;
    std::memcpy(bytes.data() + length_at, &claimed, 8);
    Seal(&bytes);
    const auto read = ReadState(bytes);
    ASSERT_EQ(read.status().code(), StatusCode::kDataLoss);
    ASSERT_TRUE(Contains(read.status(),
                         "a payload of " + std::to_string(claimed) + " bytes"))
        << read.status().message();
  }
}

TEST(StateFile, NamesTheFirstSettingThatDiffers) {
  const std::string mine = "rank=1\ndtype=float16\ntheta=64\n";
  EXPECT_TRUE(CheckSettings(mine, mine).ok());
  EXPECT_TRUE(CheckSettings("", "").ok());
  const Status status =
      CheckSettings(mine, "rank=1\ndtype=float32\ntheta=65\n");
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(
      Contains(status, "expected \"dtype=float16\", seen \"dtype=float32\""))
      << status.message();
  EXPECT_TRUE(Contains(CheckSettings(mine, "rank=1\ndtype=float16\n"),
                       "expected \"theta=64\", seen \"\""));
  EXPECT_TRUE(Contains(CheckSettings("", mine), "seen \"rank=1\""));
}

}  // namespace
}  // namespace gradientflow
