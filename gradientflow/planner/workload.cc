#include "gradientflow/planner/workload.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "gradientflow/buckets/bucket_size.h"

namespace gradientflow::planner {
namespace {

// Bytes of memory traffic of CSC before the wire, by element of a float32 pool:
// see "Numbers" in docs/design.md.
constexpr double kKeptPassBytes = 12;
constexpr double kSentPassBytes = 16;

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
                        ready[bucket.end_tensor - 1], 0});
  }
  return messages;
}

// One chunk that is sent.
struct SentChunk {
  std::size_t elements = 0;
  double ready_seconds = 0;
  double pass_bytes = 0;  // Of all chunks since the one sent before.
};

// Which chunks matter is not known beforehand. Here they lie evenly: with a
// share of 1 to r kept back, every chunk r / (1 - r) is sent, from the first
// on.
std::vector<SentChunk> EvenChunks(const Workload& workload,
                                  const Exchange& exchange) {
  const std::vector<double> ready = PrefixReady(workload);
  const std::size_t chunks = ChunksOf(workload, exchange);
  const auto pool = static_cast<std::size_t>(workload.elements());
  const double wanted =
      std::round((1 - exchange.sparsity) * static_cast<double>(chunks));
  const auto sent = static_cast<std::size_t>(
      std::clamp(wanted, 1.0, static_cast<double>(chunks)));
  const double step = static_cast<double>(chunks) / static_cast<double>(sent);
  std::vector<SentChunk> list;
  std::size_t tensor = 0;
  std::size_t tensor_end = 0;
  std::size_t passed = 0;
  for (std::size_t i = 0; i < sent; ++i) {
    const auto chunk = static_cast<std::size_t>(static_cast<double>(i) * step);
    const std::size_t begin = chunk * exchange.chunk_elements;
    const std::size_t end = std::min(pool, begin + exchange.chunk_elements);
    while (tensor_end < end) tensor_end += workload.tensor_elements[tensor++];
    const auto own = static_cast<double>(end - begin);
    list.push_back({end - begin, ready[tensor - 1],
                    kSentPassBytes * own +
                        kKeptPassBytes * static_cast<double>(begin - passed)});
    passed = end;
  }
  if (!list.empty()) {
    list.back().pass_bytes +=
        kKeptPassBytes * static_cast<double>(pool - passed);
  }
  return list;
}

std::vector<Message> CscMessages(const std::vector<SentChunk>& chunks,
                                 std::size_t theta_bytes,
                                 std::size_t wire_element_bytes) {
  std::vector<Message> messages;
  Message open;
  for (const SentChunk& chunk : chunks) {
    open.bytes += static_cast<double>(chunk.elements) *
                  static_cast<double>(wire_element_bytes);
    open.ready_seconds = chunk.ready_seconds;
    open.pass_bytes += chunk.pass_bytes;
    if (open.bytes <= static_cast<double>(theta_bytes)) continue;
    messages.push_back(open);
    open = {};
  }
  if (open.bytes > 0) messages.push_back(open);
  return messages;
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
      exchange.csc ? EvenChunks(workload, exchange) : std::vector<SentChunk>();
  std::vector<Bucketing> bucketings;
  for (const std::size_t theta : thetas) {
    Bucketing next{
        theta,
        exchange.csc
            ? CscMessages(chunks, theta, exchange.wire_element_bytes)
            : DenseMessages(workload, theta, exchange.wire_element_bytes)};
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
