#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gradientflow/base/status.h"
#include "tests/cuda_ptx/module.h"
#include "tests/cuda_ptx/program.h"

// All kernels that nvcc made of kernels/cuda, for every architecture.
namespace gradientflow::cuda_ptx {

// What nvcc adds to the names of a file's own functions is a number of the
// compilation: the name without it.
std::string PlainName(const std::string& name);

// The kernels of one architecture, or of several that have the same text.
class Program {
 public:
  // "compute_80", or "compute_80_90".
  const std::string& name() const { return name_; }
  // Plain names, in order.
  std::vector<std::string> kernels() const;
  // Those with this in their text.
  std::vector<std::string> KernelsWith(std::string_view part) const;
  // Decoded when it is first asked for. It lives as long as the program.
  Result<Kernel*> Find(const std::string& plain_name);

 private:
  friend class Library;
  struct Entry {
    std::shared_ptr<const Module> module;
    const KernelText* text;
    std::unique_ptr<Kernel> kernel;
  };

  bool SameAs(const Program& other) const;

  std::string name_;
  std::map<std::string, Entry> entries_;
};

class Library {
 public:
  // Has the .ptx files in `folder`/<architecture>/, which it reads when it is
  // first asked for. If that fails, the process ends with the reason.
  static Library& Get();
  static Result<Library> Read(const std::string& folder);

  // Different ones, the oldest architecture first.
  std::vector<Program>& programs() { return programs_; }
  const std::vector<std::string>& architectures() const {
    return architectures_;
  }

 private:
  std::vector<std::string> architectures_;
  std::vector<Program> programs_;
};

}  // namespace gradientflow::cuda_ptx
