#include "benchmarks/allreduce/runner.h"

#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "benchmarks/allreduce/sizes.h"
#include "gradientflow/base/str_cat.h"

namespace gradientflow::benchmarks {
namespace {

// Removed with all it holds.
class TemporaryFolder {
 public:
  static Result<std::string> Make() {
    std::error_code error;
    const auto parent = std::filesystem::temp_directory_path(error);
    std::string path = (parent / "gradientflow-XXXXXX").string();
    if (!error && mkdtemp(path.data()) != nullptr) return path;
    return Status(StatusCode::kInternal,
                  StrCat(path, ": ", std::strerror(errno)));
  }
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

 private:
  const std::string path_;
};

// One way of doing a batch, timed in every round.
struct Contestant {
  Group* group = nullptr;
  int way = 0;
  std::vector<double> seconds;  // By round.
};

class Runner {
 public:
  explicit Runner(const RunSettings& settings) : settings_(settings) {}
  Status Start();
  Result<Row> Measure(const Batch& batch);

 private:
  bool tcp() const { return settings_.group.fabric == "tcp"; }
  Status Add(Result<std::unique_ptr<Group>> group);
  std::vector<Contestant> Contestants() const;
  void AddComparisons(const std::vector<Contestant>& contestants,
                      Row* row) const;

  const RunSettings& settings_;
  std::vector<std::unique_ptr<Group>> groups_;  // Ours is the first.
};

Status Runner::Add(Result<std::unique_ptr<Group>> group) {
  if (!group.ok()) return group.status();
  groups_.push_back(std::move(group).value());
  return Status();
}

Status Runner::Start() {
  GF_RETURN_IF_ERROR(Add(StartOurs(settings_.group)));
  if (settings_.bound) {
    GF_RETURN_IF_ERROR(Add(tcp() ? StartBareExchange(settings_.group)
                                 : StartBareShared(settings_.group)));
  }
  if (settings_.openmpi) GF_RETURN_IF_ERROR(Add(StartOpenMpi(settings_.group)));
  if (settings_.gloo) GF_RETURN_IF_ERROR(Add(StartGloo(settings_.group)));
  return Status();
}

std::vector<Contestant> Runner::Contestants() const {
  std::vector<Contestant> contestants;
  for (const auto& group : groups_) {
    const bool exchange = tcp() && group->name() == "bound";
    for (int way = 0; way < (exchange ? kExchangeWays : 1); ++way) {
      contestants.push_back({group.get(), way, {}});
    }
  }
  return contestants;
}

// Of the bare exchanges the one that does best.
void Runner::AddComparisons(const std::vector<Contestant>& contestants,
                            Row* row) const {
  for (std::size_t g = 1; g < groups_.size(); ++g) {
    const Contestant* best = nullptr;
    int ways = 0;
    for (const Contestant& one : contestants) {
      if (one.group != groups_[g].get()) continue;
      ++ways;
      if (best == nullptr || Median(one.seconds) < Median(best->seconds)) {
        best = &one;
      }
    }
    row->comparisons.push_back(
        Compare(groups_[g]->name(), contestants[0].seconds, best->seconds));
    if (ways > 1) {
      row->comparisons.back().note = Describe(WayOf(best->way));
    }
  }
}

Result<Row> Runner::Measure(const Batch& batch) {
  std::vector<Contestant> contestants = Contestants();
  Row row;
  row.batch = batch;
  row.ranks = settings_.group.ranks;
  row.fabric = tcp() ? "tcp" : "shm";
  row.algorithm = Name(batch.algorithm);
  Batch next = batch;
  next.check = true;
  for (const Contestant& one : contestants) {
    next.way = one.way;
    const Result<Outcome> outcome = one.group->Run(next);
    if (!outcome.ok()) return outcome.status();
    row.wrong += outcome.value().wrong;
  }
  next.check = false;
  for (int round = 0; round < settings_.rounds; ++round) {
    for (Contestant& one : contestants) {
      next.way = one.way;
      const Result<Outcome> outcome = one.group->Run(next);
      if (!outcome.ok()) return outcome.status();
      one.seconds.push_back(outcome.value().seconds);
    }
  }
  row.seconds = Median(contestants[0].seconds);
  AddComparisons(contestants, &row);
  return row;
}

Status RunAll(const RunSettings& settings,
              const std::function<void(const Row&)>& on_row) {
  Runner runner(settings);
  GF_RETURN_IF_ERROR(runner.Start());
  std::uint64_t wrong = 0;
  for (const std::size_t bytes : settings.sizes) {
    for (const AllreduceAlgorithm* algorithm : settings.algorithms) {
      Batch batch;
      batch.bytes = bytes;
      batch.dtype = settings.dtype;
      batch.wire = settings.wire;
      batch.op = settings.op;
      batch.algorithm = algorithm;
      batch.iterations =
          settings.iterations > 0 ? settings.iterations : IterationsFor(bytes);
      batch.warmup =
          settings.warmup >= 0 ? settings.warmup : 1 + batch.iterations / 10;
      const Result<Row> row = runner.Measure(batch);
      if (!row.ok()) return row.status();
      wrong += row.value().wrong;
      on_row(row.value());
    }
  }
  if (wrong == 0) return Status();
  return Status(StatusCode::kDataLoss, StrCat(wrong, " wrong elements"));
}

}  // namespace

std::vector<std::string> ComparisonNames(const RunSettings& settings) {
  std::vector<std::string> names;
  if (settings.bound) names.emplace_back("bound");
  if (settings.openmpi) names.emplace_back("openmpi");
  if (settings.gloo) names.emplace_back("gloo");
  return names;
}

Status RunAllreduces(RunSettings settings,
                     const std::function<void(const Row&)>& on_row) {
  Result<std::string> folder = TemporaryFolder::Make();
  if (!folder.ok()) return folder.status();
  const TemporaryFolder removed_at_end(folder.value());
  settings.group.folder = folder.value();
  settings.group.most_bytes =
      *std::max_element(settings.sizes.begin(), settings.sizes.end());
  return RunAll(settings, on_row);
}

}  // namespace gradientflow::benchmarks
