// Runs the fuzz target over a seeded random corpus, so that it is also an
// ordinary test with any compiler.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t bytes);

int main() {
  constexpr int kInputs = 3000;
  std::mt19937_64 random(20190221);
  for (int i = 0; i < kInputs; ++i) {
    std::vector<std::uint8_t> input(random() % (1U << (random() % 10)));
    for (std::uint8_t& byte : input) {
      byte = static_cast<std::uint8_t>(random());
    }
    // Half of the inputs have few broken headers, so that many messages follow.
    if (i % 2 == 0) {
      for (std::size_t at = 4; at < input.size(); ++at) input[at] &= 0x3F;
    }
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%d inputs\n", kInputs);
  return 0;
}
