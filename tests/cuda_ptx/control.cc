#include "tests/cuda_ptx/decode.h"

// Branches, ends, and what threads do together.
namespace gradientflow::cuda_ptx {
namespace {

void DecodeBranch(Line& line) {
  line.Take("uni");  // A promise, which need not be relied upon.
  line.Expect(1);
  line.out().kind = Kind::kBranch;
  line.out().detail = line.Target(line.text(0));
}

void DecodeEnd(Line& line) {
  line.Expect(0);
  line.out().kind = Kind::kExit;
}

void DecodeTrap(Line& line) {
  line.Expect(0);
  line.out().kind = Kind::kTrap;
}

// bar.sync 0, which is barrier.sync 0, and bar.warp.sync mask. Named barriers
// and those of some warps have no use here yet.
void DecodeBarrier(Line& line) {
  line.Take("cta");
  if (!line.Take("sync")) line.Fail("expected .sync");
  line.Expect(1);
  if (line.Take("warp")) {
    line.out().kind = Kind::kWarpBarrier;
    line.out().operands[0] = line.Read(line.text(0), Type::kB32);
    return;
  }
  line.Take("aligned");
  if (line.text(0) != "0") line.Fail("only barrier 0 is known");
  line.out().kind = Kind::kBarrier;
}

void DecodeShuffle(Line& line) {
  Instruction& out = line.out();
  out.kind = Kind::kShuffle;
  if (line.TakeType() != Type::kB32) line.Fail("expected .b32");
  if (!line.Take("sync")) line.Fail("expected .sync");
  const int how = line.TakeOneOf({"up", "down", "bfly", "idx"});
  if (how < 0) line.Fail("expected .up, .down, .bfly or .idx");
  out.detail = static_cast<std::uint32_t>(how);
  line.Expect(5);
  const std::string& to = line.text(0);
  const std::size_t bar = to.find('|');
  out.operands[0] = line.Write(to.substr(0, bar), Type::kB32);
  for (std::size_t i = 1; i < 5; ++i) {
    out.operands[i] = line.Read(line.text(i), Type::kB32);
  }
  // access.count: whether a predicate tells if the source was in range.
  out.access.count = bar == std::string::npos ? 0 : 1;
  if (bar != std::string::npos) {
    out.operands[5] = line.Write(to.substr(bar + 1), Type::kPred);
  }
}

void DecodeVote(Line& line) {
  Instruction& out = line.out();
  out.kind = Kind::kVote;
  const Type type = line.TakeType();
  if (!line.Take("sync")) line.Fail("expected .sync");
  const int how = line.TakeOneOf({"ballot", "any", "all", "uni"});
  out.detail = static_cast<std::uint32_t>(how);
  const bool ballot = how == 0;
  if (how < 0 || type != (ballot ? Type::kB32 : Type::kPred)) {
    line.Fail("expected .ballot.b32, or .any, .all or .uni of .pred");
  }
  line.Expect(3);
  const std::string& asked = line.text(1);
  out.access.count = asked[0] == '!' ? 1 : 0;  // Whether it is negated.
  out.operands[0] = line.Write(line.text(0), type);
  out.operands[1] = line.Read(asked.substr(out.access.count), Type::kPred);
  out.operands[2] = line.Read(line.text(2), Type::kB32);
}

constexpr Row kRows[] = {
    {"bra", &DecodeBranch},   {"ret", &DecodeEnd},
    {"exit", &DecodeEnd},     {"trap", &DecodeTrap},
    {"bar", &DecodeBarrier},  {"barrier", &DecodeBarrier},
    {"shfl", &DecodeShuffle}, {"vote", &DecodeVote},
};

}  // namespace

std::span<const Row> ControlRows() { return kRows; }

}  // namespace gradientflow::cuda_ptx
