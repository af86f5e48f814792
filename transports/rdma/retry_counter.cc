#include "transports/rdma/retry_counter.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

constexpr const char* kNames[] = {
    // mlx5: no acknowledgement, a gap on the way there, a gap on the way back,
    // not ready.
    "local_ack_timeout_err", "packet_seq_err", "implied_nak_seq_err",
    "rnr_nak_retry_err",
    // bnxt_re.
    "to_retransmits", "seq_err_naks_rcvd", "rnr_naks_rcvd",
    // Soft-RoCE.
    "completer_retry_err"};

}  // namespace

// Counters are those of a port, or of the device if it keeps none by port.
RetryCounter::RetryCounter(const std::string& device_path, int port) {
  const std::string folders[] = {StrCat(device_path, "/ports/", port),
                                 device_path};
  for (const std::string& folder : folders) {
    for (const char* const name : kNames) {
      const std::string path = StrCat(folder, "/hw_counters/", name);
      Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
      if (file.valid()) files_.push_back(std::move(file));
    }
    if (!files_.empty()) return;
  }
}

std::optional<std::uint64_t> RetryCounter::Total() const {
  if (files_.empty()) return std::nullopt;
  std::uint64_t total = 0;
  for (const Fd& file : files_) {
    std::array<char, 32> text;
    const ssize_t bytes = ::pread(file.get(), text.data(), text.size(), 0);
    std::uint64_t count = 0;
    if (bytes > 0) std::from_chars(text.data(), text.data() + bytes, count);
    total += count;
  }
  return total;
}

}  // namespace gradientflow
