#include "benchmarks/allreduce/report.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "nlohmann/json.hpp"

namespace gradientflow::benchmarks {
namespace {

template <typename... Args>
std::string Format(const char* format, const Args&... args) {
  std::array<char, 512> text{};
  std::snprintf(text.data(), text.size(), format, args...);
  return text.data();
}

std::string TypeName(const Batch& batch) {
  std::string name(Name(batch.dtype));
  if (batch.wire != batch.dtype) {
    name += "/" + std::string(Name(batch.wire));
  }
  return name;
}

}  // namespace

double Row::algbw() const {
  return static_cast<double>(batch.bytes) / seconds * 1e-9;
}

double Row::busbw() const { return algbw() * 2 * (ranks - 1) / ranks; }

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  if (values.size() % 2 == 1) return values[half];
  return (values[half - 1] + values[half]) / 2;
}

Comparison Compare(const std::string& name, const std::vector<double>& ours,
                   const std::vector<double>& theirs) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    ratios.push_back(theirs[i] / ours[i]);
  }
  return {name, "", Median(theirs), Median(ratios)};
}

std::string RowHeader(const std::vector<std::string>& names) {
  std::string top = Format("%12s %11s %16s %8s %16s %6s %11s %7s %7s %6s",
                           "size", "count", "type", "redop", "algorithm",
                           "fabric", "time", "algbw", "busbw", "#wrong");
  std::string units =
      Format("%12s %11s %16s %8s %16s %6s %11s %7s %7s %6s", "(B)",
             "(elements)", "", "", "", "", "(us)", "(GB/s)", "(GB/s)", "");
  for (const std::string& name : names) {
    top += Format(" %11s %9s", name.c_str(), (name + "/").c_str());
    units += Format(" %11s %9s", "(us)", "ours");
  }
  return "#" + top + "\n#" + units + "\n";
}

std::string RowLine(const Row& row) {
  std::string line =
      Format(" %12zu %11zu %16s %8s %16s %6s %11.2f %7.2f %7.2f %6llu",
             row.batch.bytes, row.batch.count(), TypeName(row.batch).c_str(),
             std::string(Name(row.batch.op)).c_str(), row.algorithm.c_str(),
             row.fabric.c_str(), row.seconds * 1e6, row.algbw(), row.busbw(),
             static_cast<unsigned long long>(row.wrong));
  for (const Comparison& other : row.comparisons) {
    line += Format(" %11.2f %9.2f", other.seconds * 1e6, other.ratio);
    if (!other.note.empty()) line += Format(" (%s)", other.note.c_str());
  }
  return line + "\n";
}

std::string RowJson(const Row& row) {
  nlohmann::ordered_json json = {
      {"size", row.batch.bytes},       {"count", row.batch.count()},
      {"type", Name(row.batch.dtype)}, {"wire", Name(row.batch.wire)},
      {"redop", Name(row.batch.op)},   {"algorithm", row.algorithm},
      {"fabric", row.fabric},          {"ranks", row.ranks},
      {"time_us", row.seconds * 1e6},  {"algbw_gbps", row.algbw()},
      {"busbw_gbps", row.busbw()},     {"wrong", row.wrong}};
  for (const Comparison& other : row.comparisons) {
    json[other.name] = {{"time_us", other.seconds * 1e6},
                        {"ratio", other.ratio}};
    if (!other.note.empty()) json[other.name]["note"] = other.note;
  }
  return json.dump() + "\n";
}

}  // namespace gradientflow::benchmarks
