#include "gradientflow/session/agreement.h"

#include <cstdint>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/communicator/agreement.h"

namespace gradientflow {
namespace {

// What a setting that the ranks share is about.
enum class Matter {
  kRun,     // How gradients travel. A restored state may travel otherwise.
  kState,   // What a state means, or what training makes of it.
  kSparse,  // Likewise, in a session that sends sparsely.
};

constexpr struct {
  const char* name;
  Matter matter;
} kShared[] = {
    {"size", Matter::kState},  // A residual is one rank's part.
    {"pool_dtype", Matter::kState},
    {"wire_dtype", Matter::kState},  // What is rounded away.
    {"reduce", Matter::kState},      // The unit of gradients.
    {"bucket_bytes", Matter::kRun},
    {"loss_scale", Matter::kRun},  // The first; a state holds its own.
    {"sparsity", Matter::kState},
    {"chunk_elements", Matter::kSparse},  // What a selection is of.
    {"warmup_steps", Matter::kSparse},    // How many it selects.
    {"residual", Matter::kSparse},
    {"momentum", Matter::kSparse},  // How residuals decay.
};

// So that a rank's card stays small; see transports/rendezvous.
constexpr std::size_t kMaxListBytes = std::size_t{40} << 10;

std::string TensorLines(const std::vector<TensorSpec>& tensors) {
  std::string text;
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

}  // namespace

std::string SessionText(const Options& options,
                        const std::vector<TensorSpec>& tensors) {
  std::string text;
  for (const auto& setting : kShared)
    text += SettingLine(options, setting.name);
  return text + TensorLines(tensors);
}

std::string StateText(const Options& options,
                      const std::vector<TensorSpec>& tensors) {
  std::string text;
  for (const auto& setting : kShared) {
    if (setting.matter == Matter::kRun) continue;
    if (setting.matter == Matter::kSparse && options.sparsity <= 0) continue;
    text += SettingLine(options, setting.name);
  }
  return text + TensorLines(tensors);
}

}  // namespace gradientflow
