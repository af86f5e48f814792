#include "gradientflow/planner/workload.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "gradientflow/base/dtype.h"
#include "gradientflow/buckets/bucket_size.h"

namespace gradientflow::planner {
namespace {

// Bytes of memory traffic of CSC before the wire, by element: see "Numbers" in
// docs/design.md. The residual is float32 whatever the pool is; it is read and
// written, and so is a gradient that is sent. One that is kept is only read.
double PassBytes(const Workload& workload, bool sent) {
  const double residual = 2 * sizeof(float);
  const auto gradient = static_cast<double>(workload.pool_element_bytes);
  return residual + (sent ? 2 : 1) * gradient;
}

// When the pool is written up to the end of each tensor.
std::vector<double> PrefixReady(const Workload& workload) {
  std::vector<double> ready;
  double latest = 0;
  for (const double seconds : workload.ready_seconds) {
    latest = std::max(latest, seconds);
    ready.push_back(latest);
  }
  return ready;
}

std::vector<Message> DenseMessages(const Workload& workload,
                                   std::size_t theta_bytes,
                                   std::size_t wire_element_bytes) {
  const std::vector<double> ready = PrefixReady(workload);
  std::vector<Message> messages;
  for (const BucketBounds& bucket : StaticBuckets(
           theta_bytes, workload.tensor_elements, wire_element_bytes)) {
    const std::size_t elements = bucket.end_element - bucket.begin_element;
    messages.push_back({static_cast<double>(elements) *
                            static_cast<double>(wire_element_bytes),
                        ready[bucket.end_tensor - 1]});
  }
  return messages;
}

struct Chunk {
  std::size_t elements = 0;
  bool sent = false;
  Pass pass;
};

// Which chunks matter is not known beforehand. Here the pool is cut into as
// many equal stretches as there are chunks to send, and each sends the chunk in
// its middle. If it were the first, the last bucket would leave too early:
// backward ends with layers that take long and have few weights.
std::vector<Chunk> EvenChunks(const Workload& workload,
                              const Exchange& exchange) {
  const std::vector<double> ready = PrefixReady(workload);
  const std::size_t chunks = ChunksOf(workload, exchange);
  const auto pool = static_cast<std::size_t>(workload.elements());
  const double wanted =
      std::round((1 - exchange.sparsity) * static_cast<double>(chunks));
  const auto sent = static_cast<std::size_t>(
      std::clamp(wanted, 1.0, static_cast<double>(chunks)));
  const double step = static_cast<double>(chunks) / static_cast<double>(sent);
  std::vector<Chunk> list;
  std::size_t tensor = 0;
  std::size_t tensor_end = 0;
  std::size_t sent_before = 0;
  for (std::size_t c = 0; c < chunks; ++c) {
    const std::size_t begin = c * exchange.chunk_elements;
    const std::size_t end = std::min(pool, begin + exchange.chunk_elements);
    while (tensor_end < end) tensor_end += workload.tensor_elements[tensor++];
    Chunk chunk;
    chunk.elements = end - begin;
    const double middle = (static_cast<double>(sent_before) + 0.5) * step - 0.5;
    chunk.sent = sent_before < sent && c == static_cast<std::size_t>(middle);
    if (chunk.sent) ++sent_before;
    chunk.pass = {ready[tensor - 1], static_cast<double>(chunk.elements) *
                                         PassBytes(workload, chunk.sent)};
    list.push_back(chunk);
  }
  return list;
}

// Parts that become ready together are one, unless `apart`.
void AddPass(const Pass& pass, bool apart, std::vector<Pass>* passes) {
  if (!apart && !passes->empty() &&
      passes->back().ready_seconds == pass.ready_seconds) {
    passes->back().bytes += pass.bytes;
  } else {
    passes->push_back(pass);
  }
}

Bucketing CscBucketing(const std::vector<Chunk>& chunks,
                       std::size_t theta_bytes,
                       std::size_t wire_element_bytes) {
  Bucketing bucketing;
  bucketing.theta_bytes = theta_bytes;
  Message open;
  for (const Chunk& chunk : chunks) {
    if (!chunk.sent) {
      AddPass(chunk.pass, /*apart=*/false, &bucketing.kept);
      continue;
    }
    AddPass(chunk.pass, /*apart=*/open.bytes == 0, &bucketing.sent);
    open.bytes += static_cast<double>(chunk.elements) *
                  static_cast<double>(wire_element_bytes);
    open.ready_seconds = chunk.pass.ready_seconds;
    open.passes_end = bucketing.sent.size();
    if (open.bytes <= static_cast<double>(theta_bytes)) continue;
    bucketing.messages.push_back(std::exchange(open, {}));
  }
  if (open.bytes > 0) bucketing.messages.push_back(open);
  return bucketing;
}

}  // namespace

double Workload::elements() const {
  return static_cast<double>(std::accumulate(
      tensor_elements.begin(), tensor_elements.end(), std::size_t{0}));
}

Workload WorkloadFrom(const Profile& profile) {
  Workload workload;
  for (const ProfiledTensor& tensor : profile.tensors) {
    workload.tensor_elements.push_back(tensor.elements);
    workload.ready_seconds.push_back(tensor.ready_seconds.median);
  }
  workload.backward_seconds = profile.backward_seconds.median;
  workload.compute_seconds =
      std::max(profile.compute_seconds(), workload.backward_seconds);
  workload.spread_fraction = profile.spread_fraction();
  workload.pool_element_bytes =
      SizeOf(ParseGradientType(profile.dtype).value_or(DType::kFloat32));
  workload.batch_samples = static_cast<double>(profile.batch_samples);
  return workload;
}

std::size_t ChunksOf(const Workload& workload, const Exchange& exchange) {
  const auto pool = static_cast<std::size_t>(workload.elements());
  return (pool + exchange.chunk_elements - 1) / exchange.chunk_elements;
}

std::vector<Bucketing> BucketingsOf(const Workload& workload,
                                    const Exchange& exchange) {
  const auto pool_bytes = static_cast<std::size_t>(workload.elements()) *
                          exchange.wire_element_bytes;
  const std::vector<std::size_t> thetas =
      exchange.theta_bytes ? std::vector{*exchange.theta_bytes}
                           : CandidateThetas(pool_bytes);
  const auto chunks =
      exchange.csc ? EvenChunks(workload, exchange) : std::vector<Chunk>();
  std::vector<Bucketing> bucketings;
  for (const std::size_t theta : thetas) {
    Bucketing next =
        exchange.csc ? CscBucketing(chunks, theta, exchange.wire_element_bytes)
                     : Bucketing{theta,
                                 DenseMessages(workload, theta,
                                               exchange.wire_element_bytes),
                                 {},
                                 {}};
    // A larger theta never makes more messages, so equal cuts are neighbours.
    const auto same = [](const Message& a, const Message& b) {
      return a.bytes == b.bytes;
    };
    if (!bucketings.empty()) {
      const auto& last = bucketings.back().messages;
      if (std::equal(last.begin(), last.end(), next.messages.begin(),
                     next.messages.end(), same)) {
        continue;
      }
    }
    bucketings.push_back(std::move(next));
  }
  return bucketings;
}

}  // namespace gradientflow::planner
