#pragma once

#include <cstddef>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/block_ring.h"
#include "gradientflow/device/device.h"
#include "transports/remote_places.h"

namespace gradientflow {

// Memory of a device that the network card reaches, for gradients that travel
// in another form than they have in their pool. Calls take it in turn and give
// it back. Allocates nothing once it has grown to its largest block.
// NOT thread-safe. The constructor's arguments outlive it. All blocks are given
// back before it is destroyed.
class ImageMemory {
 public:
  // The first use allocates `usual_bytes`. Only a single larger block makes it
  // grow. `places` may be null.
  ImageMemory(Device& device, RemotePlaces* places, std::size_t usual_bytes)
      : device_(device), places_(places), usual_bytes_(usual_bytes) {}
  ~ImageMemory() { Release(); }
  ImageMemory(const ImageMemory&) = delete;
  ImageMemory& operator=(const ImageMemory&) = delete;

  // False if there never was a way to have any, or there is none any more:
  // refused() then says why, if anything was tried.
  bool usable() const { return places_ != nullptr && refused_.ok(); }
  const Status& refused() const { return refused_; }

  // Returns a block that is 256-byte aligned, with undefined content, or null
  // if there is no room until other blocks are given back. An error ends
  // usable(). REQUIRES usable().
  Result<std::byte*> Take(std::size_t bytes);
  // REQUIRES a block that Take() returned.
  void Give(const std::byte* block);

 private:
  Status Grow(std::size_t bytes);
  void Release();

  Device& device_;
  RemotePlaces* const places_;
  const std::size_t usual_bytes_;
  DeviceMemory memory_;
  BlockRing ring_;
  Status refused_;
};

}  // namespace gradientflow
