#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "gradientflow/base/fd.h"
#include "gradientflow/base/secret.h"
#include "gradientflow/base/status.h"
#include "transports/rendezvous/frames.h"

namespace gradientflow::rendezvous {

// Frames stored as files of one job, in a directory that its ranks share. A
// file appears as a whole or not at all. A read may return what a crashed run
// left behind, so the contents must tell which run they belong to. It ignores
// files of other users, so the ranks of a job must run as one user, as the file
// server sees it.
class Directory {
 public:
  // Tells whether a file has changed since it was read.
  struct Version {
    std::uint64_t inode = 0;
    std::int64_t changed_ns = 0;  // By the clock of the file system.
    std::int64_t bytes = 0;
    bool operator==(const Version&) const = default;
  };
  enum class Look : std::uint8_t { kAbsent, kSame, kRead };

  // `secret` keeps jobs that use one directory apart. `nonce` keeps the
  // unfinished files of this process apart from those of others. Creates the
  // last part of `path` if it is missing.
  static Result<Directory> Open(const std::string& path, const Bits256& secret,
                                const std::string& nonce);

  // If `lock` is not null it gets what keeps the file locked, from before it
  // appears and as long as this process lives; nothing if the file system has
  // no locks.
  Status Write(const std::string& name, FrameType type, std::string_view body,
               Fd* lock = nullptr);
  // Reads the file, unless it is the one that had that version; then `frame`
  // stays as it is. kAbsent if there is no such file, or if it is no whole
  // frame. If `held` is not null, it tells whether somebody has it locked.
  // REQUIRES a Write() before.
  Look Read(const std::string& name, Version* version, Frame* frame,
            bool* held = nullptr) const;
  // Returns nothing if there is no such file, or if it is not a whole frame of
  // this type.
  std::optional<std::string> Read(const std::string& name,
                                  FrameType type) const;
  void Remove(const std::string& name) const;
  // Makes the file as new as if it had just been written, by the clock of the
  // file system. Errors do not matter, as with Refresh().
  void Renew(const std::string& name) const;
  // Makes a network file system look again what is there. A host that has once
  // found a file absent may believe so for minutes; a change that it makes
  // itself shows it that others have made some. Errors do not matter: another
  // look may succeed.
  void Refresh() const;
  // Removes what a process with that nonce had begun to write there when it was
  // killed.
  void RemoveUnfinished(const std::string& name,
                        const std::string& nonce) const;
  // Removes the unfinished files of this job that killed processes have left:
  // those that were begun more than a minute before `name` was written.
  void SweepUnfinished(const std::string& name) const;

  const std::string& path() const { return path_; }

 private:
  Directory(std::string path, std::string prefix, std::string suffix)
      : path_(std::move(path)),
        prefix_(std::move(prefix)),
        suffix_(std::move(suffix)) {}

  std::string path_;
  std::string prefix_;  // Prefix of every path, with the directory.
  std::string suffix_;  // Suffix of unfinished files.
  // The owner of the files that this process writes. A file server may give
  // them to another user than this process has.
  std::int64_t owner_ = -1;
};

// Returns 32 random hexadecimal digits.
Result<std::string> MakeNonce();

}  // namespace gradientflow::rendezvous
