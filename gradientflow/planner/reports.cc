#include "gradientflow/planner/reports.h"

#include <cmath>
#include <cstddef>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/buckets/bucket_size.h"

// What the program prints: a result becomes one or more tables with names, and
// these become text, CSV or JSON.
//
//   predict, advise, check, usl, paper ─ ReportOf() ─> Sections ─ Print() ─>
//   text
//
// Fractions become percent here, and nowhere else.
namespace gradientflow::planner {
namespace {

std::string BucketText(std::size_t theta_bytes) {
  return theta_bytes == kInfiniteTheta ? "inf" : StrCat(theta_bytes);
}

std::string ExtrapolatedText(const Extrapolated& extrapolated) {
  std::string text;
  const auto add = [&](bool is, const char* what) {
    if (is) text += StrCat(text.empty() ? "" : "+", what);
  };
  add(extrapolated.ranks, "ranks");
  add(extrapolated.ranks_per_host, "ranks_per_host");
  add(extrapolated.line, "line");
  add(extrapolated.load, "load");
  add(extrapolated.inside, "inside");
  return text.empty() ? "-" : text;
}

double Percent(double fraction) { return std::round(fraction * 1e4) / 1e2; }

void AddPlan(const std::string& name, const TrainingPlan& plan, Table* table) {
  const Prediction& p = plan.prediction;
  table->Row()
      .Text(name)
      .Number(p.hosts)
      .Number(p.ranks)
      .Text(NameOf(p.exchange))
      .Number(plan.seconds / 3600)
      .Number(plan.lost_seconds / 3600)
      .Number(plan.cost)
      .Number(p.step.terms.step)
      .Number(p.samples_per_second)
      .Number(Percent(p.efficiency))
      .Text(BucketText(p.step.theta_bytes))
      .Text(ExtrapolatedText(p.extrapolated));
}

}  // namespace

std::string Print(const Sections& sections, TableFormat format) {
  if (format == TableFormat::kCsv) {
    return sections.front().second.Print(format);
  }
  std::string out = format == TableFormat::kJson ? "{" : "";
  for (std::size_t i = 0; i < sections.size(); ++i) {
    const auto& [name, table] = sections[i];
    if (format == TableFormat::kJson) {
      out += StrCat(i > 0 ? "," : "", "\"", name, "\": ", table.Print(format));
    } else {
      out += StrCat(i > 0 ? "\n" : "", name, "\n", table.Print(format));
    }
  }
  return format == TableFormat::kJson ? out + "}\n" : out;
}

Sections ReportOf(const std::vector<Prediction>& predictions) {
  Table table({"ranks", "hosts", "exchange", "step_seconds", "low_seconds",
               "high_seconds", "samples_per_second", "efficiency_percent",
               "compute_seconds", "slowest_seconds", "host_seconds",
               "latency_seconds", "bytes_seconds", "csc_seconds",
               "hidden_seconds", "bucket_bytes", "buckets", "algorithm",
               "extrapolated"});
  for (const Prediction& p : predictions) {
    const StepTerms& terms = p.step.terms;
    table.Row()
        .Number(p.ranks)
        .Number(p.hosts)
        .Text(NameOf(p.exchange))
        .Number(terms.step)
        .Number(p.low_seconds)
        .Number(p.high_seconds)
        .Number(p.samples_per_second)
        .Number(Percent(p.efficiency))
        .Number(terms.compute)
        .Number(terms.slowest)
        .Number(terms.host)
        .Number(terms.latency)
        .Number(terms.bytes)
        .Number(terms.csc)
        .Number(terms.hidden)
        .Text(BucketText(p.step.theta_bytes))
        .Number(static_cast<double>(p.step.buckets))
        .Text(p.algorithm)
        .Text(ExtrapolatedText(p.extrapolated));
  }
  return {{"predictions", table}};
}

Sections ReportOf(const Advice& advice, const std::string& currency) {
  Table plans({"plan", "hosts", "ranks", "exchange", "hours", "lost_hours",
               "cost_" + currency, "step_seconds", "samples_per_second",
               "efficiency_percent", "bucket_bytes", "extrapolated"});
  if (advice.chosen) AddPlan("chosen", *advice.chosen, &plans);
  AddPlan("cheapest of all", advice.cheapest, &plans);
  AddPlan("fastest of all", advice.fastest, &plans);
  Table paying({"question", "hosts", "remark"});
  paying.Row()
      .Text("one more host stops paying after")
      .Number(advice.last_paying_hosts)
      .Text(advice.last_paying_hosts >= advice.most_hosts
                ? "or later: more were not compared"
                : "-");
  Table savings({"with", "saves_hours", "saves_" + currency});
  for (const Saving& saving : advice.savings) {
    savings.Row()
        .Text(saving.what)
        .Number(saving.seconds / 3600)
        .Number(saving.cost);
  }
  Table hangs({"if this is 20 percent worse", "longer_percent", "then_hosts"});
  for (const Sensitivity& sensitivity : advice.sensitivities) {
    hangs.Row()
        .Text(sensitivity.what)
        .Number(Percent(sensitivity.seconds_factor - 1))
        .Number(sensitivity.best_hosts);
  }
  return {{"plans", plans},
          {"limits", paying},
          {"savings", savings},
          {"sensitivities", hangs}};
}

Sections ReportOf(const CheckReport& report) {
  Table runs({"ranks", "exchange", "bucket_bytes", "measured_seconds",
              "predicted_seconds", "error_percent", "wrong_term",
              "wrong_seconds"});
  for (const CheckedRun& checked : report.runs) {
    runs.Row()
        .Number(checked.run.ranks)
        .Text(NameOf(checked.run.exchange))
        .Text(checked.run.exchange.theta_bytes
                  ? BucketText(*checked.run.exchange.theta_bytes)
                  : "auto")
        .Number(checked.run.step_seconds)
        .Number(checked.prediction.step.terms.step)
        .Number(Percent(checked.error))
        .Text(checked.wrong_term)
        .Number(checked.wrong_seconds);
  }
  Table summary({"median_error_percent", "worst_error_percent",
                 "pairs_in_order_percent"});
  summary.Row()
      .Number(Percent(report.median_error))
      .Number(Percent(report.worst_error))
      .Number(Percent(report.ordered_fraction));
  return {{"runs", runs}, {"summary", summary}};
}

Sections ReportOf(const PaperReport& report) {
  Table folds({"constants_from", "predicted", "cells", "median_percent",
               "worst_percent", "recorded_median_percent",
               "recorded_worst_percent", "worse"});
  Table cells({"constants_from", "predicted", "cell", "observed_per_second",
               "predicted_per_second", "error_percent"});
  for (const Fold& fold : report.folds) {
    folds.Row()
        .Text(fold.fitted_to)
        .Text(fold.predicted)
        .Number(static_cast<double>(fold.cells.size()))
        .Number(Percent(fold.median))
        .Number(Percent(fold.worst))
        .Number(Percent(fold.recorded_median))
        .Number(Percent(fold.recorded_worst))
        .Text(fold.worse() ? "yes" : "no");
    for (const PredictedCell& cell : fold.cells) {
      cells.Row()
          .Text(fold.fitted_to)
          .Text(fold.predicted)
          .Text(cell.cell.Label())
          .Number(cell.cell.images_per_second)
          .Number(cell.images_per_second)
          .Number(Percent(cell.error));
    }
  }
  Table constants({"from", "hop_seconds", "bytes_per_second", "spread_fraction",
                   "backward_seconds_per_call"});
  for (const auto& [from, of] : {std::pair{"all 24", report.constants},
                                 {"V, N >= 16", report.all_constants}}) {
    constants.Row()
        .Text(from)
        .Number(of.hop_seconds)
        .Number(of.bytes_per_second)
        .Number(of.spread_fraction)
        .Number(of.backward_seconds_per_call);
  }
  return {{"folds", folds}, {"constants", constants}, {"cells", cells}};
}

Result<Sections> ReportOf(const UslReport& report,
                          const std::vector<double>& ranks) {
  const UslFit& fit = report.fit;
  Table law({"constant", "value", "low80", "high80", "remark"});
  const auto row = [&](const char* name, double value, int digits,
                       const Interval80& interval, const char* remark) {
    law.Row()
        .Text(name)
        .Number(value, digits)
        .Number(interval.low)
        .Number(interval.high)
        .Text(remark);
  };
  row("gamma_samples_per_second", fit.gamma, 7, report.gamma, "of one rank");
  row("alpha", fit.alpha, 6, report.alpha,
      fit.alpha == 0 ? "0: no contention is seen" : "contention");
  row("beta", fit.beta, 6, report.beta,
      fit.beta == 0 ? "0: no peak is seen" : "coherence");
  row("peak_ranks", fit.peak_ranks(), 4, report.peak_ranks,
      fit.peak_ranks() > report.largest_ranks ? "beyond the runs: extrapolated"
                                              : "within the runs");
  row("most_samples_per_second", fit.most_rate(), 4, report.most_rate,
      fit.beta == 0 ? "asymptote" : "at the peak");
  Table rates({"ranks", "samples_per_second", "extrapolated"});
  for (const double n : ranks) {
    const auto rate = PredictUsl(report, n);
    if (!rate.ok()) return rate.status();
    rates.Row()
        .Number(n)
        .Number(rate.value(), 6)
        .Text(n > report.largest_ranks ? "ranks" : "-");
  }
  Sections sections{{"law", law}};
  if (!ranks.empty()) sections.emplace_back("rates", rates);
  return sections;
}

}  // namespace gradientflow::planner
