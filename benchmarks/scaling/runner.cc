#include "benchmarks/scaling/runner.h"

#include <cstdio>
#include <fstream>
#include <limits>
#include <optional>
#include <utility>

#include "benchmarks/netns.h"
#include "benchmarks/ranks.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/config/settings_table.h"

namespace gradientflow::benchmarks {
namespace {

constexpr int kRendezvousPort = 29400;  // In a namespace of its own.

// Of this machine, in bytes; unbounded where it cannot be told.
double AvailableMemory() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  double kilobytes = 0;
  std::string unit;
  while (file >> name >> kilobytes >> unit) {
    if (name == "MemAvailable:") return kilobytes * 1024;
  }
  return std::numeric_limits<double>::infinity();
}

// The pool, and for CSC the float32 residual and the staging buffers.
double MemoryOf(const Cell& cell, const Mode& mode) {
  const double pool = static_cast<double>(cell.model.elements()) *
                      static_cast<double>(SizeOf(mode.dtype));
  const double residual =
      mode.sparsity > 0 ? 4.0 * static_cast<double>(cell.model.elements()) : 0;
  return cell.ranks * (1.3 * pool + residual + 64e6);
}

// All modes at once, so that they can take turns, if memory allows; else one
// after the other.
Result<std::vector<std::vector<Mode>>> Group(const Cell& cell) {
  const double limit = 0.8 * AvailableMemory();
  double all = 0;
  for (const Mode& mode : cell.modes) {
    const double one = MemoryOf(cell, mode);
    all += one;
    if (one <= limit) continue;
    return Status(StatusCode::kResourceExhausted,
                  StrCat(cell.model.name, " on ", cell.ranks,
                         " ranks needs about ", one / 1e9,
                         " GB of memory, of which 80 % of what is available "
                         "are ",
                         limit / 1e9, " GB: try fewer --ranks"));
  }
  if (all <= limit) return std::vector<std::vector<Mode>>{cell.modes};
  std::vector<std::vector<Mode>> groups;
  for (const Mode& mode : cell.modes) groups.push_back({mode});
  return groups;
}

struct Place {
  std::string rendezvous;
  std::string interface;
  std::optional<LinkedHosts> hosts;
};

Result<Place> MakePlace(const RunSettings& settings, int ranks) {
  Place place;
  if (settings.link_gbps <= 0 || ranks == 1) {
    Result<std::string> rendezvous = LocalRendezvous();
    if (!rendezvous.ok()) return rendezvous.status();
    place.rendezvous = std::move(rendezvous).value();
    place.interface = "lo";
    return place;
  }
  Result<LinkedHosts> hosts = LinkedHosts::Create(
      ranks, LinkSettings{settings.link_gbps, settings.link_mtu});
  if (!hosts.ok()) return hosts.status();
  place.hosts.emplace(std::move(hosts).value());
  place.rendezvous = StrCat(LinkedHosts::Address(0), ":", kRendezvousPort);
  place.interface = "eth0";
  return place;
}

Result<std::string> RankMain(const Cell& cell, const Place& place,
                             const RunSettings& settings, int rank) {
  if (place.hosts) GF_RETURN_IF_ERROR(place.hosts->Enter(rank));
  Options options;
  options.rank = rank;
  options.size = cell.ranks;
  options.rendezvous = place.rendezvous;
  options.socket_ifname = place.interface;
  options.fabric = settings.fabric;
  GF_RETURN_IF_ERROR(SetOption(&options, "device", settings.device));
  GF_RETURN_IF_ERROR(
      SetOption(&options, "device_collectives", settings.device_collectives));
  const Result<CellSamples> samples = RunCell(cell, options);
  if (!samples.ok()) return samples.status();
  return PackSamples(samples.value());
}

// [mode][rank][step].
Result<std::vector<CellSamples>> RunRanksOf(const Cell& cell,
                                            const RunSettings& settings) {
  const Result<Place> place = MakePlace(settings, cell.ranks);
  if (!place.ok()) return place.status();
  const auto texts = RunRanks(cell.ranks, [&](int rank) {
    return RankMain(cell, place.value(), settings, rank);
  });
  if (!texts.ok()) return texts.status();
  std::vector<CellSamples> by_mode(cell.modes.size());
  for (const std::string& text : texts.value()) {
    Result<CellSamples> samples = UnpackSamples(text);
    if (!samples.ok()) return samples.status();
    for (std::size_t i = 0; i < by_mode.size(); ++i) {
      by_mode[i].push_back(std::move(samples.value()[i]));
    }
  }
  return by_mode;
}

std::string FabricLabel(const RunSettings& settings) {
  std::string label = "tcp";
  if (settings.link_gbps > 0) {
    label = StrCat("tcp, ", settings.link_gbps, " Gb/s links");
  } else if (settings.fabric == "auto") {
    label = "auto";
  } else if (settings.fabric == "shm") {
    label = "shm";
  }
  if (settings.device == "cpu") return label;
  return StrCat(label, ", collectives ", settings.device_collectives);
}

Result<std::vector<Mode>> ChooseModes(const std::vector<std::string>& names) {
  if (names.empty()) return Modes();
  std::vector<Mode> modes;
  for (const std::string& name : names) {
    const auto mode = FindMode(name);
    if (!mode) {
      return Status(StatusCode::kInvalidArgument, StrCat("no mode ", name));
    }
    modes.push_back(*mode);
  }
  return modes;
}

Status RunOne(const Cell& cell, const RunSettings& settings,
              const std::function<void(const Row&)>& on_row) {
  const auto groups = Group(cell);
  if (!groups.ok()) return groups.status();
  double first = 0;
  for (const std::vector<Mode>& modes : groups.value()) {
    Cell part = cell;
    part.modes = modes;
    const auto by_mode = RunRanksOf(part, settings);
    if (!by_mode.ok()) return by_mode.status();
    for (std::size_t i = 0; i < modes.size(); ++i) {
      Row row = Combine(by_mode.value()[i]);
      row.model = cell.model.name;
      row.mode = modes[i].name;
      row.label = modes[i].label;
      row.fabric = FabricLabel(settings);
      row.device = settings.device;
      row.batch = cell.model.batch;
      if (first == 0) first = row.iteration_seconds;
      row.first_iteration_seconds = first;
      on_row(row);
    }
  }
  return Status();
}

}  // namespace

Status RunScaling(const RunSettings& settings,
                  const std::function<void(const Row&)>& on_row) {
  Result<std::vector<Mode>> modes =
      settings.sweep ? SweepModes() : ChooseModes(settings.modes);
  if (!modes.ok()) return modes.status();
  for (const std::string& name : settings.models) {
    Cell cell;
    cell.modes = modes.value();
    cell.rounds = settings.rounds;
    cell.steps = settings.steps;
    Result<Model> model = LoadModel(settings.data, name, settings.batch);
    if (!model.ok()) return model.status();
    cell.model = std::move(model).value();
    for (const int ranks : settings.ranks) {
      cell.ranks = ranks;
      GF_RETURN_IF_ERROR(RunOne(cell, settings, on_row));
    }
  }
  return Status();
}

}  // namespace gradientflow::benchmarks
