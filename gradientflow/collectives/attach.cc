#include "gradientflow/collectives/attach.h"

namespace gradientflow {

// A device that cannot tell when writes of others are there must not get any.
Result<std::string> AttachDeviceMemory(Device& device, RemotePlaces& places,
                                       const BufferView& memory) {
  GF_RETURN_IF_ERROR(device.FlushRemoteWrites());
  DeviceBuffer buffer;
  buffer.memory = memory;
  const Result<DmaBuf> exported =
      device.ExportDmaBuf(memory.data, memory.bytes);
  if (exported.ok()) {
    buffer.dma_buf = exported.value().fd.get();
    buffer.offset = exported.value().offset;
  } else {
    buffer.no_dma_buf = exported.status().message();
  }
  return places.Attach(buffer);
}

}  // namespace gradientflow
