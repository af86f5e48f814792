#include "gradientflow/planner/advise.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <utility>

namespace gradientflow::planner {
namespace {

constexpr double kWorse = 1.2;
constexpr int kAllHostsUpTo = 32;

// What a plan is made from; sensitivities change a copy.
struct Facts {
  Profile profile;
  Probe probe;
  HostOptions hosts;
};

std::vector<int> HostCounts(int most) {
  std::vector<int> hosts;
  for (int h = 1; h <= most;
       h = h < kAllHostsUpTo ? h + 1 : h + std::max(1, h / 10)) {
    hosts.push_back(h);
  }
  if (hosts.back() != most) hosts.push_back(most);
  return hosts;
}

// If hosts are listed, no more than these can be rented.
int MostHosts(const AdviseOptions& options) {
  if (options.hosts.empty()) return options.most_hosts;
  return std::min(options.most_hosts, static_cast<int>(options.hosts.size()));
}

// What is done again is sent again, and no more is while nothing is done, so
// bytes are at most so many times those of an undisturbed run.
TrainingPlan PlanOf(const Prediction& prediction, const NodePrice& price,
                    double samples) {
  TrainingPlan plan;
  plan.prediction = prediction;
  const double undisturbed = samples / prediction.samples_per_second;
  const double factor =
      price.spot ? SpotFactor(*price.spot, prediction.hosts) : 1;
  plan.seconds = factor * undisturbed;
  plan.lost_seconds = plan.seconds - undisturbed;
  const double steps = plan.seconds / prediction.step.terms.step;
  plan.cost =
      plan.seconds / 3600 * prediction.hosts * price.price_per_node_hour +
      steps * prediction.bytes_out / 1e9 * price.price_per_gb_out;
  return plan;
}

Result<std::vector<TrainingPlan>> PlansFor(const Facts& facts,
                                           const NodePrice& price,
                                           const AdviseOptions& options,
                                           const std::vector<int>& hosts) {
  PredictOptions predict;
  predict.ranks.clear();
  static_cast<HostOptions&>(predict) = facts.hosts;
  for (const int h : hosts) predict.ranks.push_back(facts.hosts.RanksOf(h));
  predict.exchanges = options.exchanges;
  const auto predictions = Predict(facts.profile, facts.probe, predict);
  if (!predictions.ok()) return predictions.status();
  std::vector<TrainingPlan> plans;
  for (const Prediction& prediction : predictions.value()) {
    plans.push_back(PlanOf(prediction, price, options.samples));
    // All exchanges follow each other for each number of hosts.
    plans.back().exchange = (plans.size() - 1) % options.exchanges.size();
  }
  return plans;
}

bool Cheaper(const TrainingPlan& a, const TrainingPlan& b) {
  return std::pair(a.cost, a.seconds) < std::pair(b.cost, b.seconds);
}
bool Faster(const TrainingPlan& a, const TrainingPlan& b) {
  return std::pair(a.seconds, a.cost) < std::pair(b.seconds, b.cost);
}

std::optional<TrainingPlan> Choose(const std::vector<TrainingPlan>& plans,
                                   const AdviseOptions& options) {
  std::optional<TrainingPlan> best;
  for (const TrainingPlan& plan : plans) {
    if (std::isinf(plan.seconds)) continue;
    if (options.deadline_seconds && plan.seconds > *options.deadline_seconds) {
      continue;
    }
    if (options.budget && plan.cost > *options.budget) continue;
    const bool better =
        !best ||
        (options.deadline_seconds ? Cheaper(plan, *best) : Faster(plan, *best));
    if (better) best = plan;
  }
  return best;
}

// The rate of the fastest exchange, by hosts; hosts without a plan have none.
int LastPaying(const std::vector<TrainingPlan>& plans) {
  std::vector<std::pair<int, double>> rates;
  for (const TrainingPlan& plan : plans) {
    const int hosts = plan.prediction.hosts;
    const double rate = 1 / plan.seconds;  // All take as many samples.
    if (rates.empty() || rates.back().first != hosts) {
      rates.emplace_back(hosts, rate);
    }
    rates.back().second = std::max(rates.back().second, rate);
  }
  int last = rates.front().first;
  for (std::size_t i = 1; i < rates.size(); ++i) {
    const double added = (rates[i].second - rates[i - 1].second) /
                         (rates[i].first - rates[i - 1].first);
    // Beyond two hosts the exchange is there anyway: what one host alone does
    // is the measure.
    if (added >= rates.front().second / rates.front().first / 2) {
      last = rates[i].first;
    }
  }
  return last;
}

void Scale(Level* level, double factor) {
  level->p50 *= factor;
  level->p99 *= factor;
}

void ForLevels(Probe* probe, const std::function<void(PairLevels*)>& change) {
  for (ProbedPair& pair : probe->pairs) {
    change(&pair.idle);
    if (pair.loaded) change(&*pair.loaded);
  }
}

void SlowLatency(Facts* facts) {
  ForLevels(&facts->probe, [](PairLevels* levels) {
    Scale(&levels->latency_seconds, kWorse);
    Scale(&levels->message_seconds, kWorse);
  });
}

void SlowBytes(Facts* facts) {
  ForLevels(&facts->probe, [](PairLevels* levels) {
    for (Bandwidth& entry : levels->bandwidth) {
      Scale(&entry.bytes_per_second, 1 / kWorse);
    }
  });
  facts->hosts.ScaleLines(1 / kWorse);
}

void MoreHostWork(Facts* facts) {
  ForLevels(&facts->probe, [](PairLevels* levels) {
    if (levels->backward_seconds_per_message) {
      Scale(&*levels->backward_seconds_per_message, kWorse);
    }
  });
}

// Sums, and CSC's passes.
void SlowMemory(Facts* facts) {
  Scale(&facts->probe.memory_bytes_per_second, 1 / kWorse);
  if (facts->probe.pass_seconds) Scale(&*facts->probe.pass_seconds, kWorse);
  ForLevels(&facts->probe, [](PairLevels* levels) {
    Scale(&levels->reduce_bytes_per_second, 1 / kWorse);
    if (levels->driver_seconds_per_byte) {
      Scale(&*levels->driver_seconds_per_byte, kWorse);
    }
  });
}

void MoreSpread(Facts* facts) {
  facts->profile.step_spread_fraction *= kWorse;
  if (facts->profile.rank_spread_fraction) {
    *facts->profile.rank_spread_fraction *= kWorse;
  }
}

void SlowCompute(Facts* facts) {
  Profile& profile = facts->profile;
  for (Quartiles* times : {&profile.forward_seconds, &profile.backward_seconds,
                           &profile.wait_seconds, &profile.optimizer_seconds,
                           &profile.step_seconds}) {
    times->median *= kWorse;
    times->lower_quartile *= kWorse;
    times->upper_quartile *= kWorse;
  }
  for (ProfiledTensor& tensor : profile.tensors) {
    tensor.ready_seconds.median *= kWorse;
  }
}

// How the chosen plan fares, and which would be chosen, after a change.
Status AddSensitivities(const Facts& facts, const NodePrice& price,
                        const AdviseOptions& options, Advice* advice) {
  const TrainingPlan& chosen = *advice->chosen;
  const std::pair<const char*, void (*)(Facts*)> changes[] = {
      {"latency", &SlowLatency},      {"bandwidth", &SlowBytes},
      {"compute", &SlowCompute},      {"spread between ranks", &MoreSpread},
      {"host's work", &MoreHostWork}, {"memory", &SlowMemory},
  };
  for (const auto& [name, change] : changes) {
    Facts changed = facts;
    change(&changed);
    const auto plans =
        PlansFor(changed, price, options, HostCounts(MostHosts(options)));
    if (!plans.ok()) return plans.status();
    Sensitivity sensitivity{name, 1, 0};
    for (const TrainingPlan& plan : plans.value()) {
      if (plan.prediction.hosts == chosen.prediction.hosts &&
          plan.exchange == chosen.exchange) {
        sensitivity.seconds_factor = plan.seconds / chosen.seconds;
      }
    }
    if (const auto best = Choose(plans.value(), options)) {
      sensitivity.best_hosts = best->prediction.hosts;
    }
    advice->sensitivities.push_back(sensitivity);
  }
  std::stable_sort(advice->sensitivities.begin(), advice->sensitivities.end(),
                   [](const Sensitivity& a, const Sensitivity& b) {
                     return a.seconds_factor > b.seconds_factor;
                   });
  return {};
}

// A line that is twice or ten times as fast, and CSC, on as many hosts.
Status AddSavings(const Facts& facts, const NodePrice& price,
                  const AdviseOptions& options, Advice* advice) {
  const TrainingPlan& chosen = *advice->chosen;
  const auto add = [&](const char* what, const Facts& changed,
                       const AdviseOptions& other) {
    const auto plans =
        PlansFor(changed, price, other, {chosen.prediction.hosts});
    if (!plans.ok()) return plans.status();
    const TrainingPlan& plan = plans.value().front();
    advice->savings.push_back(
        {what, chosen.seconds - plan.seconds, chosen.cost - plan.cost});
    return Status();
  };
  AdviseOptions same = options;
  same.exchanges = {chosen.prediction.exchange};
  for (const auto& [what, factor] : {std::pair{"a line twice as fast", 2.0},
                                     {"a line ten times as fast", 10.0}}) {
    Facts faster = facts;
    for (ProbedPair& pair : faster.probe.pairs) {
      if (pair.pair_class != PairClass::kOtherHost) continue;
      for (PairLevels* levels :
           {&pair.idle, pair.loaded ? &*pair.loaded : nullptr}) {
        if (levels == nullptr) continue;
        for (Bandwidth& entry : levels->bandwidth) {
          Scale(&entry.bytes_per_second, factor);
        }
      }
    }
    faster.hosts.ScaleLines(factor);
    GF_RETURN_IF_ERROR(add(what, faster, same));
  }
  if (!chosen.prediction.exchange.csc) {
    same.exchanges.front().csc = true;
    GF_RETURN_IF_ERROR(add("CSC that keeps back 85 %", facts, same));
  }
  return {};
}

Status Check(const Profile& profile, const AdviseOptions& options) {
  const char* problem = nullptr;
  if (!(options.samples > 0)) problem = "samples: expected more than 0";
  if (profile.batch_samples == 0) {
    problem =
        "profile: batch_samples: expected at least 1 for an advice; make the "
        "profile with GRADIENTFLOW_PROFILE_BATCH, the samples that a rank "
        "takes "
        "in a step";
  }
  if (!options.deadline_seconds && !options.budget) {
    problem = "expected a deadline or a budget";
  }
  if (options.most_hosts < 1) problem = "hosts: expected at least 1";
  if (problem == nullptr) return {};
  return {StatusCode::kInvalidArgument, problem};
}

}  // namespace

// With interruptions at a rate r, a stretch of L seconds without one comes
// after (e^(rL) - 1) / r on average, and each restart before it needs such a
// stretch of its own: in all e^(rR) (e^(rL) - 1) / r, where L is an interval
// with its checkpoint and R a restart.
double SpotFactor(const SpotTerms& spot, int nodes) {
  const double rate = nodes * spot.interruptions_per_node_hour / 3600;
  const double length =
      spot.checkpoint_interval_seconds + spot.checkpoint_seconds;
  const double takes = rate > 0 ? std::exp(rate * spot.restart_seconds) *
                                      std::expm1(rate * length) / rate
                                : length;
  return takes / spot.checkpoint_interval_seconds;
}

Result<Advice> Advise(const Profile& profile, const Probe& probe,
                      const NodePrice& price, const AdviseOptions& options) {
  GF_RETURN_IF_ERROR(Check(profile, options));
  const Facts facts{profile, probe, static_cast<const HostOptions&>(options)};
  const auto plans =
      PlansFor(facts, price, options, HostCounts(MostHosts(options)));
  if (!plans.ok()) return plans.status();
  const auto& all = plans.value();
  Advice advice;
  advice.cheapest = *std::min_element(all.begin(), all.end(), Cheaper);
  advice.fastest = *std::min_element(all.begin(), all.end(), Faster);
  advice.last_paying_hosts = LastPaying(all);
  advice.most_hosts = MostHosts(options);
  advice.chosen = Choose(all, options);
  if (!advice.chosen) return advice;
  GF_RETURN_IF_ERROR(AddSavings(facts, price, options, &advice));
  GF_RETURN_IF_ERROR(AddSensitivities(facts, price, options, &advice));
  return advice;
}

}  // namespace gradientflow::planner
