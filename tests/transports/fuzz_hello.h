#pragma once

#include <cstddef>

#include "gradientflow/base/secret.h"
#include "tests/transports/fuzz_input.h"
#include "transports/tcp/hello.h"

// What fuzz targets make up that only a rank can know.
namespace gradientflow::fuzz {

inline Bits256 BitsOf(Choices* choices) {
  Bits256 bits;
  for (std::byte& byte : bits) byte = std::byte{choices->Byte()};
  return bits;
}

// A hello that may fit the ranks 0 and 1 of a job, but proves nothing.
inline LaneHello HelloOf(Choices* choices) {
  LaneHello hello;
  hello.kind = static_cast<LaneHello::Kind>(choices->Byte() % 5);
  hello.from = choices->Byte() % 3;
  hello.to = choices->Byte() % 2;
  hello.lane = choices->Byte() % 3;
  hello.lanes = choices->Byte() % 3;
  hello.dial = choices->Byte() % 3;
  hello.nonce = BitsOf(choices);
  hello.proof = BitsOf(choices);
  return hello;
}

}  // namespace gradientflow::fuzz
