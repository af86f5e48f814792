#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "gradientflow/base/status.h"
#include "transports/rendezvous/frames.h"

namespace gradientflow::rendezvous {

// Frames as files of one job in a directory that its ranks share. A file is
// there whole or not at all. What a crashed run left behind may be read: the
// contents have to tell.
class Directory {
 public:
  // `token` keeps jobs in one directory apart; `nonce` this process's files in
  // the making from another's. Makes the last part of `path` if it is missing.
  static Result<Directory> Open(const std::string& path, std::string_view token,
                                const std::string& nonce);

  Status Write(const std::string& name, FrameType type,
               std::string_view body) const;
  // None if there is no such file, or it is no whole frame of this type.
  std::optional<std::string> Read(const std::string& name,
                                  FrameType type) const;
  // The frame, of whatever type.
  std::optional<Frame> Read(const std::string& name) const;
  void Remove(const std::string& name) const;
  // Removes what processes killed while writing have left of this job's files:
  // those that were begun a minute before `name` was written.
  void SweepUnfinished(const std::string& name) const;

  const std::string& path() const { return path_; }

 private:
  Directory(std::string path, std::string prefix, std::string suffix)
      : path_(std::move(path)),
        prefix_(std::move(prefix)),
        suffix_(std::move(suffix)) {}

  std::string path_;
  std::string prefix_;  // Of every file name, folder included.
  std::string suffix_;  // Of files in the making.
};

// 32 random hexadecimal digits.
Result<std::string> MakeNonce();

}  // namespace gradientflow::rendezvous
