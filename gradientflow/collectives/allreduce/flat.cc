#include "gradientflow/collectives/allreduce/flat.h"

#include <algorithm>

namespace gradientflow {

double MessageSeconds(double rounds, const LinkModel& link) {
  return rounds * (link.latency_seconds + link.message_seconds);
}

void HostLine::AddAllPairs(double buffers) {
  const int size = static_cast<int>(host_.size());
  for (int from = 0; from < size; ++from) {
    for (int to = 0; to < size; ++to) Add(from, to, buffers);
  }
}

double HostLine::Busiest() const {
  double most = 0;
  for (const auto& [host, buffers] : sent_) most = std::max(most, buffers);
  return most;
}

double FlatSeconds(const AllreduceQuestion& question, AllreduceFormula formula,
                   const HostLine& line, const LinkModel& across) {
  const double bytes = BytesOf(question);
  if (question.topology.IsOneHost()) {
    return formula(question.size, bytes, question.model.inside);
  }
  const double own_line = formula(question.size, bytes, across);
  const double line_seconds = line.Busiest() * bytes * across.seconds_per_byte;
  LinkModel no_bytes = across;
  no_bytes.seconds_per_byte = 0;
  return std::max(own_line,
                  formula(question.size, bytes, no_bytes) + line_seconds);
}

}  // namespace gradientflow
