#include "transports/rendezvous/directory.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <system_error>

#include "gradientflow/base/str_cat.h"
#include "transports/tcp/socket.h"

namespace gradientflow::rendezvous {
namespace {

// The most that is read of a file: more than any list of cards.
constexpr std::size_t kMostFileBytes = std::size_t{1} << 30;
// SweepUnfinished() removes unfinished files that are this much older.
constexpr std::chrono::minutes kUnfinishedAge(1);
constexpr std::size_t kNonceBytes = 16;
constexpr std::size_t kNonceDigits = 2 * kNonceBytes;
constexpr std::size_t kReadBytes = std::size_t{64} << 10;

std::string Hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

// FNV-1a. Only a hash goes into the file names, since the token is a secret.
std::string HashOf(std::string_view token) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : token) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  std::string bytes;
  for (int i = 0; i < 8; ++i) {
    bytes += static_cast<char>((hash >> (56 - 8 * i)) & 0xFF);
  }
  return Hex(bytes);
}

Status FileError(const std::string& path, int error) {
  return SocketError(StatusCode::kUnavailable, "rendezvous: " + path, error);
}

bool WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(fd, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(wrote));
  }
  return true;
}

// Unfinished files have a nonce at the end of their names.
bool IsUnfinished(std::string_view file) {
  const std::size_t dot = file.rfind('.');
  return dot != std::string_view::npos &&
         file.size() - dot - 1 == kNonceDigits &&
         file.find_first_not_of("0123456789abcdef", dot + 1) ==
             std::string_view::npos;
}

}  // namespace

Result<Directory> Directory::Open(const std::string& path,
                                  std::string_view token,
                                  const std::string& nonce) {
  struct stat found = {};
  if (path.empty() || path.front() != '/') {
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("rendezvous: expected file:///directory, seen file://", path));
  }
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return FileError(path, errno);
  }
  if (::stat(path.c_str(), &found) != 0) return FileError(path, errno);
  if (!S_ISDIR(found.st_mode)) return FileError(path, ENOTDIR);
  return Directory(path, StrCat(path, "/gradientflow-", HashOf(token), "."),
                   "." + nonce);
}

// Written under an unfinished name and then renamed, so that no reader sees a
// part of it.
Status Directory::Write(const std::string& name, FrameType type,
                        std::string_view body) const {
  const std::string final_path = prefix_ + name;
  const std::string path = final_path + suffix_;
  const int fd =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return FileError(path, errno);
  const bool written = WriteAll(fd, EncodeFrame(type, body));
  int error = errno;
  // A network file system may report only here that it is full.
  const bool closed = ::close(fd) == 0;
  if (written && !closed) error = errno;
  if (!written || !closed) {
    ::unlink(path.c_str());
    return FileError(path, error);
  }
  if (::rename(path.c_str(), final_path.c_str()) != 0) {
    error = errno;
    ::unlink(path.c_str());
    return FileError(final_path, error);
  }
  return Status();
}

std::optional<Frame> Directory::Read(const std::string& name) const {
  const int fd = ::open((prefix_ + name).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  std::string bytes;
  ssize_t got = 0;
  do {
    const std::size_t have = bytes.size();
    bytes.resize(have + kReadBytes);
    got = ::read(fd, &bytes[have], kReadBytes);
    bytes.resize(have + static_cast<std::size_t>(got > 0 ? got : 0));
  } while ((got > 0 && bytes.size() < kMostFileBytes) ||
           (got < 0 && errno == EINTR));
  ::close(fd);
  Result<Frame> frame = DecodeFrame(bytes);
  if (got < 0 || !frame.ok()) return std::nullopt;
  return std::move(frame).value();
}

std::optional<std::string> Directory::Read(const std::string& name,
                                           FrameType type) const {
  std::optional<Frame> frame = Read(name);
  if (!frame || frame->type != type) return std::nullopt;
  return std::move(frame->body);
}

void Directory::Remove(const std::string& name) const {
  ::unlink((prefix_ + name).c_str());
}

// Compares times of the file system, because the clocks of hosts may differ.
void Directory::SweepUnfinished(const std::string& name) const {
  namespace fs = std::filesystem;
  std::error_code error;
  const auto now = fs::last_write_time(prefix_ + name, error);
  if (error) return;
  const std::string job = fs::path(prefix_).filename();
  for (const auto& entry : fs::directory_iterator(path_, error)) {
    const std::string file = entry.path().filename();
    if (!file.starts_with(job) || !IsUnfinished(file)) continue;
    const auto begun = entry.last_write_time(error);
    if (!error && begun + kUnfinishedAge < now) ::unlink(entry.path().c_str());
  }
}

Result<std::string> MakeNonce() {
  std::array<char, kNonceBytes> random;
  if (::getrandom(random.data(), random.size(), 0) !=
      static_cast<ssize_t>(random.size())) {
    return Status(StatusCode::kInternal,
                  StrCat("getrandom: ", ErrorText(errno)));
  }
  return Hex(std::string_view(random.data(), random.size()));
}

}  // namespace gradientflow::rendezvous
