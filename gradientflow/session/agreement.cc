#include "gradientflow/session/agreement.h"

#include <cstddef>
#include <cstdint>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/communicator/agreement.h"

namespace gradientflow {
namespace {

// What a setting that all ranks must agree on is about.
enum class Matter {
  kRun,     // How gradients travel; may differ when a state is restored.
  kState,   // What a state means, or what training makes of it.
  kSparse,  // The same, for a session that sends sparsely.
};

constexpr struct {
  const char* name;
  Matter matter;
} kShared[] = {
    {"size", Matter::kState},  // A residual is one rank's part.
    {"pool_dtype", Matter::kState},
    {"wire_dtype", Matter::kState},  // What rounding loses.
    {"reduce", Matter::kState},      // The unit of gradients.
    {"bucket_bytes", Matter::kRun},
    // Only the first one; a state contains its own.
    {"loss_scale", Matter::kRun},
    {"sparsity", Matter::kState},
    {"chunk_elements", Matter::kSparse},  // What a selection consists of.
    {"warmup_steps", Matter::kSparse},    // How many chunks it selects.
    {"residual", Matter::kSparse},
    {"momentum", Matter::kSparse},  // How residuals decay.
    {"profile", Matter::kRun},      // Ranks tell each other their times.
};

// Ranks broadcast this text and states contain it, so it has to stay small. A
// hash stands for the tensors that do not fit.
constexpr std::size_t kMaxListBytes = std::size_t{40} << 10;

// Sizes and alignment say where each tensor lies. Residuals, momentum and
// chunks are in the order of the pool, so a state has to say it as well.
std::string TensorLines(const std::vector<TensorSpec>& tensors,
                        const PoolLayout& layout) {
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
  text += StrCat("tensors begin at multiples of=", layout.align_elements(),
                 " elements\n");
  return text;
}

}  // namespace

std::string SessionText(const Options& options,
                        const std::vector<TensorSpec>& tensors,
                        const PoolLayout& layout) {
  std::string text;
  for (const auto& setting : kShared)
    text += SettingLine(options, setting.name);
  return text + TensorLines(tensors, layout);
}

std::string StateText(const Options& options,
                      const std::vector<TensorSpec>& tensors,
                      const PoolLayout& layout) {
  std::string text;
  for (const auto& setting : kShared) {
    if (setting.matter == Matter::kRun) continue;
    if (setting.matter == Matter::kSparse && options.sparsity <= 0) continue;
    text += SettingLine(options, setting.name);
  }
  return text + TensorLines(tensors, layout);
}

}  // namespace gradientflow
