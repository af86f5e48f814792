#include "transports/rendezvous/frames.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "gradientflow/base/str_cat.h"

// A frame, and the parts of a body, in little-endian:
//
//   frame   "GFRV" | version (2) | type (2) | body bytes (8) | body
//   number  4 bytes
//   bits    32 bytes
//   text    its length as a number | bytes
namespace gradientflow::rendezvous {
namespace {

constexpr std::string_view kMagic = "GFRV";
constexpr std::uint16_t kVersion = 3;
constexpr std::size_t kReadBytes = std::size_t{64} << 10;

template <typename T>
void Append(T value, std::string* to) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    to->push_back(static_cast<char>((value >> (8 * i)) & 0xFF));
  }
}

// REQUIRES from.size() >= sizeof(T).
template <typename T>
T Get(std::string_view from) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(
        value |
        (static_cast<T>(static_cast<unsigned char>(from[i])) << (8 * i)));
  }
  return value;
}

struct FrameHeader {
  FrameType type;
  std::uint64_t body_bytes;
};

// REQUIRES bytes.size() >= kFrameHeaderBytes.
Result<FrameHeader> DecodeFrameHeader(std::string_view bytes) {
  if (!bytes.starts_with(kMagic)) {
    return Status(StatusCode::kDataLoss,
                  "expected \"GFRV\", seen other bytes: not this protocol");
  }
  const auto version = Get<std::uint16_t>(bytes.substr(4));
  if (version != kVersion) {
    return Status(StatusCode::kDataLoss,
                  StrCat("expected version ", kVersion, ", seen ", version,
                         ": the ranks run different releases"));
  }
  const auto type = Get<std::uint16_t>(bytes.substr(6));
  if (type < 1 || type > kMostFrameType) {
    return Status(StatusCode::kDataLoss,
                  StrCat("expected a frame of type 1 to ", kMostFrameType,
                         ", seen ", type));
  }
  return FrameHeader{static_cast<FrameType>(type),
                     Get<std::uint64_t>(bytes.substr(8))};
}

}  // namespace

std::string EncodeFrame(FrameType type, std::string_view body) {
  std::string bytes(kMagic);
  Append(kVersion, &bytes);
  Append(static_cast<std::uint16_t>(type), &bytes);
  Append(static_cast<std::uint64_t>(body.size()), &bytes);
  bytes += body;
  return bytes;
}

Result<Frame> DecodeFrame(std::string_view bytes) {
  if (bytes.size() < kFrameHeaderBytes) {
    return Status(StatusCode::kDataLoss,
                  StrCat("expected at least ", kFrameHeaderBytes,
                         " bytes, seen ", bytes.size()));
  }
  const Result<FrameHeader> header = DecodeFrameHeader(bytes);
  if (!header.ok()) return header.status();
  bytes.remove_prefix(kFrameHeaderBytes);
  if (header.value().body_bytes != bytes.size()) {
    return Status(StatusCode::kDataLoss,
                  StrCat("expected ", header.value().body_bytes,
                         " bytes, seen ", bytes.size()));
  }
  return Frame{header.value().type, std::string(bytes)};
}

void PutNumber(std::uint32_t value, std::string* body) { Append(value, body); }

void PutText(std::string_view text, std::string* body) {
  Append(static_cast<std::uint32_t>(text.size()), body);
  *body += text;
}

void PutBits(const Bits256& bits, std::string* body) { *body += View(bits); }

std::string_view BodyReader::Take(std::size_t bytes) {
  if (short_ || bytes > rest_.size()) {
    short_ = true;
    return {};
  }
  const std::string_view taken = rest_.substr(0, bytes);
  rest_.remove_prefix(bytes);
  return taken;
}

std::uint32_t BodyReader::Number() {
  const std::string_view bytes = Take(sizeof(std::uint32_t));
  return short_ ? 0 : Get<std::uint32_t>(bytes);
}

std::string BodyReader::Text() { return std::string(Take(Number())); }

Bits256 BodyReader::Bits() {
  Bits256 bits = {};
  const std::string_view bytes = Take(bits.size());
  if (!short_) std::memcpy(bits.data(), bytes.data(), bits.size());
  return bits;
}

std::string EncodeStatus(const Status& status) {
  std::string body;
  PutNumber(static_cast<std::uint32_t>(status.code()), &body);
  PutText(status.message(), &body);
  return body;
}

Status DecodeStatus(std::string_view body, int sender) {
  BodyReader reader(body);
  const std::uint32_t code = reader.Number();
  const std::string text = reader.Text();
  if (!reader.Complete() || code == 0 || code > kMaxStatusCode) {
    return Status(
        StatusCode::kDataLoss,
        StrCat("rank ", sender, " sent an error that makes no sense"));
  }
  return Status(static_cast<StatusCode>(code), text);
}

