#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gradientflow/base/secret.h"
#include "gradientflow/base/status.h"
#include "transports/tcp/socket.h"

// What ranks say to each other at the rendezvous, over a connection or in
// files: frames with a type and a body. See gradientflow/docs/wire_format.md.
namespace gradientflow::rendezvous {

enum class FrameType : std::uint16_t {
  kJoin = 1,          // I am rank r of n, and here is the proof.
  kWelcome = 2,       // You are one of us, and so am I: proof.
  kIntroduction = 3,  // What you need to know of the others: round, text.
  kAck = 4,           // I know what I need: round.
  kGo = 5,            // All ranks know what they need: round.
  kRefused = 6,       // You cannot join: code, text.
  kFailed = 7,        // No one can join: code, text.
  kChallenge = 8,     // Prove that you belong to the job: random bits.
  kCard = 9,          // My card.
  kLinked = 10,       // I am linked to all ranks that I need.
};
inline constexpr std::uint16_t kMostFrameType = 10;

inline constexpr std::size_t kFrameHeaderBytes = 16;

struct Frame {
  FrameType type = FrameType::kJoin;
  std::string body;
};

std::string EncodeFrame(FrameType type, std::string_view body);
// Decodes a file: one whole frame and nothing else. kDataLoss says what is
// wrong.
Result<Frame> DecodeFrame(std::string_view bytes);

// The parts of a body: numbers, bits, and texts with their length in front.
void PutNumber(std::uint32_t value, std::string* body);
void PutText(std::string_view text, std::string* body);
void PutBits(const Bits256& bits, std::string* body);

class BodyReader {
 public:
  explicit BodyReader(std::string_view body) : rest_(body) {}
  // Return 0 and "" once the body is shorter than what was read.
  std::uint32_t Number();
  std::string Text();
  Bits256 Bits();
  // Returns whether everything was there and nothing is left.
  bool Complete() const { return !short_ && rest_.empty(); }
  bool ok() const { return !short_; }

 private:
  std::string_view Take(std::size_t bytes);
  std::string_view rest_;
  bool short_ = false;
};

std::string EncodeStatus(const Status& status);
// Never returns OK: a body that makes no sense is an error as well, which names
// rank `sender`.
Status DecodeStatus(std::string_view body, int sender = 0);

// How a rank introduces itself over a connection, in answer to a challenge.
struct Join {
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
  Bits256 nonce = {};  // The rank's own challenge.
  Bits256 proof = {};
};
std::string EncodeJoin(const Join& join);
std::optional<Join> DecodeJoin(std::string_view body);
// A connection that has proven nothing may not send more than this in a frame.
inline constexpr std::size_t kMostStrangerBytes = 72;

// Returns the proof that belongs into the join (`type` is kJoin), or into the
// welcome that answers it (kWelcome), after `challenge`. It covers the rank,
// the size and the challenges of both sides.
Bits256 ProofOf(FrameType type, const Bits256& secret, const Bits256& challenge,
                const Join& join);

std::string EncodeTexts(const std::vector<std::string>& texts);
// Returns exactly `count` texts, or nothing.
std::optional<std::vector<std::string>> DecodeTexts(std::string_view body,
                                                    std::size_t count);

// Frames over a non-blocking connection.
class FrameStream {
 public:
  // A longer body from the other side is garbage.
  FrameStream(Socket socket, std::size_t most_body_bytes)
      : socket_(std::move(socket)), most_body_bytes_(most_body_bytes) {}

  int fd() const { return socket_.fd(); }
  void AllowBodies(std::size_t most_bytes) { most_body_bytes_ = most_bytes; }

  enum class State : std::uint8_t { kWaiting, kFrame, kClosed, kGarbage };
  // Takes the next frame if it has arrived. trouble() explains kClosed and
  // kGarbage.
  State Read(Frame* frame);
  const std::string& trouble() const { return trouble_; }

  // `frame` is encoded already; several streams may share one.
  void Queue(std::shared_ptr<const std::string> frame);
  // Writes what can be written without blocking. Returns false if the
  // connection is broken.
  bool Flush();
  bool flushed() const { return queue_.empty(); }

 private:
  State Garbage(std::string trouble);

  Socket socket_;
  std::size_t most_body_bytes_;
  std::string in_;
  std::vector<std::shared_ptr<const std::string>> queue_;
  std::size_t front_bytes_ = 0;  // Bytes of the first frame already written.
  std::string trouble_;
};

inline std::shared_ptr<const std::string> MakeFrame(FrameType type,
                                                    std::string_view body) {
  return std::make_shared<const std::string>(EncodeFrame(type, body));
}

// Returns a text like "1, 4, 7-9 of 12".
std::string NameRanks(const std::vector<int>& ranks, int size);

}  // namespace gradientflow::rendezvous
