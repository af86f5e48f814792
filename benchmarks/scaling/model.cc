#include "benchmarks/scaling/model.h"

#include <algorithm>
#include <numeric>

#include "benchmarks/csv.h"

namespace gradientflow::benchmarks {
namespace {

constexpr int kMeasuredBatch = 128;
constexpr double kBackwardPerForward = 2;
constexpr double kMaxNumber = 1e18;
constexpr auto kMaxElements = std::size_t{1} << 40;

struct Measured {
  const char* name;
  double iteration_seconds;
};
constexpr Measured kAlexNet = {"alexnet_bn", 34.7e-3};
constexpr Measured kResNet = {"resnet50_gf", 206e-3};

Status Bad(const std::string& message) {
  return Status(StatusCode::kInvalidArgument, message);
}

struct Table {
  std::vector<ModelTensor> tensors;
  std::vector<double> flops;  // Forward, per image.
};

Result<Table> ReadTable(const std::string& data, const std::string& name) {
  const auto csv = ReadCsv(StrCat(data, "/models/", name, ".csv"),
                           {"name", "numel", "shape", "fwd_flops"});
  if (!csv.ok()) return csv.status();
  Table table;
  for (std::size_t row = 0; row < csv.value().rows.size(); ++row) {
    const auto elements =
        NumberAt<std::size_t>(csv.value(), row, 1, 1, kMaxElements);
    if (!elements.ok()) return elements.status();
    const auto flops = NumberAt<double>(csv.value(), row, 3, 0, kMaxNumber);
    if (!flops.ok()) return flops.status();
    table.tensors.push_back(ModelTensor{csv.value().rows[row][0],
                                        elements.value(), 0, flops.value()});
    table.flops.push_back(flops.value());
  }
  return table;
}

// Fills in ready_seconds from the profile, whose rows go last to first.
Status ReadProfile(const std::string& data, const std::string& name,
                   std::vector<ModelTensor>& tensors) {
  const std::string path =
      StrCat(data, "/profiles/", name, "_v100_fp16_b128.csv");
  const auto csv = ReadCsv(path, {"pool_index", "name", "numel", "pool_offset",
                                  "layer_id", "layer_bwd_ms", "ready_ms"});
  if (!csv.ok()) return csv.status();
  const auto& rows = csv.value().rows;
  if (rows.size() != tensors.size()) {
    return Bad(StrCat(path, ": expected ", tensors.size(),
                      " rows as in the model's table, got ", rows.size()));
  }
  double ready_ms = 0;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    ModelTensor& tensor = tensors[tensors.size() - 1 - row];
    if (rows[row][1] != tensor.name) {
      return Bad(StrCat(path, ":", row + 2, ": expected tensor ", tensor.name,
                        ", got ", rows[row][1]));
    }
    const auto elements = NumberAt<std::size_t>(
        csv.value(), row, 2, tensor.elements, tensor.elements);
    if (!elements.ok()) return elements.status();
    // Not before its predecessor.
    const auto ready =
        NumberAt<double>(csv.value(), row, 6, ready_ms, kMaxNumber);
    if (!ready.ok()) return ready.status();
    ready_ms = ready.value();
    tensor.ready_seconds = ready_ms / 1e3;
  }
  return Status();
}

double Sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

Result<Model> LoadMeasured(const std::string& data, const Measured& which,
                           double* flops) {
  Result<Table> table = ReadTable(data, which.name);
  if (!table.ok()) return table.status();
  Model model;
  model.name = which.name;
  model.tensors = std::move(table.value().tensors);
  GF_RETURN_IF_ERROR(ReadProfile(data, which.name, model.tensors));
  model.batch = kMeasuredBatch;
  model.backward_seconds = model.tensors.front().ready_seconds;
  model.rest_seconds = which.iteration_seconds - model.backward_seconds;
  model.measured = true;
  if (model.rest_seconds <= 0) {
    return Bad(StrCat(which.name, ": backward takes longer than an iteration"));
  }
  *flops = Sum(table.value().flops);
  return model;
}

Result<Model> LoadDerived(const std::string& data, const std::string& name,
                          const Measured& family) {
  double family_flops = 0;
  const Result<Model> reference = LoadMeasured(data, family, &family_flops);
  if (!reference.ok()) return reference.status();
  Result<Table> table = ReadTable(data, name);
  if (!table.ok()) return table.status();
  const double flops_per_second =
      kBackwardPerForward * family_flops / reference.value().backward_seconds;
  Model model;
  model.name = name;
  model.tensors = std::move(table.value().tensors);
  model.batch = kMeasuredBatch;
  double done = 0;
  for (std::size_t i = model.tensors.size(); i-- > 0;) {
    done += kBackwardPerForward * table.value().flops[i] / flops_per_second;
    model.tensors[i].ready_seconds = done;
  }
  model.backward_seconds = done;
  model.rest_seconds = done * reference.value().rest_seconds /
                       reference.value().backward_seconds;
  return model;
}

void ScaleTo(int batch, Model& model) {
  const double factor = static_cast<double>(batch) / model.batch;
  for (ModelTensor& tensor : model.tensors) tensor.ready_seconds *= factor;
  model.backward_seconds *= factor;
  model.rest_seconds *= factor;
  model.batch = batch;
}

}  // namespace

std::size_t Model::elements() const {
  std::size_t sum = 0;
  for (const ModelTensor& tensor : tensors) sum += tensor.elements;
  return sum;
}

std::vector<std::size_t> Model::ReadyOrder() const {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [this](std::size_t a, std::size_t b) {
                     return tensors[a].ready_seconds < tensors[b].ready_seconds;
                   });
  return order;
}

std::vector<std::string> ModelNames() {
  return {"alexnet_bn", "resnet50_gf", "alexnet",
          "resnet50",   "resnet101",   "vgg16"};
}

Result<Model> LoadModel(const std::string& data, const std::string& name,
                        int batch) {
  const std::vector<std::string> names = ModelNames();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    return Bad(StrCat("no model ", name));
  }
  if (batch < 1) return Bad(StrCat("batch: expected at least 1, got ", batch));
  const Measured& family =
      name.find("resnet") == std::string::npos ? kAlexNet : kResNet;
  double flops = 0;
  Result<Model> model = name == family.name ? LoadMeasured(data, family, &flops)
                                            : LoadDerived(data, name, family);
  if (model.ok()) ScaleTo(batch, model.value());
  return model;
}

}  // namespace gradientflow::benchmarks
