#pragma once

#include <cstddef>
#include <cstdint>

#include "gradientflow/base/little_endian.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/collectives/placed_layout.h"
#include "transports/remote_places.h"

// What ranks tell each other with placed data.
namespace gradientflow {

enum class PlacedPhase : std::uint8_t {
  kContribution,  // To the rank that adds up the block.
  kSum,           // From it.
};
inline constexpr int kPlacedPhases = 2;

// The number that comes with the data. From the lowest bit on:
//   non-finite (1) | phase (1) | window (2) | slot (6) | generation (20)
struct PlacedNotice {
  bool nonfinite = false;
  PlacedPhase phase = PlacedPhase::kContribution;
  int window = 0;  // Of the rank that gets the notice.
  int slot = 0;
  // Counts the segments that have used the slot. It starts again at 0.
  std::uint32_t generation = 0;
};
inline constexpr int kMostPlacedSlots = 1 << 6;
inline constexpr std::uint32_t kGenerationMask = (1U << 20) - 1;
static_assert(kPlacedWindows <= 4 && 10 + 20 <= kNoticeBits);

constexpr std::uint32_t EncodeNotice(const PlacedNotice& notice) {
  return (notice.nonfinite ? 1U : 0U) |
         static_cast<std::uint32_t>(notice.phase) << 1 |
         static_cast<std::uint32_t>(notice.window) << 2 |
         static_cast<std::uint32_t>(notice.slot) << 4 |
         (notice.generation & kGenerationMask) << 10;
}
constexpr PlacedNotice DecodeNotice(std::uint32_t bits) {
  return {.nonfinite = (bits & 1) != 0,
          .phase = static_cast<PlacedPhase>(bits >> 1 & 1),
          .window = static_cast<int>(bits >> 2 & 3),
          .slot = static_cast<int>(bits >> 4 & (kMostPlacedSlots - 1)),
          .generation = bits >> 10 & kGenerationMask};
}

// What stands in front of a contribution, in kPlacedHeaderBytes.
struct PlacedHeader {
  // The same on all ranks; of the call and the segment.
  std::uint64_t signature = 0;
  // The number of the call in its channel.
  std::uint64_t call = 0;
  // Where the sum of the block is to land on the rank that contributes.
  RemotePlace sum;
};
static_assert(28 + 4 * (kMostRails - 1) <= kPlacedHeaderBytes);

inline void EncodePlacedHeader(const PlacedHeader& header, std::byte* to) {
  PutLittleEndian(to, header.signature);
  PutLittleEndian(to + 8, header.call);
  PutLittleEndian(to + 16, header.sum.address);
  PutLittleEndian(to + 24, header.sum.key);
  std::byte* at = to + 28;
  for (const std::uint32_t key : header.sum.more_keys) {
    PutLittleEndian(at, key);
    at += sizeof(key);
  }
}
inline PlacedHeader DecodePlacedHeader(const std::byte* from) {
  PlacedHeader header = {GetLittleEndian<std::uint64_t>(from),
                         GetLittleEndian<std::uint64_t>(from + 8),
                         {GetLittleEndian<std::uint64_t>(from + 16),
                          GetLittleEndian<std::uint32_t>(from + 24)}};
  const std::byte* at = from + 28;
  for (std::uint32_t& key : header.sum.more_keys) {
    key = GetLittleEndian<std::uint32_t>(at);
    at += sizeof(key);
  }
  return header;
}

}  // namespace gradientflow
