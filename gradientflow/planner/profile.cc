#include "gradientflow/planner/profile.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "gradientflow/base/dtype.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/planner/json_fields.h"

namespace gradientflow::planner {
namespace {

// Enough for any network whose gradients every rank has, and few enough that
// plans of a chunk each fit into memory.
constexpr std::size_t kMostElements = std::size_t{1} << 40;

void ReadTensors(Fields& fields, Profile* profile) {
  std::size_t all = 0;
  fields.List("tensors", [&](Fields& entry) {
    ProfiledTensor tensor;
    tensor.name = entry.Text("name");
    tensor.elements = entry.Count("elements");
    all += std::min(tensor.elements, kMostElements + 1);
    if (all > kMostElements) {
      entry.Expected("elements",
                     StrCat("at most ", kMostElements, " in all tensors"));
    }
    tensor.ready_seconds = entry.Times("ready_seconds");
    profile->tensors.push_back(std::move(tensor));
  });
}

}  // namespace

Result<Profile> ParseProfile(std::string_view text) {
  Profile profile;
  const auto read = [&](Fields& fields) {
    profile.model = fields.Text("model");
    profile.device = fields.Text("device");
    profile.dtype = fields.Text("dtype");
    if (!ParseGradientType(profile.dtype)) {
      fields.Expected("dtype", std::string(GradientTypeNames()));
    }
    profile.batch_samples = fields.Count("batch_samples");
    profile.ranks = fields.Count("ranks", 1);
    profile.steps = fields.Count("steps", 1);
    profile.forward_seconds = fields.Times("forward_seconds");
    profile.backward_seconds = fields.Times("backward_seconds");
    profile.wait_seconds = fields.Times("wait_seconds");
    profile.optimizer_seconds = fields.Times("optimizer_seconds");
    profile.step_seconds = fields.Times("step_seconds");
    profile.step_spread_fraction = fields.Number("step_spread_fraction");
    if (fields.Has("rank_spread_fraction")) {
      profile.rank_spread_fraction = fields.Number("rank_spread_fraction");
    }
    ReadTensors(fields, &profile);
  };
  GF_RETURN_IF_ERROR(ParseFile(text, "profile", &profile.measured, read));
  return profile;
}

std::string ProfileText(const Profile& profile) {
  nlohmann::ordered_json file = FileHead("profile", profile.measured);
  file["model"] = profile.model;
  file["device"] = profile.device;
  file["dtype"] = profile.dtype;
  file["batch_samples"] = profile.batch_samples;
  file["ranks"] = profile.ranks;
  file["steps"] = profile.steps;
  file["forward_seconds"] = ToJson(profile.forward_seconds);
  file["backward_seconds"] = ToJson(profile.backward_seconds);
  file["wait_seconds"] = ToJson(profile.wait_seconds);
  file["optimizer_seconds"] = ToJson(profile.optimizer_seconds);
  file["step_seconds"] = ToJson(profile.step_seconds);
  file["step_spread_fraction"] = profile.step_spread_fraction;
  if (profile.rank_spread_fraction) {
    file["rank_spread_fraction"] = *profile.rank_spread_fraction;
  }
  file["tensors"] = nlohmann::ordered_json::array();
  for (const ProfiledTensor& tensor : profile.tensors) {
    file["tensors"].push_back(
        {{"name", tensor.name},
         {"elements", tensor.elements},
         {"ready_seconds", ToJson(tensor.ready_seconds)}});
  }
  return FileText(file);
}

}  // namespace gradientflow::planner
