#include "gradientflow/communicator/agreement.h"

#include <algorithm>
#include <cstddef>
#include <sstream>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/config/settings_table.h"
#include "transports/wire.h"

namespace gradientflow {
namespace {

constexpr const char* kShared[] = {
    "size",    "algorithm",   "segment_bytes", "segments_in_flight",
    "connect", "connections", "device_sums",   "nccl_windows"};

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace

std::string SettingLine(const Options& options, const char* name) {
  return StrCat(name, "=", GetOption(options, name).value(), "\n");
}

std::string AgreementText(const Options& options) {
  std::string text = StrCat("wire_format=", int{kWireVersion}, "\n");
  for (const char* name : kShared) text += SettingLine(options, name);
  return text;
}

std::string FirstDifference(const std::string& first, int rank,
                            const std::string& theirs) {
  const std::vector<std::string> a = Lines(first);
  const std::vector<std::string> b = Lines(theirs);
  std::size_t i = 0;
  while (i < std::min(a.size(), b.size()) && a[i] == b[i]) ++i;
  return StrCat("the ranks disagree: rank 0 has ",
                i < a.size() ? a[i] : "nothing", ", rank ", rank, " has ",
                i < b.size() ? b[i] : "nothing");
}

}  // namespace gradientflow
