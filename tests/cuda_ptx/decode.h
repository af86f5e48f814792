#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gradientflow/base/status.h"
#include "tests/cuda_ptx/module.h"
#include "tests/cuda_ptx/program.h"

// From the text of a kernel to its instructions. Each mnemonic is a row of a
// table; what no row knows is an error that names file, line and instruction.
namespace gradientflow::cuda_ptx {

// The kernel as warps execute it.
Result<Kernel> Decode(const Module& module, const KernelText& text);

// Places of registers, constants and special registers in a warp's bytes.
class Layout {
 public:
  Layout(const Module& module, const KernelText& text, Kernel& kernel)
      : module_(module), text_(text), kernel_(kernel) {}

  // The register of that name, or no bytes' worth of type kNone.
  std::pair<Type, Operand> Register(const std::string& name);
  Operand Constant(std::uint32_t bytes, std::uint64_t bits);
  Operand Preset(Special special, std::uint64_t offset, std::uint32_t bytes);
  // The address of a parameter or of shared memory; false if there is neither.
  bool Symbol(const std::string& name, std::uint32_t bytes, Operand* operand);

 private:
  std::uint32_t Reserve(std::uint32_t bytes);

  const Module& module_;
  const KernelText& text_;
  Kernel& kernel_;
  std::map<std::string, std::pair<Type, Operand>> registers_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, Operand> constants_;
};

// One statement on its way to an instruction: "@%p1 add.s32 %r1, %r2, 3". A
// decoder takes the modifiers that it knows and the operands that it needs;
// whatever is left over, or not as expected, is the line's error.
class Line {
 public:
  Line(const KernelText& kernel, const Statement& statement, Layout& layout,
       Instruction& out);

  const std::string& mnemonic() const { return mnemonic_; }
  Instruction& out() { return out_; }
  std::size_t size() const { return operands_.size(); }
  const std::string& text(std::size_t i) const { return operands_[i]; }

  // Whether the modifier is there; it is then taken.
  bool Take(std::string_view modifier);
  // The index of the one that is there, or -1.
  int TakeOneOf(std::initializer_list<std::string_view> modifiers);
  // The last modifier that is left.
  Type TakeType();

  // Requires so many operands.
  void Expect(std::size_t operands);
  // Operand `text`, of a register as wide as `type`; or `wide`, or wider.
  Operand Read(const std::string& text, Type type, bool wide = false);
  Operand Write(const std::string& text, Type type, bool wide = false);
  // The usual form: operand i has types[i], and the first is the result.
  void Operands(std::initializer_list<Type> types);
  // The parts of "{a, b}", or the operand itself.
  std::vector<std::string> Parts(std::size_t i) const;
  // "[base + offset]".
  void Address(const std::string& text);
  // Where a branch goes.
  std::uint32_t Target(const std::string& label);

  void Fail(const std::string& why);
  // Sets the function that computes; null is an error of the type.
  void Computes(Compute compute);
  Status Finish();

 private:
  bool Immediate(const std::string& text, Type type, std::uint64_t* bits);
  void ParseGuard(std::string& text);

  const KernelText& kernel_;
  const Statement& statement_;
  Layout& layout_;
  Instruction& out_;
  std::string mnemonic_;
  std::vector<std::string> modifiers_;
  std::vector<std::string> operands_;
  std::string why_;
};

struct Row {
  std::string_view mnemonic;
  void (*decode)(Line& line);
};

// By what instructions do.
std::span<const Row> ArithmeticRows();
std::span<const Row> BitRows();
std::span<const Row> CompareRows();
std::span<const Row> ConvertRows();
std::span<const Row> MemoryRows();
std::span<const Row> ControlRows();

}  // namespace gradientflow::cuda_ptx
