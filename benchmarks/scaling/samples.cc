#include "benchmarks/scaling/samples.h"

#include "nlohmann/json.hpp"

namespace gradientflow::benchmarks {
namespace {

using Json = nlohmann::json;

}  // namespace

std::string PackSamples(const CellSamples& samples) {
  Json json = Json::array();
  for (const auto& mode : samples) {
    Json steps = Json::array();
    for (const StepSample& s : mode) {
      steps.push_back({s.iteration_seconds, s.exposed_seconds, s.hidden_seconds,
                       s.bytes_sent, s.bucket_bytes, s.buckets,
                       s.base_seconds});
    }
    json.push_back(std::move(steps));
  }
  return json.dump();
}

Result<CellSamples> UnpackSamples(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_array()) {
    return Status(StatusCode::kDataLoss, "a rank's samples are damaged");
  }
  CellSamples samples;
  for (const Json& mode : json) {
    samples.emplace_back();
    for (const Json& s : mode) {
      samples.back().push_back(
          StepSample{s[0], s[1], s[2], s[3], s[4], s[5], s[6]});
    }
  }
  return samples;
}

}  // namespace gradientflow::benchmarks
