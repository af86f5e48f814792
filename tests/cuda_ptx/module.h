#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"
#include "tests/cuda_ptx/program.h"

// The text of a .ptx file, cut into kernels and these into statements.
namespace gradientflow::cuda_ptx {

struct Statement {
  int line;
  std::string text;  // Without its semicolon, on one line.
};

// `.reg .b32 %r<9>;` declares %r0 to %r8, `.reg .b32 t;` just t (count 0).
struct Declaration {
  Type type;
  unsigned count;
};

struct KernelText {
  std::string file;
  std::string name;
  // All of it, without comments: two kernels with the same text do the same.
  std::string text;
  std::vector<std::pair<std::string, Parameter>> parameters;
  std::size_t parameter_bytes = 0;
  unsigned most_threads = 1024;
  std::map<std::string, Declaration> registers;
  std::vector<Statement> statements;
  std::map<std::string, std::size_t> labels;  // The statement that follows.
};

struct Module {
  std::vector<KernelText> kernels;
  // Addresses. Dynamic memory comes after all other, which has so many bytes.
  std::map<std::string, std::uint64_t> shared;
  std::size_t shared_bytes = 0;
};

// Errors name `file` and the line.
Result<Module> ParseModule(const std::string& file, std::string text);

// Without the white space at both ends.
std::string Trim(const std::string& text);
// The parts between the commas that are not in brackets or braces.
std::vector<std::string> SplitAtCommas(const std::string& text);

}  // namespace gradientflow::cuda_ptx
