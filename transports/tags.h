#pragma once

#include <cstddef>
#include <cstdint>

#include "transports/wire.h"

// The meaning of the 64 bits of a tag, from the highest to the lowest. No other
// file takes a tag apart.
//
//   of a collective     0 (1) | series (1) | call (30) | segment (20) |
//                       ordinal (12)
//   point to point      1 (1) | name (32)  | number (31)
namespace gradientflow {

inline constexpr Tag kPointToPointBit = Tag{1} << 63;
constexpr bool IsPointToPoint(Tag tag) { return (tag & kPointToPointBit) != 0; }

// -- Of a collective ------------------------------------------------------
// `call` counts the calls of one of the two series of a group. A call is cut
// into segments, and `ordinal` counts the messages of a segment from one rank
// to another. Numbers that exceed their bits start again at 0.
inline constexpr std::uint64_t kCallMask = 0x3FFFFFFF;
inline constexpr std::uint64_t kSegmentMask = 0xFFFFF;
inline constexpr std::uint64_t kOrdinalMask = 0xFFF;
constexpr Tag CallTag(int series, std::uint64_t call, std::uint64_t segment = 0,
                      std::uint64_t ordinal = 0) {
  return static_cast<Tag>(series) << 62 | (call & kCallMask) << 32 |
         (segment & kSegmentMask) << 12 | (ordinal & kOrdinalMask);
}
constexpr std::size_t SeriesOf(Tag tag) { return tag >> 62 & 1; }
constexpr std::uint64_t CallOf(Tag tag) { return tag >> 32 & kCallMask; }
// The same number for all messages of a segment, which use a single lane.
constexpr std::uint64_t SegmentOf(Tag tag) { return tag >> 12; }
// Whether call `a` came before call `b`. REQUIRES that they are less than 2^29
// calls apart.
constexpr bool IsEarlierCall(std::uint64_t a, std::uint64_t b) {
  return static_cast<std::int64_t>((a - b) << 34) < 0;
}

// -- Point to point -------------------------------------------------------
// The name that the sender gave, and the number of the message among those of
// that name. Below kNumberedTags the sender numbers: messages of one name may
// use several lanes and overtake each other. From there on the sender's number
// is always 0, all messages of a name use one lane, and the receiver numbers
// them as they arrive. The receiver forgets a name when no message of it is
// awaited or waiting, so any number of names may be used.
inline constexpr Tag kNumberMask = 0x7FFFFFFF;
inline constexpr std::uint32_t kNumberedTags = 256;
constexpr Tag PointToPointTag(std::uint32_t named, std::uint32_t number) {
  return kPointToPointBit | Tag{named} << 31 | (number & kNumberMask);
}
constexpr std::uint32_t NamedTag(Tag tag) {
  return static_cast<std::uint32_t>(tag >> 31);
}
constexpr bool IsNumberedByReceiver(Tag tag) {
  return IsPointToPoint(tag) && NamedTag(tag) >= kNumberedTags;
}
constexpr Tag WithNumber(Tag tag, std::uint32_t number) {
  return (tag & ~kNumberMask) | (number & kNumberMask);
}

}  // namespace gradientflow
