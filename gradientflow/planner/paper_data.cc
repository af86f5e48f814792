#include "gradientflow/planner/paper_data.h"

#include <algorithm>
#include <cstddef>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/planner/csv_table.h"
#include "gradientflow/planner/text_file.h"

namespace gradientflow::planner {
namespace {

constexpr double kBatch = 128;

Result<CsvTable> ReadTable(const std::string& path) {
  auto text = ReadTextFile(path);
  if (!text.ok()) return text.status();
  return CsvTable::Parse(text.value(), path);
}

// The profile of one V100 in mixed precision.
Result<Workload> ReadProfile(const std::string& path) {
  const auto table = ReadTable(path);
  if (!table.ok()) return table.status();
  Workload workload;
  workload.batch_samples = kBatch;
  Status status;
  for (std::size_t row = 0; row < table.value().rows(); ++row) {
    workload.tensor_elements.push_back(static_cast<std::size_t>(
        table.value().Count(row, "numel", 0, &status)));
    const double ready = table.value().Number(row, "ready_ms", &status) / 1e3;
    workload.ready_seconds.push_back(ready);
    workload.backward_seconds = std::max(workload.backward_seconds, ready);
  }
  GF_RETURN_IF_ERROR(status);
  return workload;
}

// The same step on a GPU that needs `seconds` for it: all of it as much slower
// as the whole.
Workload Scaled(const Workload& workload, double seconds, double of) {
  Workload scaled = workload;
  for (double& ready : scaled.ready_seconds) ready *= seconds / of;
  scaled.backward_seconds *= seconds / of;
  scaled.compute_seconds = seconds;
  return scaled;
}

Status ReadOneGpu(const std::string& folder, PaperData* data) {
  const auto table = ReadTable(folder + "/paper/one_gpu.csv");
  if (!table.ok()) return table.status();
  Status status;
  std::map<std::string, double> seconds;
  for (std::size_t row = 0; row < table.value().rows(); ++row) {
    const std::string key = table.value().Text(row, "model", &status) +
                            table.value().Text(row, "cluster", &status) +
                            table.value().Text(row, "precision", &status);
    seconds[key] = kBatch / table.value().Number(row, "images_per_s", &status);
  }
  GF_RETURN_IF_ERROR(status);
  for (const auto& [network, file] :
       {std::pair{"alexnet", "alexnet_bn"}, {"resnet50", "resnet50_gf"}}) {
    const auto profile =
        ReadProfile(StrCat(folder, "/profiles/", file, "_v100_fp16_b128.csv"));
    if (!profile.ok()) return profile.status();
    const std::string name = network;
    const auto of = [&](const char* what) { return seconds[name + what]; };
    const double measured = of("cluster-Vmixed");
    for (const char cluster : {'V', 'P'}) {
      const double own =
          of(cluster == 'V' ? "cluster-Vmixed" : "cluster-Pmixed");
      data->mixed[{network, cluster}] = Scaled(profile.value(), own, measured);
    }
    data->float32[network] =
        Scaled(profile.value(), of("cluster-Vfloat32"), measured);
  }
  return {};
}

// Which curve of throughput_curves.csv is which setup.
struct Curve {
  int figure;
  const char* series;
  PaperSetup setup;
};
constexpr Curve kCurves[] = {
    {14, "disable_overlap", PaperSetup::kPerTensor},
    {14, "enable_overlap", PaperSetup::kPerTensorOverlap},
    {16, "disable_overlap", PaperSetup::kLazy},
    {16, "enable_overlap", PaperSetup::kLazyOverlap},
    {19, "disable_overlap", PaperSetup::kCsc},
    {19, "enable_overlap", PaperSetup::kCscOverlap},
    {11, "fp32_nccl", PaperSetup::kFloat32},
};

Status ReadCurves(const std::string& folder, PaperData* data) {
  const auto table = ReadTable(folder + "/paper/throughput_curves.csv");
  if (!table.ok()) return table.status();
  const CsvTable& rows = table.value();
  Status status;
  for (std::size_t row = 0; row < rows.rows(); ++row) {
    const int figure = rows.Count(row, "figure", 1, &status);
    const std::string series = rows.Text(row, "series", &status);
    const std::string cluster = rows.Text(row, "cluster", &status);
    for (const Curve& curve : kCurves) {
      if (curve.figure != figure || curve.series != series) continue;
      data->cells.push_back({rows.Text(row, "model", &status),
                             cluster == "cluster-P" ? 'P' : 'V',
                             rows.Count(row, "gpus", 1, &status), curve.setup,
                             rows.Number(row, "images_per_s", &status)});
    }
  }
  return status;
}

Status ReadAllreduces(const std::string& folder, PaperData* data) {
  const auto table = ReadTable(folder + "/paper/allreduce_gbps.csv");
  if (!table.ok()) return table.status();
  const CsvTable& rows = table.value();
  Status status;
  for (std::size_t row = 0; row < rows.rows(); ++row) {
    const double bytes = 1024 * rows.Number(row, "tensor_kb", &status);
    const double rate = 1e9 * rows.Number(row, "nccl_ring_gbps", &status);
    data->allreduces[rows.Count(row, "gpus", 1, &status)].push_back(
        {bytes, bytes / rate, 0, nullptr});
  }
  for (auto& [ranks, points] : data->allreduces) {
    std::sort(points.begin(), points.end(),
              [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
  }
  return status;
}

}  // namespace

const char* Name(PaperSetup setup) {
  constexpr const char* kNames[] = {
      "per tensor", "per tensor, overlap", "lazy",   "lazy, overlap",
      "CSC",        "CSC, overlap",        "float32"};
  return kNames[static_cast<int>(setup)];
}

std::string PaperCell::Label() const {
  return StrCat(network, ", ", cluster, ", ", ranks, ", ", Name(setup));
}

Result<PaperData> ReadPaperData(const std::string& folder) {
  PaperData data;
  GF_RETURN_IF_ERROR(ReadOneGpu(folder, &data));
  GF_RETURN_IF_ERROR(ReadCurves(folder, &data));
  GF_RETURN_IF_ERROR(ReadAllreduces(folder, &data));
  return data;
}

}  // namespace gradientflow::planner