std::string EncodeJoin(const Join& join) {
  std::string body;
  PutNumber(join.rank, &body);
  PutNumber(join.size, &body);
  PutBits(join.nonce, &body);
  PutBits(join.proof, &body);
  return body;
}

std::optional<Join> DecodeJoin(std::string_view body) {
  BodyReader reader(body);
  Join join;
  join.rank = reader.Number();
  join.size = reader.Number();
  join.nonce = reader.Bits();
  join.proof = reader.Bits();
  if (!reader.Complete()) return std::nullopt;
  return join;
}

// The header of the frame, without its length, tells who proves: a join cannot
// stand for a welcome. All parts have fixed lengths, so no two conversations
// have the same message.
Bits256 ProofOf(FrameType type, const Bits256& secret, const Bits256& challenge,
                const Join& join) {
  std::string message(kMagic);
  Append(kVersion, &message);
  Append(static_cast<std::uint16_t>(type), &message);
  PutBits(challenge, &message);
  PutBits(join.nonce, &message);
  PutNumber(join.rank, &message);
  PutNumber(join.size, &message);
  return HmacSha256(View(secret), message);
}

std::string EncodeTexts(const std::vector<std::string>& texts) {
  std::string body;
  for (const std::string& text : texts) PutText(text, &body);
  return body;
}

std::optional<std::vector<std::string>> DecodeTexts(std::string_view body,
                                                    std::size_t count) {
  BodyReader reader(body);
  std::vector<std::string> texts;
  while (texts.size() < count && reader.ok()) texts.push_back(reader.Text());
  if (!reader.Complete()) return std::nullopt;
  return texts;
}

FrameStream::State FrameStream::Garbage(std::string trouble) {
  trouble_ = std::move(trouble);
  return State::kGarbage;
}

FrameStream::State FrameStream::Read(Frame* frame) {
  for (;;) {
    std::size_t wanted = kFrameHeaderBytes;
    if (in_.size() >= kFrameHeaderBytes) {
      const Result<FrameHeader> header = DecodeFrameHeader(in_);
      if (!header.ok()) return Garbage(header.status().message());
      if (header.value().body_bytes > most_body_bytes_) {
        return Garbage(StrCat("expected at most ", most_body_bytes_,
                              " bytes, announced were ",
                              header.value().body_bytes));
      }
      wanted += static_cast<std::size_t>(header.value().body_bytes);
      if (in_.size() == wanted) {
        frame->type = header.value().type;
        frame->body = in_.substr(kFrameHeaderBytes);
        in_.clear();
        return State::kFrame;
      }
    }
    // Reads at most to the end of this frame, in steps, so that a frame that is
    // only announced takes no memory.
    const std::size_t have = in_.size();
    const std::size_t room = std::min(wanted - have, kReadBytes);
    in_.resize(have + room);
    const std::int64_t got = Receive(socket_, &in_[have], room);
    in_.resize(have + static_cast<std::size_t>(std::max<std::int64_t>(got, 0)));
    if (got == -EAGAIN || got == -EWOULDBLOCK) return State::kWaiting;
    if (got <= 0) {
      trouble_ = got == 0 ? "closed the connection"
                          : ErrorText(static_cast<int>(-got));
      return State::kClosed;
    }
  }
}

void FrameStream::Queue(std::shared_ptr<const std::string> frame) {
  queue_.push_back(std::move(frame));
}

bool FrameStream::Flush() {
  while (!queue_.empty()) {
    const std::string& front = *queue_.front();
    const std::int64_t sent =
        Send(socket_, front.data() + front_bytes_, front.size() - front_bytes_);
    if (sent == -EAGAIN || sent == -EWOULDBLOCK) return true;
    if (sent < 0) {
      trouble_ = ErrorText(static_cast<int>(-sent));
      queue_.clear();
      return false;
    }
    front_bytes_ += static_cast<std::size_t>(sent);
    if (front_bytes_ < front.size()) continue;
    queue_.erase(queue_.begin());
    front_bytes_ = 0;
  }
  return true;
}

std::string NameRanks(const std::vector<int>& ranks, int size) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    text += StrCat(text.empty() ? "" : ", ", ranks[i]);
    if (end - i > 1) {
      text += StrCat(end - i > 2 ? "-" : ", ", ranks[end - 1]);
    }
    i = end;
  }
  return StrCat(text, " of ", size);
}

}  // namespace gradientflow::rendezvous
