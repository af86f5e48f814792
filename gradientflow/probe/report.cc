#include "gradientflow/probe/report.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

// The pass of CSC reads a gradient, and reads and writes its residual, of the
// same size.
constexpr double kBytesOfPass = 3;

planner::Level LevelOf(const MessageTimes& times) {
  return {times.p50, times.p99};
}
planner::Level LevelOf(const MemoryRates& rates, double factor = 1) {
  return {factor * rates.p50, factor * rates.p99};
}

// The share of a message's time that is a rank's work, at most. What messages
// of a burst take beyond that, threads have waited for each other.
constexpr double kMostWork = 0.95;

planner::Level WorkOf(const MessageTimes& latency, const MessageTimes& work) {
  return {std::min(work.p50, kMostWork * latency.p50),
          std::min(work.p99, kMostWork * latency.p99)};
}

// A planner adds the work of a message itself.
planner::Level LatencyOf(const MessageTimes& latency,
                         const MessageTimes& work) {
  const double part = WorkOf(latency, work).p50;
  return {latency.p50 - part, latency.p99 - part};
}

// A one-way flow is as fast as the slower direction.
std::vector<planner::Bandwidth> BandwidthOf(const PairResult& pair,
                                            bool under_load) {
  std::map<std::tuple<std::size_t, bool, int>, planner::Bandwidth> all;
  for (std::size_t i = 0; i < pair.flow_count; ++i) {
    const FlowResult& flow = pair.flows[i];
    if (flow.under_load != under_load) continue;
    const bool both = flow.direction == Direction::kBoth;
    const planner::Bandwidth one = {
        .message_bytes = flow.message_bytes,
        .direction =
            both ? planner::Direction::kBothWays : planner::Direction::kOneWay,
        .streams = static_cast<std::size_t>(flow.connections),
        .ranks = 1,
        .bytes_per_second = {flow.rate.p50, flow.rate.p99}};
    const auto [at, is_new] =
        all.try_emplace({flow.message_bytes, both, flow.connections}, one);
    planner::Level& level = at->second.bytes_per_second;
    level.p50 = std::min(level.p50, one.bytes_per_second.p50);
    level.p99 = std::min(level.p99, one.bytes_per_second.p99);
  }
  std::vector<planner::Bandwidth> list;
  for (const auto& [key, one] : all) list.push_back(one);
  return list;
}

planner::ProbedPair PairOf(const ProbeResult& result, const PairResult& pair,
                           planner::PairClass pair_class) {
  planner::ProbedPair file;
  file.pair_class = pair_class;
  file.transport = pair.transport.data();
  file.idle = {.latency_seconds = LatencyOf(pair.latency, pair.own_work),
               .message_seconds = WorkOf(pair.latency, pair.own_work),
               .reduce_bytes_per_second = LevelOf(result.reduce_in_cache),
               .bandwidth = BandwidthOf(pair, /*under_load=*/false),
               .backward_seconds_per_message = std::nullopt,
               .driver_seconds_per_byte = planner::Level{
                   pair.driver_seconds_per_byte, pair.driver_seconds_per_byte}};
  if (result.load_threads == 0) return file;
  file.loaded = planner::PairLevels{
      .latency_seconds =
          LatencyOf(pair.latency_under_load, pair.own_work_under_load),
      .message_seconds =
          WorkOf(pair.latency_under_load, pair.own_work_under_load),
      .reduce_bytes_per_second = LevelOf(pair.reduce_under_load),
      .bandwidth = BandwidthOf(pair, /*under_load=*/true),
      .backward_seconds_per_message =
          LevelOf(pair.backward_seconds_per_message),
      .driver_seconds_per_byte = std::nullopt};
  return file;
}

// What the ranks of a host get of its line together.
void AddLines(const ProbeResult& result, bool under_load,
              planner::PairLevels* levels) {
  for (const LineResult& line : result.lines) {
    if (line.under_load != under_load) continue;
    for (const auto& [direction, rate, bytes] :
         {std::tuple{planner::Direction::kOneWay, line.one_way,
                     line.one_way_bytes},
          {planner::Direction::kBothWays, line.both_ways,
           line.both_ways_bytes}}) {
      levels->bandwidth.push_back(
          {.message_bytes = bytes,
           .direction = direction,
           .streams = static_cast<std::size_t>(
               std::max(result.across.flows[0].connections, 1)),
           .ranks = static_cast<std::size_t>(line.ranks),
           .bytes_per_second = {rate, rate},
           .hosts = static_cast<std::size_t>(line.hosts)});
    }
  }
}

