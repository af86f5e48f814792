#include "gradientflow/base/secret.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <set>
#include <string>

namespace gradientflow {
namespace {

struct Vector {
  std::string key;
  std::string message;
  const char* proof;
};

// Test cases 1 to 4, 6 and 7 of RFC 4231 (5 is about a truncated result).
TEST(HmacSha256, GivesTheValuesOfRfc4231) {
  std::string counting;
  for (char c = 1; c <= 25; ++c) counting += c;
  const Vector vectors[] = {
      {std::string(20, '\x0b'), "Hi There",
       "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
      {"Jefe", "what do ya want for nothing?",
       "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
      {std::string(20, '\xaa'), std::string(50, '\xdd'),
       "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
      {counting, std::string(50, '\xcd'),
       "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
      {std::string(131, '\xaa'),
       "Test Using Larger Than Block-Size Key - Hash Key First",
       "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
      {std::string(131, '\xaa'),
       "This is a test using a larger than block-size key and a larger than "
       "block-size data. The key needs to be hashed before being used by the "
       "HMAC algorithm.",
       "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"},
  };
  for (const Vector& vector : vectors) {
    EXPECT_EQ(Hex(View(HmacSha256(vector.key, vector.message))), vector.proof);
  }
}

TEST(EqualBits, SeesEveryBit) {
  const Bits256 bits = HmacSha256("key", "message");
  EXPECT_TRUE(EqualBits(bits, bits));
  for (std::size_t i = 0; i < 8 * bits.size(); ++i) {
    Bits256 other = bits;
    other[i / 8] ^= std::byte{1} << (i % 8);
    EXPECT_FALSE(EqualBits(bits, other)) << i;
  }
}

TEST(RandomBits, AreFresh) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) {
    const Result<Bits256> bits = RandomBits();
    ASSERT_TRUE(bits.ok());
    EXPECT_TRUE(seen.insert(Hex(View(bits.value()))).second);
  }
}

}  // namespace
}  // namespace gradientflow
