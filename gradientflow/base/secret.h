#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "gradientflow/base/status.h"

// How processes prove to each other that they belong to one job. Both know a
// secret that never travels. Each sends fresh random bits, and answers those of
// the other with an HMAC (RFC 2104) over both, under the secret. So a recorded
// proof is worth nothing in another conversation.
namespace gradientflow {

// A secret, random bits or a proof: 256 bits each.
using Bits256 = std::array<std::byte, 32>;

// HMAC-SHA256 of `message` under `key`, which may have any length.
Bits256 HmacSha256(std::string_view key, std::string_view message);

// Takes the same time wherever the first difference is.
bool EqualBits(const Bits256& a, const Bits256& b);

// Returns fresh bits of the kernel's random number generator.
Result<Bits256> RandomBits();

// The bytes of `bits`, which must outlive the result.
inline std::string_view View(const Bits256& bits) {
  return {reinterpret_cast<const char*>(bits.data()), bits.size()};
}

// Returns two hexadecimal digits per byte.
std::string Hex(std::string_view bytes);
// The inverse of it; nothing unless `digits` are 64 hexadecimal digits.
std::optional<Bits256> BitsOf(std::string_view digits);

}  // namespace gradientflow
