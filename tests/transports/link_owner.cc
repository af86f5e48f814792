#include "tests/transports/link_owner.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

// Payloads are large, so this file is compiled with optimisation.
namespace gradientflow::testing {

std::vector<std::byte> Pattern(std::uint64_t seed, std::size_t bytes) {
  std::vector<std::byte> out(bytes);
  std::uint64_t x = seed * 0x9e3779b97f4a7c15 + 0x2545f4914f6cdd1d;
  const auto next = [&x] {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x;
  };
  std::size_t at = 0;
  for (; bytes - at >= sizeof(x); at += sizeof(x)) {
    const std::uint64_t word = next();
    std::memcpy(out.data() + at, &word, sizeof(word));
  }
  if (at == bytes) return out;
  const std::uint64_t word = next();
  std::memcpy(out.data() + at, &word, bytes - at);
  return out;
}

bool Intact(const Received& message) {
  const std::vector<std::byte>& seen = message.payload;
  const std::vector<std::byte> sent =
      Pattern(message.header.tag,
              static_cast<std::size_t>(message.header.payload_bytes));
  // Not ==, which compares one byte after the other, and with a thread
  // sanitizer takes longer than all else.
  return seen.size() == sent.size() &&
         (sent.empty() ||
          std::memcmp(seen.data(), sent.data(), sent.size()) == 0);
}

}  // namespace gradientflow::testing
