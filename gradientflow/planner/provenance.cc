#include "gradientflow/planner/provenance.h"

#include <unistd.h>

#include <array>
#include <cstring>
#include <ctime>

#include "gradientflow/base/str_cat.h"

namespace gradientflow::planner {

std::string MeasuredBy(const std::string& program) {
  std::array<char, 256> host{};
  // A host whose name is too long has the beginning of it.
  static_cast<void>(::gethostname(host.data(), host.size() - 1));
  return StrCat(program, " on ", host.data());
}

std::string TimeNow() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text.data();
}

}  // namespace gradientflow::planner
