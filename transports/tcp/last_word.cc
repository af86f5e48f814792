#include "transports/tcp/last_word.h"

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "gradientflow/base/str_cat.h"
#include "transports/wire.h"

namespace gradientflow {

std::optional<Status> LastWord(const Socket& lane, bool* wordless) {
  *wordless = false;
  std::array<std::byte, kHeaderBytes + kMaxControlBytes> bytes;
  const std::int64_t got = Peek(lane, bytes.data(), bytes.size());
  if (got == -EAGAIN || got == -EWOULDBLOCK) return Status();
  if (got <= 0) {
    *wordless = true;
    return Status(
        StatusCode::kUnavailable,
        StrCat("it closed the connection before all ranks were connected",
               got == 0 ? "" : ": " + ErrorText(static_cast<int>(-got))));
  }
  const auto there = static_cast<std::size_t>(got);
  if (there < kHeaderBytes) return Status();
  const Result<Header> header =
      DecodeHeader(std::span<const std::byte>(bytes).first<kHeaderBytes>());
  if (!header.ok() || header.value().kind != MessageKind::kAbort) {
    return std::nullopt;
  }
  if (there < kHeaderBytes + header.value().payload_bytes) return Status();
  const std::uint64_t code = header.value().tag;
  return Status(
      code > 0 && code <= kMaxStatusCode ? static_cast<StatusCode>(code)
                                         : StatusCode::kAborted,
      std::string(reinterpret_cast<const char*>(&bytes[kHeaderBytes]),
                  static_cast<std::size_t>(header.value().payload_bytes)));
}

}  // namespace gradientflow
