// Feeds arbitrary bytes to a receiving lane, in arbitrary pieces and with
// pauses, and compares the result with a parser that sees all bytes at once.

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "gradientflow/base/status.h"
#include "tests/transports/fuzz_input.h"
#include "transports/link.h"
#include "transports/tcp/lane_reader.h"
#include "transports/wire.h"

namespace gradientflow {
namespace {

using fuzz::Choices;
using fuzz::Require;

constexpr std::uint64_t kMostPayloadBytes = std::uint64_t{1} << 20;

// Plain bytes hardly ever pass the checksum, so a part of the input says which
// headers to encode, and what to break in them.
std::vector<std::byte> MakeStream(Choices* choices) {
  std::vector<std::byte> stream;
  for (int i = choices->Byte() % 16; i > 0; --i) {
    Header header;
    const std::uint8_t what = choices->Byte();
    header.kind = static_cast<MessageKind>(what % 12);
    header.tag = choices->Byte();
    header.flags = (what & 0x10) != 0 ? kFlagNonfinite : 0;
    header.payload_bytes = choices->Number((what & 0x20) != 0 ? 2 : 1);
    if ((what & 0x40) != 0) header.payload_bytes <<= choices->Byte() % 56;
    auto bytes = EncodeHeader(header);
    if ((what & 0x80) != 0) {
      bytes[choices->Byte() % kHeaderBytes] ^=
          static_cast<std::byte>(choices->Byte());
    }
    stream.insert(stream.end(), bytes.begin(), bytes.end());
    const std::uint64_t there =
        std::min<std::uint64_t>(header.payload_bytes, 70000);
    const std::size_t begin = stream.size();
    stream.resize(begin + there);
    for (std::size_t j = 0; j < there; ++j) {
      stream[begin + j] = static_cast<std::byte>(j * 7 + begin);
    }
  }
  for (const std::uint8_t byte : choices->rest()) {
    stream.push_back(static_cast<std::byte>(byte));
  }
  return stream;
}

struct Message {
  Header header;
  std::vector<std::byte> payload;
};

bool IsRefused(const Header& header) {
  return header.payload_bytes > kMostPayloadBytes || header.tag == 13;
}

struct Expected {
  std::vector<Message> messages;
  bool fails = false;
  bool cut = false;  // Ends in the middle of a message.
};

Expected ParseAtOnce(std::span<const std::byte> stream) {
  Expected expected;
  while (stream.size() >= kHeaderBytes) {
    const Result<Header> header = DecodeHeader(stream.first<kHeaderBytes>());
    if (!header.ok() || IsRefused(header.value())) {
      expected.fails = true;
      return expected;
    }
    stream = stream.subspan(kHeaderBytes);
    const auto bytes = static_cast<std::size_t>(header.value().payload_bytes);
    if (bytes > stream.size()) {
      expected.cut = true;
      return expected;
    }
    expected.messages.push_back(
        {header.value(),
         {stream.begin(),
          stream.begin() + static_cast<std::ptrdiff_t>(bytes)}});
    stream = stream.subspan(bytes);
  }
  expected.cut = !stream.empty();
  return expected;
}

// Hands out the stream in pieces of every size.
class PieceSource final : public LaneReader::Source {
 public:
  PieceSource(std::span<const std::byte> stream, std::uint32_t seed)
      : rest_(stream), state_(seed | 1) {}

  std::int64_t Read(const iovec* pieces, int count) override {
    state_ = state_ * 1664525 + 1013904223;
    if (rest_.empty()) return 0;
    if (state_ >> 30 == 0) return -EAGAIN;
    std::size_t limit = (state_ >> 8) % (std::size_t{1} << (state_ >> 28));
    if ((state_ & 0x80) != 0) limit = rest_.size();
    limit = std::min(std::max<std::size_t>(limit, 1), rest_.size());
    std::size_t moved = 0;
    for (int i = 0; i < count && moved < limit; ++i) {
      const std::size_t bytes = std::min(pieces[i].iov_len, limit - moved);
      if (bytes == 0) continue;
      std::memcpy(pieces[i].iov_base, rest_.data() + moved, bytes);
      moved += bytes;
    }
    rest_ = rest_.subspan(moved);
    return static_cast<std::int64_t>(moved);
  }

