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

// A buffer in device memory, and its image in page-locked memory of the host:
// packed, and in the wire dtype.
struct StagedSide {
  Elements device;
  DType device_dtype = DType::kFloat32;
  std::byte* host = nullptr;
  DType host_dtype = DType::kFloat32;
  std::size_t count = 0;  // Elements; 0: not staged.
  std::size_t piece_elements = 1;

  std::size_t host_bytes() const { return count * SizeOf(host_dtype); }
  std::size_t pieces() const {
    return (count + piece_elements - 1) / piece_elements;
  }
};

struct StagedJob;

// The unit of copying.
struct StagedPiece {
  StagedJob* job = nullptr;
  const StagedSide* side = nullptr;
  std::size_t begin = 0;
  std::size_t count = 0;
};

// A call on its way through a StagedCollective.
struct StagedJob final : public Feed {
  enum class Way : std::uint8_t {
    kHost,   // Its buffers are the host's: it waits for its turn, no more.
    kFed,    // An allreduce that runs while its buffer fills.
    kWhole,  // Copied in, run, copied out.
    kAlone,  // An allreduce of one rank: stays on the device.
  };

  CollectiveCall call;
  Done done;
  Way way = Way::kHost;
  StagedSide input;
  StagedSide output;
  bool reads_output = false;
  bool writes_output = false;
  std::vector<std::size_t> extent_starts;
  std::unique_ptr<Event> gate;  // What it reads is written.
  std::byte* staging = nullptr;
  // Set on the device if what is written there is not finite, and its image;
  // null if nobody looks.
  std::uint32_t* nonfinite = nullptr;
  std::uint32_t* nonfinite_host = nullptr;
  std::size_t number = 0;  // Of the object, from 0.

  bool admitted = false;      // Has its staging.
  bool begun = false;         // The inner call has been started, if any.
  bool inner_done = false;    // Nobody but the device uses the staging.
  std::size_t sent_out = 0;   // Elements given to the device to copy out,
  std::size_t here = 0;       // and copied.
  std::size_t sent_in = 0;    // Pieces given to the device to copy in,
  std::size_t in_place = 0;   // and copied.
  std::size_t on_device = 0;  // Pieces of either kind under way.
  std::vector<std::size_t> finished;  // Elements, by piece of the output.
  std::deque<StagedPiece>* ready = nullptr;  // Pieces to copy in.
  std::uint32_t flags = 0;
  Status status;

  // Elements to copy out: of the input, then of the output.
  std::size_t out_elements() const {
    return input.count + (reads_output ? output.count : 0);
  }
  std::size_t in_pieces() const { return writes_output ? output.pieces() : 0; }
  // REQUIRES sent_out < out_elements().
  StagedPiece NextOut();
  // Everything is copied in.
  void FinishedAll();

  // Feed. Of a kFed job.
  std::size_t available() const override { return here; }
  void Finished(std::size_t begin, std::size_t count) override;

  // As new, but for what is worth keeping.
  void Reset();
};

}  // namespace gradientflow
