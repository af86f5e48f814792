#include "gradientflow/planner/text_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "gradientflow/base/str_cat.h"

namespace gradientflow::planner {
namespace {

Status Failed(const std::string& what, const std::string& path) {
  return {StatusCode::kInvalidArgument,
          StrCat("cannot ", what, " ", path, ": ", std::strerror(errno))};
}

}  // namespace

Result<std::string> ReadTextFile(const std::string& path) {
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) return Failed("read", path);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (in.bad()) return Failed("read", path);
  return text;
}

Status WriteTextFile(const std::string& path, std::string_view text) {
  errno = 0;
  // Beside the file, since a rename works within one file system only.
  const std::string draft = StrCat(path, ".", getpid(), ".tmp");
  {
    std::ofstream out(draft, std::ios::binary | std::ios::trunc);
    out.write(text.data(), static_cast<std::streamsize>(text.size()));
    out.close();
    if (!out) {
      const Status failed = Failed("write", path);
      std::remove(draft.c_str());
      return failed;
    }
  }
  if (std::rename(draft.c_str(), path.c_str()) == 0) return {};
  const Status failed = Failed("write", path);
  std::remove(draft.c_str());
  return failed;
}

}  // namespace gradientflow::planner
