#include "gradientflow/planner/probe.h"

#include <algorithm>
#include <utility>

#include "gradientflow/planner/json_fields.h"

namespace gradientflow::planner {
namespace {

constexpr const char* kOneWay = "one_way";
constexpr const char* kBothWays = "both_ways";
constexpr const char* kSameHost = "same_host";
constexpr const char* kOtherHost = "other_host";

Bandwidth ReadBandwidth(Fields& fields) {
  Bandwidth bandwidth;
  bandwidth.message_bytes = fields.Count("message_bytes", 1);
  const std::string direction = fields.Text("direction");
  if (direction != kOneWay && direction != kBothWays) {
    fields.Expected("direction", "one_way or both_ways");
  }
  bandwidth.direction =
      direction == kOneWay ? Direction::kOneWay : Direction::kBothWays;
  bandwidth.streams = fields.Count("streams", 1);
  bandwidth.ranks = fields.Count("ranks", 1);
  if (fields.Has("hosts")) bandwidth.hosts = fields.Count("hosts", 2);
  bandwidth.bytes_per_second = fields.Rate("bytes_per_second");
  return bandwidth;
}

PairLevels ReadLevels(Fields& fields, bool loaded) {
  PairLevels levels;
  levels.latency_seconds = fields.Times99("latency_seconds");
  levels.message_seconds = fields.Times99("message_seconds");
  levels.reduce_bytes_per_second = fields.Rate("reduce_bytes_per_second");
  fields.List("bandwidth", [&](Fields& entry) {
    levels.bandwidth.push_back(ReadBandwidth(entry));
  });
  const bool usable = std::any_of(
      levels.bandwidth.begin(), levels.bandwidth.end(), [](const auto& b) {
        return b.direction == Direction::kBothWays && b.ranks == 1 &&
               b.hosts == 2;
      });
  if (!usable) {
    fields.Expected("bandwidth",
                    "an entry that is both_ways with ranks 1 and hosts 2");
  }
  if (loaded && fields.Has("backward_seconds_per_message")) {
    levels.backward_seconds_per_message =
        fields.Times99("backward_seconds_per_message");
  }
  if (!loaded && fields.Has("driver_seconds_per_byte")) {
    levels.driver_seconds_per_byte = fields.Times99("driver_seconds_per_byte");
  }
  return levels;
}

void ReadPair(Fields& fields, Probe* probe) {
  ProbedPair pair;
  const std::string name = fields.Text("class");
  if (name != kSameHost && name != kOtherHost) {
    fields.Expected("class", "same_host or other_host");
  }
  pair.pair_class =
      name == kSameHost ? PairClass::kSameHost : PairClass::kOtherHost;
  if (FindPair(*probe, pair.pair_class) != nullptr) {
    fields.Expected("class", "one entry of each class");
  }
  pair.transport = fields.Text("transport");
  fields.Object("idle", [&](Fields& of) { pair.idle = ReadLevels(of, false); });
  if (fields.Has("loaded")) {
    fields.Object("loaded",
                  [&](Fields& of) { pair.loaded = ReadLevels(of, true); });
  }
  probe->pairs.push_back(std::move(pair));
}

nlohmann::ordered_json LevelsJson(const PairLevels& levels) {
  auto list = nlohmann::ordered_json::array();
  for (const Bandwidth& entry : levels.bandwidth) {
    nlohmann::ordered_json one = {
        {"message_bytes", entry.message_bytes},
        {"direction",
         entry.direction == Direction::kOneWay ? kOneWay : kBothWays},
        {"streams", entry.streams},
        {"ranks", entry.ranks}};
    if (entry.hosts != Bandwidth{}.hosts) one["hosts"] = entry.hosts;
    one["bytes_per_second"] = ToJson(entry.bytes_per_second);
    list.push_back(one);
  }
  nlohmann::ordered_json json = {
      {"latency_seconds", ToJson(levels.latency_seconds)},
      {"message_seconds", ToJson(levels.message_seconds)},
      {"reduce_bytes_per_second", ToJson(levels.reduce_bytes_per_second)},
      {"bandwidth", list}};
  if (levels.backward_seconds_per_message) {
    json["backward_seconds_per_message"] =
        ToJson(*levels.backward_seconds_per_message);
  }
  if (levels.driver_seconds_per_byte) {
    json["driver_seconds_per_byte"] = ToJson(*levels.driver_seconds_per_byte);
  }
  return json;
}

}  // namespace

const ProbedPair* FindPair(const Probe& probe, PairClass pair_class) {
  for (const ProbedPair& pair : probe.pairs) {
    if (pair.pair_class == pair_class) return &pair;
  }
  return nullptr;
}

Result<Probe> ParseProbe(std::string_view text) {
  Probe probe;
  const auto read = [&](Fields& fields) {
    probe.hosts = fields.Count("hosts", 1);
    probe.ranks_per_host = fields.Count("ranks_per_host", 1);
    probe.cores_per_host = fields.Count("cores_per_host", 1);
    probe.memory_bytes_per_second = fields.Rate("memory_bytes_per_second");
    if (fields.Has("pass_seconds")) {
      probe.pass_seconds = fields.Times99("pass_seconds");
    }
    fields.List("pairs", [&](Fields& entry) { ReadPair(entry, &probe); });
    if (probe.pairs.empty()) fields.Expected("pairs", "at least one");
  };
  GF_RETURN_IF_ERROR(ParseFile(text, "probe", &probe.measured, read));
  return probe;
}

std::string ProbeText(const Probe& probe) {
  nlohmann::ordered_json file = FileHead("probe", probe.measured);
  file["hosts"] = probe.hosts;
  file["ranks_per_host"] = probe.ranks_per_host;
  file["cores_per_host"] = probe.cores_per_host;
  file["memory_bytes_per_second"] = ToJson(probe.memory_bytes_per_second);
  if (probe.pass_seconds) file["pass_seconds"] = ToJson(*probe.pass_seconds);
  file["pairs"] = nlohmann::ordered_json::array();
  for (const ProbedPair& pair : probe.pairs) {
    nlohmann::ordered_json json = {
        {"class",
         pair.pair_class == PairClass::kSameHost ? kSameHost : kOtherHost},
        {"transport", pair.transport},
        {"idle", LevelsJson(pair.idle)}};
    if (pair.loaded) json["loaded"] = LevelsJson(*pair.loaded);
    file["pairs"].push_back(json);
  }
  return FileText(file);
}

}  // namespace gradientflow::planner
