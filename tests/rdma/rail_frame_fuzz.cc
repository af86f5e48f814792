// Feeds arbitrary bytes, and set-up frames with a few broken bytes, to what
// reads them: it refuses them, or has read what would be written as these
// bytes.

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/transports/fuzz_input.h"
#include "transports/rdma/frames.h"

namespace gradientflow {
namespace {

using fuzz::Choices;
using fuzz::Require;

RailFrame MakeFrame(Choices* choices) {
  RailFrame frame;
  frame.kind = static_cast<RailFrame::Kind>(1 + choices->Byte() % 4);
  frame.text.assign(choices->Byte(), 'x');
  frame.address.number = static_cast<std::uint32_t>(choices->Number(4));
  frame.address.mtu = static_cast<int>(choices->Number(2));
  frame.ring = {choices->Number(8),
                static_cast<std::uint32_t>(choices->Number(4))};
  frame.slot_bytes = choices->Number(8);
  frame.gids.resize(choices->Byte() % (kMostGids + 1));
  for (RdmaGid& gid : frame.gids) {
    gid.type = static_cast<ibv_gid_type>(choices->Byte() % 3);
    gid.bytes[choices->Byte() % 16] = choices->Byte();
  }
  return frame;
}

void Check(Choices choices) {
  std::string bytes;
  const bool from_frame = choices.Byte() % 4 != 0;
  if (from_frame) {
    bytes = Encode(MakeFrame(&choices));
    choices.Spoil(&bytes);
    bytes.resize(bytes.size() -
                 choices.Byte() % 2 * choices.Byte() % (bytes.size() + 1));
  } else {
    bytes.assign(choices.rest().begin(), choices.rest().end());
  }
  const auto frame = DecodeRailFrame(bytes);
  if (!frame.ok()) {
    Require(frame.status().code() == StatusCode::kDataLoss, "the code");
    return;
  }
  Require(frame.value().gids.size() <= kMostGids, "number of GIDs");
  const auto again = DecodeRailFrame(Encode(frame.value()));
  Require(again.ok(), "what was read can be written");
  Require(again.value().gids.size() == frame.value().gids.size(), "GIDs");
  Require(again.value().slot_bytes == frame.value().slot_bytes, "slot bytes");
  const auto number = static_cast<std::uint32_t>(choices.Number(4));
  const auto immediate = DecodeImmediate(number);
  Require(!immediate.ok() || Encode(immediate.value()) == number,
          "the immediate number");
}

}  // namespace
}  // namespace gradientflow

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t bytes) {
  gradientflow::Check(gradientflow::fuzz::Choices(data, bytes));
  return 0;
}
