#include "gradientflow/config/text_values.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <numeric>
#include <system_error>
#include <vector>

#include "gradientflow/base/numbers.h"

namespace gradientflow {
namespace {

struct Unit {
  std::string_view name;
  unsigned shift;
};
constexpr std::array<Unit, 4> kUnits = {
    {{"kb", 10}, {"mb", 20}, {"gb", 30}, {"tb", 40}}};

template <typename Real>
std::string PrintReal(Real value) {
  std::array<char, 64> text;
  const auto [end, error] =
      std::to_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? std::string(text.data(), end) : "?";
}

char LowerChar(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

char UpperChar(char c) {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
}

// Returns the power of two of a unit: "", "b", "k", "kb", "kib", ...
std::optional<unsigned> ShiftOf(std::string_view unit) {
  if (unit.empty() || unit == "b") return 0U;
  for (const Unit& known : kUnits) {
    if (unit[0] != known.name[0]) continue;
    const std::string_view rest = unit.substr(1);
    if (rest.empty() || rest == "b" || rest == "ib") return known.shift;
  }
  return std::nullopt;
}

bool IsHost(std::string_view host) {
  return !host.empty() && host.find_first_of(" \t:/[]") == host.npos;
}

}  // namespace

std::optional<std::uint64_t> ParseUnsigned(std::string_view text) {
  return ParseNumber<std::uint64_t>(text);
}

std::optional<double> ParseDouble(std::string_view text) {
  return ParseFinite<double>(text);
}

std::optional<float> ParseFloat(std::string_view text) {
  return ParseFinite<float>(text);
}

std::string PrintDouble(double value) { return PrintReal(value); }
std::string PrintFloat(float value) { return PrintReal(value); }

std::optional<bool> ParseBool(std::string_view text) {
  const std::string word = Lower(text);
  for (const char* yes : {"1", "on", "true", "yes"}) {
    if (word == yes) return true;
  }
  for (const char* no : {"0", "off", "false", "no"}) {
    if (word == no) return false;
  }
  return std::nullopt;
}

std::optional<std::size_t> ParseBytes(std::string_view text) {
  const std::string word = Lower(text);
  if (word == "auto") return kAutoBytes;
  if (word == "inf") return kInfiniteBytes;
  const std::size_t digits =
      std::min(word.find_first_not_of("0123456789"), word.size());
  const auto number = ParseUnsigned(std::string_view(word).substr(0, digits));
  const auto shift = ShiftOf(std::string_view(word).substr(digits));
  if (!number || !shift) return std::nullopt;
  if (*number > (kAutoBytes - 1) >> *shift) return std::nullopt;
  return *number << *shift;
}

std::string PrintBytes(std::size_t bytes) {
  if (bytes == kAutoBytes) return "auto";
  if (bytes == kInfiniteBytes) return "inf";
  for (auto unit = kUnits.rbegin(); unit != kUnits.rend(); ++unit) {
    const std::size_t one = std::size_t{1} << unit->shift;
    if (bytes != 0 && bytes % one == 0) {
      return std::to_string(bytes >> unit->shift) + Upper(unit->name);
    }
  }
  return std::to_string(bytes);
}

std::string Lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), LowerChar);
  return result;
}

std::string Upper(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), UpperChar);
  return result;
}

std::uint64_t HashText(std::string_view text) {
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  }
  return hash;
}

std::size_t EditDistance(std::string_view a, std::string_view b) {
  // Row i holds the distances from the first i characters of `a` to each prefix
  // of `b`.
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

bool IsRendezvous(std::string_view text) {
  constexpr std::string_view kFile = "file:///";
  if (text.substr(0, kFile.size()) == kFile) return text.size() > kFile.size();
  const std::size_t colon = text.rfind(':');
  if (colon == text.npos) return false;
  const auto port = ParseUnsigned(text.substr(colon + 1));
  if (!port || *port < 1 || *port > 65535) return false;
  const std::string_view host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    return host.find_first_of(" \t/[]", 1) == host.size() - 1;
  }
  return IsHost(host);
}

}  // namespace gradientflow
