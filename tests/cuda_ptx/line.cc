#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>

#include "gradientflow/base/str_cat.h"
#include "tests/cuda_ptx/decode.h"

namespace gradientflow::cuda_ptx {
namespace {

bool IsNumber(const std::string& text) {
  const std::size_t first = text[0] == '-' ? 1 : 0;
  return first < text.size() && text[first] >= '0' && text[first] <= '9';
}

std::uint64_t Low(std::uint64_t bits, unsigned bytes) {
  return bytes >= 8 ? bits : bits & ((std::uint64_t{1} << bytes * 8) - 1);
}

}  // namespace

Line::Line(const KernelText& kernel, const Statement& statement, Layout& layout,
           Instruction& out)
    : kernel_(kernel), statement_(statement), layout_(layout), out_(out) {
  out_.line = statement.line;
  out_.text = statement.text;
  std::string text = statement.text;
  ParseGuard(text);
  const std::size_t space = std::min(text.find_first_of(" \t"), text.size());
  operands_ = SplitAtCommas(text.substr(space));
  for (std::size_t begin = 0; begin <= space;) {
    const std::size_t dot = std::min(text.find('.', begin), space);
    modifiers_.push_back(text.substr(begin, dot - begin));
    begin = dot + 1;
  }
  mnemonic_ = modifiers_.front();
  modifiers_.erase(modifiers_.begin());
}

void Line::ParseGuard(std::string& text) {
  if (text[0] != '@') return;
  const std::size_t space = std::min(text.find_first_of(" \t"), text.size());
  const bool negated = text[1] == '!';
  const std::string name =
      text.substr(negated ? 2 : 1, space - (negated ? 2 : 1));
  const auto [type, operand] = layout_.Register(name);
  if (type != Type::kPred) Fail("no such predicate");
  out_.guard = {true, negated, operand};
  text = Trim(text.substr(space));
}

bool Line::Take(std::string_view modifier) {
  const auto found = std::find(modifiers_.begin(), modifiers_.end(), modifier);
  if (found == modifiers_.end()) return false;
  modifiers_.erase(found);
  return true;
}

int Line::TakeOneOf(std::initializer_list<std::string_view> modifiers) {
  int index = 0;
  for (const std::string_view modifier : modifiers) {
    if (Take(modifier)) return index;
    ++index;
  }
  return -1;
}

Type Line::TakeType() {
  const Type type =
      modifiers_.empty() ? Type::kNone : TypeNamed(modifiers_.back());
  if (type == Type::kNone) {
    Fail("no type");
    return Type::kB32;
  }
  modifiers_.pop_back();
  return type;
}

void Line::Expect(std::size_t operands) {
  if (operands_.size() == operands) return;
  Fail(StrCat("expected ", operands, " operands, seen ", operands_.size()));
  operands_.resize(operands);
}

bool Line::Immediate(const std::string& text, Type type, std::uint64_t* bits) {
  if (text == "WARP_SZ") {
    *bits = kLanes;
    return true;
  }
  if (!IsNumber(text)) return false;
  const char kind = text.size() > 2 ? text[1] : ' ';
  const bool hex_float = text[0] == '0' && (kind == 'f' || kind == 'F' ||
                                            kind == 'd' || kind == 'D');
  if (hex_float) {
    *bits = std::strtoull(text.c_str() + 2, nullptr, 16);
    const bool is_double = kind == 'd' || kind == 'D';
    return BytesOf(type) == (is_double ? 8 : 4);
  }
  if (IsFloat(type)) return false;
  *bits =
      text[0] == '-'
          ? static_cast<std::uint64_t>(std::strtoll(text.c_str(), nullptr, 0))
          : std::strtoull(text.c_str(), nullptr, 0);
  return true;
}

Operand Line::Read(const std::string& text, Type type, bool wide) {
  const auto [has, operand] = layout_.Register(text);
  const unsigned bytes = BytesOf(type);
  if (has != Type::kNone) {
    const bool fits =
        (has == Type::kPred) == (type == Type::kPred) &&
        (operand.bytes == bytes || (wide && operand.bytes > bytes));
    if (!fits) Fail(StrCat(text, " has another size"));
    return operand;
  }
  Operand symbol;
  if (layout_.Symbol(text, bytes, &symbol)) return symbol;
  std::uint64_t bits = 0;
  if (!Immediate(text, type, &bits)) Fail(StrCat("operand ", text));
  if (type == Type::kPred)
    return layout_.Constant(0, bits != 0 ? kAllLanes : 0);
  return layout_.Constant(bytes, Low(bits, bytes));
}

Operand Line::Write(const std::string& text, Type type, bool wide) {
  if (layout_.Register(text).first == Type::kNone) {
    Fail(StrCat(text, " is no register"));
  }
  return Read(text, type, wide);
}

void Line::Operands(std::initializer_list<Type> types) {
  Expect(types.size());
  std::size_t i = 0;
  for (const Type type : types) {
    out_.operands[i] =
        i == 0 ? Write(operands_[0], type) : Read(operands_[i], type);
    ++i;
  }
}

std::vector<std::string> Line::Parts(std::size_t i) const {
  const std::string& text = operands_[i];
  if (text.empty() || text[0] != '{') return {text};
  return SplitAtCommas(text.substr(1, text.size() - 2));
}

void Line::Address(const std::string& text) {
  if (text.size() < 3 || text.front() != '[' || text.back() != ']') {
    return Fail(StrCat("address ", text));
  }
  const std::size_t plus = std::min(text.find('+'), text.size() - 1);
  const std::string base = Trim(text.substr(1, plus - 1));
  if (plus + 1 < text.size()) {
    out_.access.offset = std::strtoll(text.c_str() + plus + 1, nullptr, 0);
  }
  // Addresses of shared memory may be in registers of 32 bits.
  const auto [type, operand] = layout_.Register(base);
  if (type != Type::kNone && operand.bytes == 4 &&
      out_.access.space == Space::kShared) {
    out_.operands[0] = operand;
    return;
  }
  out_.operands[0] = Read(base, Type::kB64);
}

std::uint32_t Line::Target(const std::string& label) {
  const auto found = kernel_.labels.find(label);
  if (found == kernel_.labels.end()) {
    Fail(StrCat("no label ", label));
    return 0;
  }
  return static_cast<std::uint32_t>(found->second);
}

void Line::Fail(const std::string& why) {
  if (why_.empty()) why_ = why;
}

void Line::Computes(Compute compute) {
  if (compute == nullptr) Fail("unknown for this type");
  out_.kind = Kind::kCompute;
  out_.compute = compute;
}

Status Line::Finish() {
  if (!modifiers_.empty()) Fail(StrCat("unknown: .", modifiers_.front()));
  if (why_.empty()) return Status();
  return {StatusCode::kUnimplemented,
          StrCat(kernel_.file, ":", statement_.line, ": ", statement_.text,
                 ": ", why_)};
}

}  // namespace gradientflow::cuda_ptx
