#include "transports/rendezvous/directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <system_error>
#include <utility>

#include "gradientflow/base/fd.h"
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

// Only this goes into the file names, because everybody can read them.
std::string HashOf(const Bits256& secret) {
  return Hex(View(HmacSha256(View(secret), "file names")).substr(0, 8));
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

// A lock of the open file, not of the process: the kernel lets it go when the
// file is closed, at the latest when the process ends.
struct flock WholeFile() {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

Fd LockedFile(const std::string& path) {
  const int raw = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  Fd file(raw);
  struct flock lock = WholeFile();
  if (raw >= 0 && ::fcntl(raw, F_OFD_SETLK, &lock) != 0) file.Reset();
  return file;
}

bool IsLocked(int fd) {
  struct flock lock = WholeFile();
  return ::fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
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
                                  const Bits256& secret,
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
  return Directory(path, StrCat(path, "/gradientflow-", HashOf(secret), "."),
                   "." + nonce);
}

// Written under an unfinished name and then renamed, so that no reader sees a
// part of it.
Status Directory::Write(const std::string& name, FrameType type,
                        std::string_view body, Fd* lock) {
  const std::string final_path = prefix_ + name;
  const std::string path = final_path + suffix_;
  const int fd =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return FileError(path, errno);
  bool written = WriteAll(fd, EncodeFrame(type, body));
  struct stat found = {};
  written = written && ::fstat(fd, &found) == 0;
  int error = errno;
  // A network file system may report only here that it is full.
  const bool closed = ::close(fd) == 0;
  if (written && !closed) error = errno;
  if (!written || !closed) {
    ::unlink(path.c_str());
    return FileError(path, error);
  }
  owner_ = found.st_uid;
  if (lock != nullptr) *lock = LockedFile(path);
  if (::rename(path.c_str(), final_path.c_str()) != 0) {
    error = errno;
    ::unlink(path.c_str());
    return FileError(final_path, error);
  }
  return Status();
}

// Opening a file makes a network file system look whether it has changed, which
// a mere stat() need not.
Directory::Look Directory::Read(const std::string& name, Version* version,
                                Frame* frame, bool* held) const {
  const int raw = ::open((prefix_ + name).c_str(),
                         O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  const Fd fd(raw);
  struct stat found = {};
  if (raw < 0 || ::fstat(raw, &found) != 0 || !S_ISREG(found.st_mode) ||
      found.st_uid != owner_) {
    *version = {};
    return Look::kAbsent;
  }
  const Version seen = {
      found.st_ino,
      std::int64_t{found.st_mtim.tv_sec} * 1000000000 + found.st_mtim.tv_nsec,
      found.st_size};
  if (held != nullptr) *held = IsLocked(raw);
  if (*version == seen) return Look::kSame;
  *version = {};
  std::string bytes;
  // A byte more than there should be, in case that the file grows meanwhile.
  const std::size_t most =
      std::min(kReadBytes, static_cast<std::size_t>(found.st_size) + 1);
  ssize_t got = 0;
  do {
    const std::size_t have = bytes.size();
    bytes.resize(have + most);
    got = ::read(raw, &bytes[have], most);
    bytes.resize(have + static_cast<std::size_t>(got > 0 ? got : 0));
  } while ((got > 0 && bytes.size() < kMostFileBytes) ||
           (got < 0 && errno == EINTR));
  Result<Frame> decoded = DecodeFrame(bytes);
  if (got < 0 || !decoded.ok()) return Look::kAbsent;
  *version = seen;
  *frame = std::move(decoded).value();
  return Look::kRead;
}

std::optional<std::string> Directory::Read(const std::string& name,
                                           FrameType type) const {
  Version unread;
  Frame frame;
  if (Read(name, &unread, &frame) != Look::kRead || frame.type != type) {
    return std::nullopt;
  }
  return std::move(frame.body);
}

void Directory::Remove(const std::string& name) const {
  ::unlink((prefix_ + name).c_str());
}

void Directory::RemoveUnfinished(const std::string& name,
                                 const std::string& nonce) const {
  const std::string file = StrCat(name, ".", nonce);
  if (IsUnfinished(file)) Remove(file);
}

void Directory::Renew(const std::string& name) const {
  ::utimensat(AT_FDCWD, (prefix_ + name).c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
}

void Directory::Refresh() const {
  const std::string path = prefix_ + "look" + suffix_;
  const Fd made(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  ::unlink(path.c_str());
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
  const Result<Bits256> random = RandomBits();
  if (!random.ok()) return random.status();
  return Hex(View(random.value()).substr(0, kNonceBytes));
}

}  // namespace gradientflow::rendezvous
