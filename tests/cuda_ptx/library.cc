#include "tests/cuda_ptx/library.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "tests/cuda_ptx/decode.h"

namespace gradientflow::cuda_ptx {
namespace {

namespace fs = std::filesystem;

// Where the build puts them, as tests see it.
constexpr const char* kFolder = "tests/cuda_ptx/ptx";

std::vector<fs::path> Sorted(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end(), [](const auto& a, const auto& b) {
    const std::string x = a.filename().string();
    const std::string y = b.filename().string();
    return std::pair(x.size(), x) < std::pair(y.size(), y);
  });
  return paths;
}

std::string Contents(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

std::string PlainName(const std::string& name) {
  constexpr std::string_view kBefore = "_GLOBAL__N__";
  constexpr std::size_t kDigits = 8;
  std::string plain;
  std::size_t from = 0;
  for (;;) {
    const std::size_t at = name.find(kBefore, from);
    if (at == std::string::npos) return plain.append(name, from);
    const std::size_t number = at + kBefore.size();
    plain.append(name, from, number - from);
    const std::size_t end = name.find_first_not_of("0123456789abcdef", number);
    const bool is_number = end == number + kDigits && name[end] == '_';
    from = is_number ? end + 1 : number;
  }
}

std::vector<std::string> Program::kernels() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

std::vector<std::string> Program::KernelsWith(std::string_view part) const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) {
    if (entry.text->text.find(part) != std::string::npos) names.push_back(name);
  }
  return names;
}

Result<Kernel*> Program::Find(const std::string& plain_name) {
  const auto found = entries_.find(plain_name);
  if (found == entries_.end()) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat(name_, " has no kernel ", plain_name));
  }
  Entry& entry = found->second;
  if (entry.kernel == nullptr) {
    Result<Kernel> kernel = Decode(*entry.module, *entry.text);
    if (!kernel.ok()) return kernel.status();
    entry.kernel = std::make_unique<Kernel>(std::move(kernel).value());
  }
  return entry.kernel.get();
}

bool Program::SameAs(const Program& other) const {
  return std::equal(entries_.begin(), entries_.end(), other.entries_.begin(),
                    other.entries_.end(), [](const auto& a, const auto& b) {
                      return a.first == b.first &&
                             PlainName(a.second.text->text) ==
                                 PlainName(b.second.text->text);
                    });
}

Result<Library> Library::Read(const std::string& folder) {
  Library library;
  for (const fs::path& architecture : Sorted(folder)) {
    Program program;
    const std::string name = architecture.filename().string();
    program.name_ = "compute_" + name;
    for (const fs::path& path : Sorted(architecture)) {
      Result<Module> parsed = ParseModule(path.string(), Contents(path));
      if (!parsed.ok()) return parsed.status();
      const auto module =
          std::make_shared<const Module>(std::move(parsed).value());
      for (const KernelText& text : module->kernels) {
        program.entries_[PlainName(text.name)] = {module, &text, nullptr};
      }
    }
    library.architectures_.push_back(name);
    const auto same =
        std::find_if(library.programs_.begin(), library.programs_.end(),
                     [&](const Program& p) { return p.SameAs(program); });
    if (same != library.programs_.end()) {
      same->name_ += "_" + name;
    } else {
      library.programs_.push_back(std::move(program));
    }
  }
  if (library.programs_.empty()) {
    return Status(StatusCode::kInvalidArgument, StrCat("no PTX in ", folder));
  }
  return library;
}

Library& Library::Get() {
  static auto* const library = [] {
    Result<Library> read = Read(kFolder);
    if (!read.ok()) {
      std::fprintf(stderr, "cuda_ptx: %s\n", read.status().ToString().c_str());
      std::abort();
    }
    return new Library(std::move(read).value());
  }();
  return *library;
}

}  // namespace gradientflow::cuda_ptx
