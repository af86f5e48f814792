#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gradientflow/base/status.h"
#include "transports/tcp/socket.h"

// What ranks say to each other at the rendezvous, on a connection or in a
// file: frames of a type and a body. gradientflow/docs/wire_format.md.
namespace gradientflow::rendezvous {

enum class FrameType : std::uint16_t {
  kJoin = 1,     // I am rank r of n, with this token and card.
  kWelcome = 2,  // You have joined.
  kCards = 3,    // All cards.
  kAck = 4,      // I have all cards.
  kGo = 5,       // All ranks have.
  kRefused = 6,  // You cannot join: code, text.
  kFailed = 7,   // Nobody can: code, text.
};

inline constexpr std::size_t kFrameHeaderBytes = 16;

struct Frame {
  FrameType type = FrameType::kJoin;
  std::string body;
};

std::string EncodeFrame(FrameType type, std::string_view body);
// A whole frame and nothing else (a file). kDataLoss says what is wrong.
Result<Frame> DecodeFrame(std::string_view bytes);

// Bodies: numbers, and texts that say their length.
void PutNumber(std::uint32_t value, std::string* body);
void PutText(std::string_view text, std::string* body);

class BodyReader {
 public:
  explicit BodyReader(std::string_view body) : rest_(body) {}
  // 0 and "" once the body is too short for what was asked.
  std::uint32_t Number();
  std::string Text();
  // Whether all was there and nothing is left.
  bool Complete() const { return !short_ && rest_.empty(); }
  bool ok() const { return !short_; }

 private:
  std::string_view Take(std::size_t bytes);
  std::string_view rest_;
  bool short_ = false;
};

std::string EncodeStatus(const Status& status);
// Never OK: a body that makes no sense is an error as well.
Status DecodeStatus(std::string_view body);

struct Join {
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
  std::string token;     // In a file: the joining process's nonce.
  std::string claimant;  // In a file: host and process. Else empty.
  std::string card;
};
std::string EncodeJoin(const Join& join);
std::optional<Join> DecodeJoin(std::string_view body);
inline constexpr std::size_t kMostJoinBytes = std::size_t{72} << 10;

std::string EncodeTexts(const std::vector<std::string>& texts);
// Exactly `count` of them, or none.
std::optional<std::vector<std::string>> DecodeTexts(std::string_view body,
                                                    std::size_t count);

// Frames over a non-blocking connection.
class FrameStream {
 public:
  // Longer bodies from the other side are garbage.
  FrameStream(Socket socket, std::size_t most_body_bytes)
      : socket_(std::move(socket)), most_body_bytes_(most_body_bytes) {}

  int fd() const { return socket_.fd(); }
  void AllowBodies(std::size_t most_bytes) { most_body_bytes_ = most_bytes; }

  enum class State : std::uint8_t { kWaiting, kFrame, kClosed, kGarbage };
  // The next frame, if it is there. `trouble()` explains the last two.
  State Read(Frame* frame);
  const std::string& trouble() const { return trouble_; }

  // `frame`: encoded; several streams may share one.
  void Queue(std::shared_ptr<const std::string> frame);
  // Writes what goes. False: the connection is broken.
  bool Flush();
  bool flushed() const { return queue_.empty(); }

 private:
  State Garbage(std::string trouble);

  Socket socket_;
  std::size_t most_body_bytes_;
  std::string in_;
  std::vector<std::shared_ptr<const std::string>> queue_;
  std::size_t front_bytes_ = 0;  // Of the first frame, written.
  std::string trouble_;
};

inline std::shared_ptr<const std::string> MakeFrame(FrameType type,
                                                    std::string_view body) {
  return std::make_shared<const std::string>(EncodeFrame(type, body));
}

// "1, 4, 7-9 of 12".
std::string NameRanks(const std::vector<int>& ranks, int size);

}  // namespace gradientflow::rendezvous
