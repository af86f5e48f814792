#include "gradientflow/session/agreement.h"

#include <cstdint>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/config/settings_table.h"
#include "transports/wire.h"

namespace gradientflow {
namespace {

constexpr const char* kSharedSettings[] = {
    "size",           "pool_dtype",         "wire_dtype", "reduce",
    "bucket_bytes",   "loss_scale",         "algorithm",  "sparsity",
    "chunk_elements", "warmup_steps",       "residual",   "momentum",
    "segment_bytes",  "segments_in_flight", "connections"};
// So that a rank's card stays small; see transports/rendezvous.
constexpr std::size_t kMaxListBytes = std::size_t{40} << 10;

}  // namespace

std::string AgreementText(const Options& options,
                          const std::vector<TensorSpec>& tensors) {
  std::string text = StrCat("wire_format=", int{kWireVersion}, "\n");
  for (const char* name : kSharedSettings) {
    text += StrCat(name, "=", GetOption(options, name).value(), "\n");
  }
  text += StrCat("tensors=", tensors.size(), "\n");
  std::uint64_t hash = 0xCBF29CE484222325;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorSpec& spec = tensors[i];
    const std::string line =
        StrCat("tensor ", i, "=", spec.name, ", ", spec.elements, " elements",
               spec.always_dense ? ", always dense" : "",
               spec.skip_lars ? ", no LARS" : "", "\n");
    for (char c : line) {
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
    }
    if (text.size() + line.size() < kMaxListBytes) text += line;
  }
  text += StrCat("hash of all tensors=", hash, "\n");
  return text;
}

}  // namespace gradientflow
