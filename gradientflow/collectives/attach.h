#pragma once

#include <string>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/status.h"
#include "gradientflow/device/device.h"
#include "transports/remote_places.h"

namespace gradientflow {

// Lets the network card read and write memory of `device` until
// RemotePlaces::Detach(). Returns the way that was found; errors say why there
// is none. NOT thread-safe, as `places` is not.
Result<std::string> AttachDeviceMemory(Device& device, RemotePlaces& places,
                                       const BufferView& memory);

}  // namespace gradientflow