std::string Line(const char* format, auto... values) {
  std::array<char, 160> text{};
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}

std::string TextOf(const char* name, const ProbeResult& result,
                   const PairResult& pair) {
  if (!pair.measured) return "";
  const auto times = [](const char* what, const MessageTimes& at) {
    return Line("  %-34s p50 %8.1f us   p99 %8.1f us\n", what, 1e6 * at.p50,
                1e6 * at.p99);
  };
  std::string text = StrCat(name, ": ranks ", pair.leader, " and ",
                            pair.follower, ", ", pair.transport.data(), "\n");
  text += times("latency of a message", pair.latency);
  text += times("own work per message", pair.own_work);
  if (result.load_threads > 0) {
    text += times("latency under load", pair.latency_under_load);
    text += times("own work under load", pair.own_work_under_load);
    text += times("backward longer per message",
                  {pair.backward_seconds_per_message.p50,
                   pair.backward_seconds_per_message.p99});
  }
  text += Line("  %-34s     %8.3f ns\n", "driver per byte, beside passes",
               1e9 * pair.driver_seconds_per_byte);
  for (std::size_t i = 0; i < pair.flow_count; ++i) {
    const FlowResult& flow = pair.flows[i];
    const char* const direction =
        flow.direction == Direction::kBoth         ? "both ways"
        : flow.direction == Direction::kFromLeader ? "one way"
                                                   : "one way, back";
    text += Line(
        "  %5zu KiB, %-13s, %d conn.%s   p50 %7.3f Gb/s   p99 %7.3f Gb/s\n",
        flow.message_bytes >> 10, direction, flow.connections,
        flow.under_load ? ", load" : "      ", 8e-9 * flow.rate.p50,
        8e-9 * flow.rate.p99);
  }
  return text;
}

}  // namespace

planner::Probe FileOf(const ProbeResult& result) {
  planner::Probe file;
  file.hosts = static_cast<std::size_t>(result.hosts);
  file.ranks_per_host = static_cast<std::size_t>(result.ranks_per_host);
  file.cores_per_host = static_cast<std::size_t>(result.cores_per_host);
  file.memory_bytes_per_second = LevelOf(result.residual, kBytesOfPass);
  file.pass_seconds = LevelOf(result.pass_seconds);
  if (result.inside.measured) {
    file.pairs.push_back(
        PairOf(result, result.inside, planner::PairClass::kSameHost));
  }
  if (!result.across.measured) return file;
  planner::ProbedPair across =
      PairOf(result, result.across, planner::PairClass::kOtherHost);
  AddLines(result, /*under_load=*/false, &across.idle);
  if (across.loaded) AddLines(result, /*under_load=*/true, &*across.loaded);
  file.pairs.push_back(std::move(across));
  return file;
}

std::string TextOf(const ProbeResult& result) {
  std::string text = StrCat(result.hosts, " hosts, ", result.ranks,
                            " ranks, at most ", result.ranks_per_host,
                            " per host, ", result.cores_per_host, " cores\n");
  text += TextOf("same host", result, result.inside);
  text += TextOf("other host", result, result.across);
  for (const LineResult& line : result.lines) {
    text += Line(
        "a host's line, %d ranks on each of %d hosts%s: %.3f Gb/s one way, "
        "%.3f Gb/s both ways\n",
        line.ranks, line.hosts, line.under_load ? ", load" : "",
        8e-9 * line.one_way, 8e-9 * line.both_ways);
  }
  const auto memory = [&](const char* what, const MemoryRates& rate) {
    text += Line("%-36s p50 %7.2f GB/s   p99 %7.2f GB/s\n", what,
                 1e-9 * rate.p50, 1e-9 * rate.p99);
  };
  memory("reduce, in memory", result.reduce);
  memory("reduce, in caches", result.reduce_in_cache);
  memory("CSC's pass", result.residual);
  return text;
}

}  // namespace gradientflow
