#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "gradientflow/base/done.h"
#include "gradientflow/base/status.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/collectives/elements.h"
#include "gradientflow/device/device.h"

namespace gradientflow {

// A buffer in device memory, and its image in page-locked memory of the host.
// The image is packed and in the wire dtype.
struct StagedSide {
  Elements device;
  DType device_dtype = DType::kFloat32;
  std::byte* host = nullptr;
  DType host_dtype = DType::kFloat32;
  std::size_t count = 0;  // In elements; 0 if not staged.
  std::size_t piece_elements = 1;

  std::size_t host_bytes() const { return count * SizeOf(host_dtype); }
  std::size_t pieces() const {
    return (count + piece_elements - 1) / piece_elements;
  }
};

struct StagedJob;

// The unit of copying: elements [begin, begin + count) of one side of a job.
struct StagedPiece {
  StagedJob* job = nullptr;
  const StagedSide* side = nullptr;
  std::size_t begin = 0;
  std::size_t count = 0;
  // On the way out: the elements before this one need no more copying when the
  // piece is done.
  std::size_t end = 0;
};

// A call in flight in a StagedCollective.
struct StagedJob final : public Feed {
  enum class Way : std::uint8_t {
    kHost,   // Buffers on the host: only waits for its turn.
    kFed,    // An allreduce that runs while its buffer fills.
    kWhole,  // Copied to the host, run, copied back.
    kAlone,  // An allreduce of one rank, on the device.
  };

  CollectiveCall call;
  Done done;
  Way way = Way::kHost;
  // The network card takes the output of a kFed job from the device's memory
  // and writes it there. Only own_parts is copied, which this rank adds up.
  bool direct = false;
  std::vector<Extent> own_parts;  // Ascending; possibly none.
  StagedSide input;
  StagedSide output;
  // For a direct job: the output as the network card has it, gapless and in the
  // wire dtype. That is the output itself, or `image`, into which it is packed
  // and from which the result is unpacked.
  StagedSide wire;
  bool packs = false;
  std::byte* image = nullptr;
  bool unpacking = false;  // The last piece to copy in is in the queue.
  bool reads_output = false;
  bool writes_output = false;
  std::vector<std::size_t> extent_starts;
  std::unique_ptr<Event> gate;  // Recorded after its buffers were written.
  std::byte* staging = nullptr;
  // A device word that is set if a result written there is not finite, and its
  // image on the host. Null if no one needs it.
  std::uint32_t* nonfinite = nullptr;
  std::uint32_t* nonfinite_host = nullptr;
  std::size_t number = 0;  // Number of this object; kept by Reset().

  bool admitted = false;    // Has its staging memory.
  bool begun = false;       // Its inner call, if it has one, has been started.
  bool inner_done = false;  // Only the device uses the staging memory.
  // Elements whose copying out was given to the device, and is done. Elements
  // that need no copying count as copied with those before them.
  std::size_t sent_out = 0;
  std::size_t here = 0;
  std::size_t own_sent = 0;           // Of own_parts, given to the device.
  std::size_t sent_in = 0;            // Pieces given to the device to copy in.
  std::size_t in_place = 0;           // Pieces copied in.
  std::size_t on_device = 0;          // Pieces in either direction under way.
  std::vector<std::size_t> finished;  // Elements, by piece of the output.
  // Pieces to copy in; shared by all jobs.
  std::deque<StagedPiece>* ready = nullptr;
  std::uint32_t flags = 0;
  Status status;

  // Number of elements to copy out: those of the input, then those of the
  // output.
  std::size_t out_elements() const {
    return input.count + (reads_output ? output.count : 0);
  }
  std::size_t in_pieces() const {
    if (direct) return own_parts.size() + (packs ? 1 : 0);
    return writes_output ? output.pieces() : 0;
  }
  // REQUIRES sent_out < out_elements().
  StagedPiece NextOut();
  // The inner call is done, and what the card has written is there: the whole
  // image can be unpacked.
  void UnpackAll();
  // The card does not take it after all: every element is to be copied.
  void GoStaged();
  // The inner call is done: the whole output can be copied in.
  void FinishedAll();

  // The Feed of a kFed job.
  std::size_t available() const override { return here; }
  void Finished(std::size_t begin, std::size_t count) override;

  bool in_image(const StagedPiece& piece) const {
    return packs && piece.side == &output;
  }

  // Makes the job as new, but keeps what is costly to make.
  void Reset();
};

}  // namespace gradientflow
