#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>

// For fuzz targets.
namespace gradientflow::fuzz {

inline void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

// The fuzzer's input, as a supply of small numbers; zeros after its end.
class Choices {
 public:
  Choices(const std::uint8_t* data, std::size_t bytes) : rest_(data, bytes) {}
  std::uint8_t Byte() {
    if (rest_.empty()) return 0;
    const std::uint8_t byte = rest_.front();
    rest_ = rest_.subspan(1);
    return byte;
  }
  std::uint64_t Number(int bytes) {
    std::uint64_t number = 0;
    for (int i = 0; i < bytes; ++i) number = (number << 8) | Byte();
    return number;
  }
  // Changes a few bytes, or none.
  void Spoil(std::string* text) {
    for (int i = Byte() % 4; i > 0 && !text->empty(); --i) {
      const std::size_t at = Byte() * std::size_t{257} % text->size();
      (*text)[at] = static_cast<char>((*text)[at] ^ Byte());
    }
  }
  std::span<const std::uint8_t> rest() const { return rest_; }

 private:
  std::span<const std::uint8_t> rest_;
};

}  // namespace gradientflow::fuzz
