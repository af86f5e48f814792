#include "gradientflow/base/secret.h"

#include <sodium/crypto_auth_hmacsha256.h>
#include <sodium/crypto_verify_32.h>
#include <sys/random.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

const unsigned char* Bytes(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

Bits256 HmacSha256(std::string_view key, std::string_view message) {
  static_assert(crypto_auth_hmacsha256_BYTES == sizeof(Bits256));
  Bits256 proof;
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, Bytes(key), key.size());
  crypto_auth_hmacsha256_update(&state, Bytes(message), message.size());
  crypto_auth_hmacsha256_final(&state,
                               reinterpret_cast<unsigned char*>(proof.data()));
  return proof;
}

bool EqualBits(const Bits256& a, const Bits256& b) {
  return crypto_verify_32(Bytes(View(a)), Bytes(View(b))) == 0;
}

// The kernel's generator needs no set-up and survives a fork, which a
// generator in this process would not.
Result<Bits256> RandomBits() {
  Bits256 bits;
  if (::getrandom(bits.data(), bits.size(), 0) !=
      static_cast<ssize_t>(bits.size())) {
    return Status(StatusCode::kInternal,
                  StrCat("getrandom: ", std::strerror(errno)));
  }
  return bits;
}

std::string Hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

std::optional<Bits256> BitsOf(std::string_view digits) {
  Bits256 bits;
  if (digits.size() != 2 * bits.size()) return std::nullopt;
  for (std::size_t i = 0; i < bits.size(); ++i) {
    unsigned byte = 0;
    const char* const at = digits.data() + 2 * i;
    const auto read = std::from_chars(at, at + 2, byte, 16);
    if (read.ptr != at + 2) return std::nullopt;
    bits[i] = static_cast<std::byte>(byte);
  }
  return bits;
}

}  // namespace gradientflow
