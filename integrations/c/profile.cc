#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/buckets/pool_layout.h"
#include "gradientflow/config/options.h"
#include "gradientflow/session/profiled_steps.h"
#include "integrations/c/gradientflow_profile.h"
#include "integrations/c/handles.h"

// Profiles of a caller's own steps. session/profiled_steps.h has the rules;
// here C's arguments are checked, and tensors come in forward order, not in
// that of the pool.

using gradientflow::Options;
using gradientflow::PoolLayout;
using gradientflow::ProfiledSteps;
using gradientflow::Result;
using gradientflow::Status;
using gradientflow::StatusCode;
using gradientflow::StrCat;
using gradientflow::c_api::CheckGradientType;
using gradientflow::c_api::Guard;
using gradientflow::c_api::WithDefaults;

struct gf_profile {
  gradientflow::SteadyClock clock;
  PoolLayout layout;
  std::unique_ptr<ProfiledSteps> steps;
};

namespace {

Status Bad(std::string text) {
  return {StatusCode::kInvalidArgument, std::move(text)};
}

Status Missing(const char* call) {
  return Bad(StrCat(call, ": an argument is null"));
}

Result<std::unique_ptr<gf_profile>> Open(const Options& given,
                                         const gf_profile_config& config) {
  GF_RETURN_IF_ERROR(CheckGradientType("dtype", config.dtype));
  if (config.size < 1 || config.rank < 0 || config.rank >= config.size) {
    return Bad(StrCat("gf_profile_open: rank ", config.rank, " of ",
                      config.size, ": expected 0 to size - 1"));
  }
  auto specs =
      gradientflow::c_api::SpecsOf(config.tensors, config.tensor_count);
  if (!specs.ok()) return specs.status();
  std::vector<std::string> names;
  std::vector<std::size_t> elements;
  for (gradientflow::TensorSpec& spec : specs.value()) {
    if (spec.name.empty()) spec.name = StrCat("tensor", names.size());
    names.push_back(std::move(spec.name));
    elements.push_back(spec.elements);
  }
  Options options = given;
  options.rank = config.rank;
  options.size = config.size;
  options.pool_dtype = static_cast<gradientflow::DType>(config.dtype);
  if (config.device != nullptr) options.device = config.device;
  auto profile = std::make_unique<gf_profile>();
  auto layout = PoolLayout::Create(elements);
  if (!layout.ok()) return layout.status();
  profile->layout = std::move(layout).value();
  auto steps =
      ProfiledSteps::Open(options, profile->layout, names, &profile->clock);
  if (!steps.ok()) return steps.status();
  profile->steps = std::move(steps).value();
  return profile;
}

Status CheckTimes(const gf_profile_times& times, std::size_t tensors) {
  const auto bad = [](double seconds) {
    return !(seconds >= 0) || !std::isfinite(seconds);
  };
  for (const auto& [name, seconds] : {std::pair{"forward", times.forward},
                                      {"backward", times.backward},
                                      {"wait", times.wait},
                                      {"optimizer", times.optimizer}}) {
    if (!bad(seconds)) continue;
    return Bad(
        StrCat("gf_profile_add: ", name, ": expected seconds, seen ", seconds));
  }
  for (std::size_t i = 0; i < tensors; ++i) {
    if (!bad(times.ready[i])) continue;
    return Bad(StrCat("gf_profile_add: ready[", i, "]: expected seconds, seen ",
                      times.ready[i]));
  }
  return {};
}

}  // namespace

void gf_profile_config_init(gf_profile_config* config) {
  *config = {sizeof(*config), nullptr, 0, GF_FLOAT32, 0, 1, nullptr};
}

void gf_profile_times_init(gf_profile_times* times) {
  *times = {sizeof(*times), 0, 0, 0, 0, nullptr};
}

gf_status gf_profile_open(const gf_options* options,
                          const gf_profile_config* given, gf_profile** out) {
  return Guard([&]() -> Status {
    if (options == nullptr || given == nullptr || out == nullptr) {
      return Missing("gf_profile_open");
    }
    *out = nullptr;
    if (given->struct_bytes < offsetof(gf_profile_config, device)) {
      return Bad(StrCat("gf_profile_open: struct_bytes is ",
                        given->struct_bytes,
                        "; call gf_profile_config_init()"));
    }
    const auto config = WithDefaults(*given, gf_profile_config_init);
    if (config.tensors == nullptr && config.tensor_count > 0) {
      return Missing("gf_profile_open: tensors");
    }
    auto profile = Open(options->options, config);
    if (!profile.ok()) return profile.status();
    if (profile.value()->steps != nullptr) *out = profile.value().release();
    return {};
  });
}

void gf_profile_close(gf_profile* profile) { delete profile; }

gf_status gf_profile_add(gf_profile* profile, const gf_profile_times* given) {
  return Guard([&]() -> Status {
    if (profile == nullptr || given == nullptr) {
      return Missing("gf_profile_add");
    }
    const auto times = WithDefaults(*given, gf_profile_times_init);
    if (times.ready == nullptr) return Missing("gf_profile_add: ready");
    const std::vector<std::size_t>& order = profile->layout.order();
    GF_RETURN_IF_ERROR(CheckTimes(times, order.size()));
    ProfiledSteps& steps = *profile->steps;
    std::transform(
        order.begin(), order.end(), steps.ready_seconds().begin(),
        [&](std::size_t i) { return static_cast<float>(times.ready[i]); });
    steps.Add({.forward = static_cast<float>(times.forward),
               .backward = static_cast<float>(times.backward),
               .wait = static_cast<float>(times.wait)});
    steps.OptimizerRan(static_cast<float>(times.optimizer));
    return steps.WriteIfDue();
  });
}

gf_status gf_profile_skip(gf_profile* profile) {
  return Guard([&]() -> Status {
    if (profile == nullptr) return Missing("gf_profile_skip");
    profile->steps->AddUnknown();
    return {};
  });
}

gf_status gf_profile_tell(gf_profile* profile, double** values, size_t* count) {
  return Guard([&]() -> Status {
    if (profile == nullptr || values == nullptr || count == nullptr) {
      return Missing("gf_profile_tell");
    }
    const std::span<double> told = profile->steps->Tell();
    *values = told.empty() ? nullptr : told.data();
    *count = told.size();
    return {};
  });
}

gf_status gf_profile_told(gf_profile* profile) {
  return Guard([&]() -> Status {
    if (profile == nullptr) return Missing("gf_profile_told");
    profile->steps->Told();
    return {};
  });
}
