#include "gradientflow/communicator/agreement.h"

#include <algorithm>
#include <cstddef>
#include <sstream>
#include <vector>

#include "gradientflow/base/little_endian.h"
#include "gradientflow/base/secret.h"
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

std::uint64_t AgreementHash(std::string_view text) {
  const Bits256 bits = HmacSha256("gradientflow settings", text);
  return GetLittleEndian<std::uint64_t>(bits.data());
}

std::string SettingLine(const Options& options, const char* name) {
  return StrCat(name, "=", GetOption(options, name).value(), "\n");
}

std::string AgreementText(const Options& options) {
  std::string text = StrCat("wire_format=", int{kWireVersion}, "\n");
  for (const char* name : kShared) text += SettingLine(options, name);
  return text;
}

std::string FirstDifference(const RankText& a, const RankText& b) {
  const std::vector<std::string> as = Lines(a.text);
  const std::vector<std::string> bs = Lines(b.text);
  std::size_t i = 0;
  while (i < std::min(as.size(), bs.size()) && as[i] == bs[i]) ++i;
  return StrCat("the ranks disagree: rank ", a.rank, " has ",
                i < as.size() ? as[i] : "nothing", ", rank ", b.rank, " has ",
                i < bs.size() ? bs[i] : "nothing");
}

}  // namespace gradientflow
