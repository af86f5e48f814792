#include "tests/cuda_ptx/module.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow::cuda_ptx {
namespace {

constexpr const char* kSpaces = " \t\n\r";

// Blanks comments out, so that lines keep their numbers.
void RemoveComments(std::string& text) {
  for (std::size_t i = 0; i + 1 < text.size(); ++i) {
    if (text[i] != '/' || (text[i + 1] != '/' && text[i + 1] != '*')) continue;
    const bool line = text[i + 1] == '/';
    const std::size_t found = text.find(line ? "\n" : "*/", i + 2);
    const std::size_t end =
        found == std::string::npos ? text.size() : found + (line ? 0 : 2);
    for (; i < end; ++i) {
      if (text[i] != '\n') text[i] = ' ';
    }
  }
}

std::vector<std::string> Words(const std::string& text) {
  std::vector<std::string> words;
  for (std::size_t at = text.find_first_not_of(kSpaces);
       at != std::string::npos;) {
    const std::size_t end =
        std::min(text.find_first_of(kSpaces, at), text.size());
    words.push_back(text.substr(at, end - at));
    at = text.find_first_not_of(kSpaces, end);
  }
  return words;
}

std::string WordAfter(const std::vector<std::string>& words,
                      const std::string& word) {
  const auto found = std::find(words.begin(), words.end(), word);
  return found == words.end() || found + 1 == words.end() ? "" : found[1];
}

std::size_t Number(const std::string& text) {
  return std::strtoull(text.c_str(), nullptr, 0);
}

std::size_t RoundUp(std::size_t bytes, std::size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// A declaration of a parameter or of memory: its name, type and size.
struct Variable {
  std::string name;
  Type type = Type::kNone;
  std::size_t alignment = 0;
  std::size_t count = 1;  // 0: of unknown size.
  std::size_t bytes() const { return BytesOf(type) * count; }
};

Variable ParseVariable(const std::vector<std::string>& words) {
  Variable variable;
  for (const std::string& word : words) {
    if (word[0] != '.' || variable.type != Type::kNone) continue;
    variable.type = TypeNamed(word.substr(1));
  }
  variable.name = words.back();
  const std::size_t bracket = variable.name.find('[');
  if (bracket != std::string::npos) {
    variable.count = Number(variable.name.substr(bracket + 1));
    variable.name.resize(bracket);
  }
  variable.alignment = BytesOf(variable.type);
  // The .align that follows .ptr is that of what the pointer points to.
  const auto pointer = std::find(words.begin(), words.end(), ".ptr");
  const std::string align =
      WordAfter(std::vector<std::string>(words.begin(), pointer), ".align");
  if (!align.empty()) variable.alignment = Number(align);
  return variable;
}

class Parser {
 public:
  Parser(std::string file, std::string text)
      : file_(std::move(file)), text_(std::move(text)) {}

  Result<Module> Parse() {
    RemoveComments(text_);
    while (true) {
      const std::size_t begin = SkipSpaces();
      if (begin == text_.size()) return std::move(module_);
      const std::size_t end = text_.find_first_of(";{", begin);
      if (end == std::string::npos) return Failed("a declaration has no end");
      const std::string head = text_.substr(begin, end - begin);
      at_ = end + 1;
      Advance(end);
      if (text_[end] == ';') {
        GF_RETURN_IF_ERROR(ParseMemory(head));
      } else if (head.find(".entry") != std::string::npos) {
        // What stands before it belongs to the file.
        GF_RETURN_IF_ERROR(ParseKernel(head, begin + head.find(".entry")));
      } else {
        SkipBlock();
      }
    }
  }

 private:
  Status Failed(const std::string& why) const {
    return {StatusCode::kInvalidArgument, StrCat(file_, ":", line_, ": ", why)};
  }

  // Counts the lines up to `position`.
  void Advance(std::size_t position) {
    for (; counted_ < position; ++counted_) line_ += text_[counted_] == '\n';
  }

  std::size_t SkipSpaces() {
    at_ = std::min(text_.find_first_not_of(kSpaces, at_), text_.size());
    Advance(at_);
    return at_;
  }

  // The block of a function or of initial values, which no kernel has.
  void SkipBlock() {
    for (int depth = 1; depth > 0 && at_ < text_.size(); ++at_) {
      depth += text_[at_] == '{' ? 1 : text_[at_] == '}' ? -1 : 0;
    }
    if (SkipSpaces() < text_.size() && text_[at_] == ';') ++at_;
  }

  Status ParseMemory(const std::string& head) {
    const std::vector<std::string> words = Words(head);
    if (std::find(words.begin(), words.end(), ".shared") == words.end()) {
      return Status();
    }
    const Variable variable = ParseVariable(words);
    if (variable.type == Type::kNone) return Failed("type of shared memory");
    const std::size_t at = RoundUp(
        module_.shared_bytes, std::max<std::size_t>(variable.alignment, 1));
    module_.shared[variable.name] = kSharedBegin + at;
    module_.shared_bytes = at + variable.bytes();
    return Status();
  }

  Status ParseKernel(const std::string& head, std::size_t begin) {
    KernelText kernel;
    kernel.file = file_;
    const std::size_t open = head.find('(');
    const std::size_t close = head.rfind(')');
    const bool has_parameters = open != std::string::npos;
    kernel.name = WordAfter(Words(head.substr(0, open)), ".entry");
    if (has_parameters) {
      for (const std::string& text :
           SplitAtCommas(head.substr(open + 1, close - open - 1))) {
        const Variable variable = ParseVariable(Words(text));
        if (variable.type == Type::kNone) return Failed("parameter " + text);
        const std::size_t offset =
            RoundUp(kernel.parameter_bytes, variable.alignment);
        kernel.parameters.push_back(
            {variable.name, {offset, variable.bytes()}});
        kernel.parameter_bytes = offset + variable.bytes();
      }
    }
    const std::string most = WordAfter(
        Words(has_parameters ? head.substr(close + 1) : head), ".maxntid");
    if (!most.empty())
      kernel.most_threads = static_cast<unsigned>(Number(most));
    GF_RETURN_IF_ERROR(ParseBody(kernel));
    kernel.text = text_.substr(begin, at_ - begin);
    module_.kernels.push_back(std::move(kernel));
    return Status();
  }

  Status ParseBody(KernelText& kernel) {
    for (int depth = 1; depth > 0;) {
      if (SkipSpaces() == text_.size()) return Failed("a kernel has no end");
      if (text_[at_] == '{' || text_[at_] == '}') {
        depth += text_[at_++] == '{' ? 1 : -1;
        continue;
      }
      const std::size_t end = text_.find_first_of(";:", at_);
      if (end == std::string::npos) return Failed("a statement has no end");
      std::string text = Trim(text_.substr(at_, end - at_));
      at_ = end + 1;
      if (text_[end] == ':') {
        kernel.labels[text] = kernel.statements.size();
      } else if (text.compare(0, 4, ".reg") == 0) {
        GF_RETURN_IF_ERROR(ParseRegisters(text, kernel));
      } else if (text.compare(0, 7, ".shared") == 0) {
        GF_RETURN_IF_ERROR(ParseMemory(text));
      } else if (text.compare(0, 7, ".pragma") != 0) {
        std::replace(text.begin(), text.end(), '\n', ' ');
        kernel.statements.push_back({line_, std::move(text)});
      }
    }
    return Status();
  }

  Status ParseRegisters(const std::string& text, KernelText& kernel) const {
    const std::vector<std::string> words = Words(text);
    const Type type =
        words.size() > 2 ? TypeNamed(words[1].substr(1)) : Type::kNone;
    if (type == Type::kNone) return Failed(text);
    const std::size_t names = text.find(words[1]) + words[1].size();
    for (const std::string& name : SplitAtCommas(text.substr(names))) {
      const std::size_t open = name.find('<');
      const unsigned count =
          open == std::string::npos
              ? 0
              : static_cast<unsigned>(Number(name.substr(open + 1)));
      kernel.registers[name.substr(0, open)] = {type, count};
    }
    return Status();
  }

  const std::string file_;
  std::string text_;
  Module module_;
  std::size_t at_ = 0;
  std::size_t counted_ = 0;
  int line_ = 1;
};

}  // namespace

std::string Trim(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(kSpaces) + 1 - begin);
}

std::vector<std::string> SplitAtCommas(const std::string& text) {
  std::vector<std::string> parts;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || (text[i] == ',' && depth == 0)) {
      const std::string part = Trim(text.substr(begin, i - begin));
      if (!part.empty()) parts.push_back(part);
      begin = i + 1;
    } else {
      depth += text[i] == '{' || text[i] == '[' ? 1 : 0;
      depth -= text[i] == '}' || text[i] == ']' ? 1 : 0;
    }
  }
  return parts;
}

Result<Module> ParseModule(const std::string& file, std::string text) {
  return Parser(file, std::move(text)).Parse();
}

}  // namespace gradientflow::cuda_ptx
