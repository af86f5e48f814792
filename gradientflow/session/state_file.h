#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gradientflow/base/status.h"

// The bytes of Session::SaveState(), little-endian:
//
//   state    := magic version sections total_bytes section* checksum
//   magic    := "GFSTATE" 0x00
//   version  := u32                  now 2
//   sections := u32                  how many follow
//   total_bytes := u64               of the state, checksum included
//   section  := name_bytes:u32 reserved:u32(0) payload_bytes:u64 name payload
//   checksum := u64                  of all bytes before it
//
// magic, total_bytes and checksum stand in the same places in every version,
// so that damage and another version can be told apart.
namespace gradientflow {

// What a rank needs to go on where it stopped. Views: of the session's
// buffers when written, of the given bytes when read.
struct SavedState {
  // Lines "name=value": all that must not differ between the session that
  // saved and the one that restores. See CheckSettings().
  std::string_view settings = {};
  // Which training run it is of: alike on all its ranks, and in what is trained
  // on from it.
  std::uint64_t job = 0;
  std::uint32_t rank = 0;  // Whose it is.
  std::uint64_t step = 0;  // That comes next.
  float loss_scale = 1.0F;
  std::span<const std::byte> selection =
      {};  // One byte per chunk; empty if dense.
  std::span<const std::byte> residual = {};  // float32, pool order; or empty.
  std::span<const std::byte> momentum = {};  // float32, pool order; or empty.
};

std::vector<std::byte> WriteState(const SavedState& state);

// What WriteState() comes to, if the payloads are that long.
struct StatePayloads {
  std::size_t settings = 0;
  std::size_t selection = 0;
  std::size_t residual = 0;
  std::size_t momentum = 0;
};
std::size_t StateBytes(const StatePayloads& payloads);

// Of any bytes. Damage within one word never goes unseen; wider damage does
// with a chance of 2^-64.
std::uint64_t StateChecksum(std::span<const std::byte> bytes);

// Views of `bytes`, valid as long as they are; floats may be unaligned there.
// Allocates nothing that depends on what the bytes claim. kDataLoss: not a
// state, truncated or damaged; kInvalidArgument: of another version. Both say
// what was expected and what was seen. Sizes of the payloads are for the
// caller to compare with its own.
Result<SavedState> ReadState(std::span<const std::byte> bytes);

// kInvalidArgument names the first line that differs, as this session has it
// (`expected`) and as the state has it (`seen`).
Status CheckSettings(std::string_view expected, std::string_view seen);

}  // namespace gradientflow
