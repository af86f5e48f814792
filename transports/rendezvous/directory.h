#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "gradientflow/base/status.h"
#include "transports/rendezvous/frames.h"

namespace gradientflow::rendezvous {

// Frames stored as files of one job, in a directory that its ranks share. A
// file appears as a whole or not at all. A read may return what a crashed run
// left behind, so the contents must tell which run they belong to.
class Directory {
 public:
  // `token` keeps jobs that use one directory apart. `nonce` keeps the
  // unfinished files of this process apart from those of others. Creates the
  // last part of `path` if it is missing.
  static Result<Directory> Open(const std::string& path, std::string_view token,
                                const std::string& nonce);

  Status Write(const std::string& name, FrameType type,
               std::string_view body) const;
  // Returns nothing if there is no such file, or if it is not a whole frame of
  // this type.
  std::optional<std::string> Read(const std::string& name,
                                  FrameType type) const;
  // Returns the frame, whatever its type.
  std::optional<Frame> Read(const std::string& name) const;
  void Remove(const std::string& name) const;
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
};

// Returns 32 random hexadecimal digits.
Result<std::string> MakeNonce();

}  // namespace gradientflow::rendezvous
