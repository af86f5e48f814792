#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gradientflow/base/status.h"

// The bytes of GradientSession::SaveState(), in little-endian:
//
//   state    := magic version sections total_bytes section* checksum
//   magic    := "GFSTATE" 0x00
//   version  := u32                  3
//   sections := u32                  how many follow
//   total_bytes := u64               of the state, including the checksum
//   section  := name_bytes:u32 reserved:u32(0) payload_bytes:u64 name payload
//   checksum := u64                  of all bytes before it
//
// magic, total_bytes and checksum have the same places in every version, so
// that damage can be told from another version.
namespace gradientflow {

// What a rank needs to go on where it stopped. The views refer to the session's
// buffers when a state is written, and to the given bytes when it is read.
struct SavedState {
  // Lines "name=value": everything that must not differ between the session
  // that saved and the one that restores. See CheckSettings().
  std::string_view settings = {};
  // Identifies the training run. The same on all of its ranks, and in runs that
  // go on from one of its states.
  std::uint64_t job = 0;
  std::uint32_t rank = 0;  // The rank that saved it.
  std::uint64_t step = 0;  // The number of the next step.
  float loss_scale = 1.0F;
  // One byte per chunk; empty if dense.
  std::span<const std::byte> selection = {};
  // float32, in the order of the pool and with its padding, as the settings
  // describe it; may be empty.
  std::span<const std::byte> residual = {};
  // The same.
  std::span<const std::byte> momentum = {};
};

std::vector<std::byte> WriteState(const SavedState& state);

// Returns the size of WriteState()'s result if the payloads have these sizes in
// bytes.
struct StatePayloads {
  std::size_t settings = 0;
  std::size_t selection = 0;
  std::size_t residual = 0;
  std::size_t momentum = 0;
};
std::size_t StateBytes(const StatePayloads& payloads);

// Damage within one word never goes undetected; wider damage goes undetected
// with probability 2^-64.
std::uint64_t StateChecksum(std::span<const std::byte> bytes);

// Returns views of `bytes`, valid as long as they are; floats in them may be
// unaligned. Allocates nothing whose size depends on what the bytes claim.
// Returns kDataLoss if they are not a state, or are truncated or damaged, and
// kInvalidArgument for another version. Both say what was expected and what was
// seen. The caller has to compare the sizes of the payloads with its own.
Result<SavedState> ReadState(std::span<const std::byte> bytes);

// Returns kInvalidArgument with the first line that differs, as this session
// has it (`expected`) and as the state has it (`seen`).
Status CheckSettings(std::string_view expected, std::string_view seen);

}  // namespace gradientflow
