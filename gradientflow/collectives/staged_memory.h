#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/image_memory.h"
#include "gradientflow/collectives/staged_job.h"
#include "gradientflow/collectives/staging_memory.h"
#include "gradientflow/device/device.h"
#include "gradientflow/observe/logger.h"
#include "transports/arena.h"
#include "transports/remote_places.h"

namespace gradientflow {

// All are borrowed, and outlive the memory.
struct StagedMemoryArgs {
  Device* device = nullptr;
  SharedArena* arena = nullptr;    // May be null, as what follows.
  RemotePlaces* places = nullptr;  // What the network card reaches.
  Logger* logger = nullptr;
  std::size_t staging_bytes = 0;  // Of all channels; see StagedOptions.
};

// The memory that staged calls take in turn: page-locked memory of the host,
// images on the device that the network card reaches, and words on the device.
// The channels do not share it, because the plain calls that one rank waits for
// may be behind the gradients of another rank.
// NOT thread-safe.
class StagedMemory {
 public:
  explicit StagedMemory(const StagedMemoryArgs& args);

  // Whether calls of the channel may have images.
  bool HasImages(Channel channel) const { return image(channel).usable(); }
  // Gives the job all the memory that it needs, if there is room for it; it is
  // then admitted. If there is none, it has to ask again when others have given
  // theirs back. A job whose image cannot be made is staged in host memory
  // instead.
  Status Admit(StagedJob* job);
  // Takes back what the job has.
  void TakeBack(StagedJob* job);

  // Bytes of page-locked memory allocated so far.
  std::size_t staging_bytes() const;

 private:
  const ImageMemory& image(Channel channel) const {
    return images_[static_cast<std::size_t>(channel)];
  }
  bool AdmitImage(StagedJob* job);
  Result<std::uint32_t*> NonfiniteWord(const StagedJob& job);
  void TellOnce(const std::string& what, const Status& why);

  const StagedMemoryArgs args_;
  std::array<StagingMemory, kChannels> staging_;
  std::array<ImageMemory, kChannels> images_;
  // For StagedJob::nonfinite, many words at a time.
  std::vector<DeviceMemory> words_;
  std::set<std::string> told_;
};

}  // namespace gradientflow