 private:
  std::span<const std::byte> rest_;
  std::uint32_t state_;
};

class Collector final : public LaneReader::Sink {
 public:
  explicit Collector(std::uint8_t pauses) : pauses_(pauses) {}

  Result<LinkEvents::Landing> OnHeader(int lane,
                                       const Header& header) override {
    Require(lane == 5, "the lane's number");
    Require(landing_ == nullptr, "one message at a time");
    if (IsRefused(header)) return Status(StatusCode::kDataLoss, "refused");
    if (asked_++ % 8 < pauses_ % 8) return LinkEvents::Landing{nullptr, true};
    // Exactly as long as the payload: the address sanitizer sees an excess
    // byte.
    landing_ = std::make_unique<std::byte[]>(header.payload_bytes);
    return LinkEvents::Landing{landing_.get(), false};
  }
  void OnMessage(int, const Header& header) override {
    Require(landing_ != nullptr, "a landing was asked for");
    messages.push_back(
        {header, {landing_.get(), landing_.get() + header.payload_bytes}});
    landing_.reset();
  }

  std::vector<Message> messages;

 private:
  const std::uint8_t pauses_;
  unsigned asked_ = 0;
  std::unique_ptr<std::byte[]> landing_;
};

void Compare(const Collector& seen, const Expected& expected) {
  Require(seen.messages.size() == expected.messages.size(),
          "number of messages");
  for (std::size_t i = 0; i < seen.messages.size(); ++i) {
    const Message& a = seen.messages[i];
    const Message& b = expected.messages[i];
    Require(EncodeHeader(a.header) == EncodeHeader(b.header), "header");
    Require(a.payload == b.payload, "payload");
  }
}

// Reads a large payload as an io thread would.
void ReadRest(PieceSource* source, LaneReader* reader) {
  const std::size_t missing = reader->missing_bytes();
  auto rest = reader->Rest();
  std::size_t bytes = 0;
  while (bytes < missing) {
    const std::int64_t got = source->Read(rest.data(), 2);
    if (got == -EAGAIN) continue;
    if (got <= 0) {
      reader->Landed(bytes);
      return reader->End(0);
    }
    bytes += static_cast<std::size_t>(got);
    auto left = static_cast<std::size_t>(got);
    for (iovec& piece : rest) {
      const std::size_t taken = std::min(left, piece.iov_len);
      piece.iov_base = static_cast<std::byte*>(piece.iov_base) + taken;
      piece.iov_len -= taken;
      left -= taken;
    }
  }
  reader->Landed(bytes);
}

void Check(Choices choices) {
  const auto seed = static_cast<std::uint32_t>(choices.Number(2));
  const std::uint8_t pauses = choices.Byte();
  const std::size_t budget = std::size_t{1} << (choices.Byte() % 20);
  const std::vector<std::byte> stream = MakeStream(&choices);
  const Expected expected = ParseAtOnce(stream);
  PieceSource source(stream, seed);
  Collector sink(pauses);
  auto reader = std::make_unique<LaneReader>(5, &source, &sink);
  // From this length on, payloads are read here. Often none is that long.
  reader->LendLargePayloads(std::size_t{1} << (choices.Byte() % 20));
  for (;;) {
    bool moved = false;
    switch (reader->Advance(budget, &moved)) {
      case LaneReader::Outcome::kDrained:
      case LaneReader::Outcome::kMore:
        continue;
      case LaneReader::Outcome::kPaused:
        Require(reader->paused(), "paused");
        reader->Resume();
        continue;
      case LaneReader::Outcome::kLarge:
        ReadRest(&source, reader.get());
        continue;
      case LaneReader::Outcome::kStopped:
        Require(false, "nobody stopped it");
        return;
      case LaneReader::Outcome::kFailed:
        Require(expected.fails, "should not fail");
        Require(!reader->why().ok(), "has a reason");
        return Compare(sink, expected);
      case LaneReader::Outcome::kEnded:
        Require(!expected.fails, "should fail");
        Require(reader->in_message() == expected.cut, "in mid-message");
        return Compare(sink, expected);
    }
  }
}

}  // namespace
}  // namespace gradientflow

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t bytes) {
  gradientflow::Check(gradientflow::fuzz::Choices(data, bytes));
  return 0;
}
