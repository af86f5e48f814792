#include "tests/cuda_ptx/warp.h"

#include <array>

#include "tests/cuda_ptx/lanes.h"

namespace gradientflow::cuda_ptx {
namespace {

void ShuffleLanes(const Registers& r, const Instruction& in,
                  std::uint32_t lanes) {
  auto* result = r.At<std::uint32_t>(in.operands[0]);
  const auto* value = r.At<std::uint32_t>(in.operands[1]);
  // The result may replace the value.
  std::array<std::uint32_t, kLanes> got;
  std::uint32_t in_range = 0;
  ForLanes(lanes, [&](unsigned l) {
    bool is_in_range = false;
    got[l] = value[SourceLane(r, in, l, &is_in_range)];
    in_range |= static_cast<std::uint32_t>(is_in_range) << l;
  });
  ForLanes(lanes, [&](unsigned l) { result[l] = got[l]; });
  if (in.access.count != 0) SetPredicate(r, in.operands[5], lanes, in_range);
}

void VoteOfLanes(const Registers& r, const Instruction& in,
                 std::uint32_t lanes) {
  const std::uint32_t predicate = r.Predicate(in.operands[1]);
  const std::uint32_t votes =
      (in.access.count != 0 ? ~predicate : predicate) & lanes;
  const auto how = static_cast<Vote>(in.detail);
  if (how == Vote::kBallot) {
    auto* result = r.At<std::uint32_t>(in.operands[0]);
    return ForLanes(lanes, [=](unsigned l) { result[l] = votes; });
  }
  const bool all = votes == lanes;
  const bool any = votes != 0;
  const bool answer = how == Vote::kAny   ? any
                      : how == Vote::kAll ? all
                                          : all || !any;
  SetPredicate(r, in.operands[0], lanes, answer ? kAllLanes : 0);
}

}  // namespace

unsigned SourceLane(const Registers& r, const Instruction& in, unsigned lane,
                    bool* in_range) {
  const std::uint32_t by = r.At<std::uint32_t>(in.operands[2])[lane] & 31U;
  const std::uint32_t c = r.At<std::uint32_t>(in.operands[3])[lane];
  const std::uint32_t segment = c >> 8 & 31U;
  const auto last = static_cast<int>((lane & segment) | (c & 31U & ~segment));
  const auto self = static_cast<int>(lane);
  const auto distance = static_cast<int>(by);
  int source = 0;
  switch (static_cast<Shuffle>(in.detail)) {
    case Shuffle::kUp:
      source = self - distance;
      break;
    case Shuffle::kDown:
      source = self + distance;
      break;
    case Shuffle::kButterfly:
      source = self ^ distance;
      break;
    case Shuffle::kIndex:
      source = static_cast<int>((lane & segment) | (by & ~segment));
      break;
  }
  *in_range = static_cast<Shuffle>(in.detail) == Shuffle::kUp ? source >= last
                                                              : source <= last;
  return static_cast<unsigned>(*in_range ? source : self);
}

std::uint32_t MaskOfLane(const Registers& r, const Instruction& in,
                         unsigned lane) {
  const std::size_t which = in.kind == Kind::kShuffle ? 4
                            : in.kind == Kind::kVote  ? 2
                                                      : 0;
  return r.At<std::uint32_t>(in.operands[which])[lane];
}

void Exchange(const Registers& r, const Instruction& in, std::uint32_t lanes) {
  if (in.kind == Kind::kShuffle) ShuffleLanes(r, in, lanes);
  if (in.kind == Kind::kVote) VoteOfLanes(r, in, lanes);
}

}  // namespace gradientflow::cuda_ptx
