#include "benchmarks/kernels/kernel_case.h"

#include <cmath>
#include <cstring>
#include <stdexcept>

#include "benchmarks/scaling/gradients.h"
#include "gradientflow/base/str_cat.h"

namespace gradientflow::benchmarks {
namespace {

template <typename T>
double ValueAt(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof(value));
  return static_cast<double>(value);
}

// Compares `seen` with what buffer `b` should hold.
void Compare(const KernelCase& which, std::size_t b, const std::byte* expected,
             const std::byte* seen) {
  const CaseBuffer& buffer = which.buffers[b];
  const std::size_t size = buffer.bytes;
  if (!buffer.checked || size == 0) return;
  if (std::memcmp(expected, seen, size) == 0) return;
  const std::size_t step = buffer.tolerance > 0 ? SizeOf(buffer.type) : 1;
  const auto value =
      buffer.type == DType::kFloat64 ? &ValueAt<double> : &ValueAt<float>;
  for (std::size_t i = 0; i < size; i += step) {
    if (std::memcmp(expected + i, seen + i, step) == 0) continue;
    if (buffer.tolerance > 0 &&
        std::fabs(value(seen + i) - value(expected + i)) <=
            buffer.tolerance * std::fabs(value(expected + i))) {
      continue;
    }
    throw std::runtime_error(StrCat(which.name, ": buffer ", b, ", byte ", i,
                                    " of ", size,
                                    " differs from the reference's"));
  }
}

}  // namespace

CaseBuffer Normal(DType type, std::size_t n, int seed) {
  const std::size_t bytes = n * SizeOf(type);
  const auto fill = [=](std::byte* to, const Memory&) {
    if (IsGradientType(type)) {
      Gradients(type).Fill(seed, 0, {to, bytes, {}});
      return;
    }
    for (std::size_t i = 0; i < bytes; i += SizeOf(type)) {
      to[i] = static_cast<std::byte>(i % 61);  // Small numbers.
    }
  };
  return {.bytes = bytes, .fill = fill, .type = type};
}

std::string ShortName(DType type) {
  std::string name(Name(type));
  const std::size_t bits = name.find_first_of("0123456789");
  const std::string letters = name.starts_with("b") ? "bf" : name.substr(0, 1);
  return letters + name.substr(bits);
}

std::vector<std::byte> InitialContents(const KernelCase& which, std::size_t b,
                                       const Memory& memory) {
  const CaseBuffer& buffer = which.buffers[b];
  std::vector<std::byte> bytes(buffer.bytes);
  if (buffer.fill) buffer.fill(bytes.data(), memory);
  return bytes;
}

void Verify(const KernelCase& which, const KernelTables& reference,
            const std::function<const std::byte*(std::size_t b)>& seen) {
  std::vector<std::vector<std::byte>> contents;
  Memory memory;
  for (std::size_t b = 0; b < which.buffers.size(); ++b) {
    contents.push_back(InitialContents(which, b, memory));
    memory.push_back(contents.back().data());
  }
  const int code = which.launch({reference, memory, nullptr});
  if (code != 0) {
    throw std::runtime_error(StrCat(which.name, " on the CPU: error ", code));
  }
  for (std::size_t b = 0; b < which.buffers.size(); ++b) {
    Compare(which, b, memory[b], seen(b));
  }
}

}  // namespace gradientflow::benchmarks
