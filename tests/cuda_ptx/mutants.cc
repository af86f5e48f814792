#include "tests/cuda_ptx/mutants.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>

#include "gradientflow/base/str_cat.h"
#include "tests/cuda_ptx/library.h"

namespace gradientflow::cuda_ptx {
namespace {

bool IsBarrier(const Instruction& in) {
  return in.kind == Kind::kBarrier || in.kind == Kind::kWarpBarrier;
}
bool IsAccess(const Instruction& in) {
  const bool accesses = in.kind == Kind::kLoad || in.kind == Kind::kStore ||
                        in.kind == Kind::kAtomic;
  return accesses && in.access.space != Space::kParam;
}

std::string Demangled(const std::string& name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  std::string result = text == nullptr ? name : text;
  std::free(text);  // NOLINT: the function's contract.
  return result;
}

}  // namespace

std::vector<Mutant> MutantsOf(Kernel& kernel) {
  std::vector<Mutant> mutants;
  for (std::size_t at = 0; at < kernel.code.size(); ++at) {
    const Instruction& in = kernel.code[at];
    if (IsBarrier(in)) mutants.push_back({&kernel, at, Mistake::kNoBarrier});
    if (IsAccess(in)) mutants.push_back({&kernel, at, Mistake::kOtherAddress});
  }
  return mutants;
}

std::string NameOf(const Mutant& mutant) {
  const std::vector<Instruction>& code = mutant.kernel->code;
  const auto same = std::count_if(
      code.begin(), code.begin() + static_cast<std::ptrdiff_t>(mutant.at),
      [&](const Instruction& in) { return in.kind == code[mutant.at].kind; });
  return StrCat(Demangled(mutant.kernel->name), ": ", code[mutant.at].text,
                " (number ", same + 1, " of its kind)");
}

Mutated::Mutated(const Mutant& mutant)
    : place_(mutant.kernel->code[mutant.at]), original_(place_) {
  if (mutant.mistake == Mistake::kNoBarrier) {
    place_.kind = Kind::kNothing;
  } else if (mutant.mistake == Mistake::kOtherAddress) {
    place_.access.offset +=
        static_cast<std::int64_t>(place_.access.bytes) * place_.access.count;
  }
}

Mutated::~Mutated() { place_ = original_; }

}  // namespace gradientflow::cuda_ptx
