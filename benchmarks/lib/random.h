#pragma once

#include <cmath>
#include <cstdint>

namespace gradientflow::benchmarks {

// Unlike std's distributions, it gives the same numbers on every machine
// (splitmix64, Steele et al. 2014).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t Bits() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // In (0, 1).
  double Uniform() {
    return (static_cast<double>(Bits() >> 12) + 0.5) / 4503599627370496.0;
  }
  // Mean 0, variance 1 (Box and Muller).
  double Normal() {
    const double radius = std::sqrt(-2 * std::log(Uniform()));
    return radius * std::cos(6.283185307179586 * Uniform());
  }

 private:
  std::uint64_t state_;
};

}  // namespace gradientflow::benchmarks
