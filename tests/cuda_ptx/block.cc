#include "tests/cuda_ptx/block.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "tests/cuda_ptx/lanes.h"

namespace gradientflow::cuda_ptx {
namespace {

// No stretch of any block has the number of another.
std::uint32_t NewStretch() {
  static std::uint32_t last = 0;
  return ++last;
}

std::uint64_t ValueOf(const Kernel::Preset& preset, unsigned thread,
                      unsigned block, const Shape& shape,
                      const std::byte* parameters) {
  switch (preset.special) {
    case Special::kThread:
      return thread;
    case Special::kThreads:
      return shape.threads;
    case Special::kBlock:
      return block;
    case Special::kBlocks:
      return shape.blocks;
    case Special::kLane:
      return thread % kLanes;
    case Special::kZero:
      return 0;
    case Special::kOne:
      return 1;
    case Special::kParam:
      return reinterpret_cast<std::uintptr_t>(parameters) + preset.offset;
  }
  return 0;
}

void Set(const Registers& registers, Operand operand, unsigned lane,
         std::uint64_t bits) {
  __builtin_memcpy(registers.At<std::byte>(operand) + lane * operand.bytes,
                   &bits, operand.bytes);
}

}  // namespace

Block::Block(Kernel& kernel, const Shape& shape,
             std::vector<std::byte>& parameters)
    : kernel_(kernel), shape_(shape), parameters_(parameters) {
  const unsigned warps = (shape.threads + kLanes - 1) / kLanes;
  for (unsigned w = 0; w < warps; ++w) {
    Warp& warp = warps_.emplace_back(kernel.register_bytes);
    for (const Kernel::Constant& constant : kernel.constants) {
      if (constant.operand.bytes == 0) {
        warp.registers().Predicate(constant.operand) =
            static_cast<std::uint32_t>(constant.bits);
        continue;
      }
      for (unsigned lane = 0; lane < kLanes; ++lane) {
        Set(warp.registers(), constant.operand, lane, constant.bits);
      }
    }
  }
}

void Block::Preset(Warp& warp, unsigned first_thread, unsigned index) {
  const Registers registers = warp.registers();
  for (const Kernel::Preset& preset : kernel_.presets) {
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      Set(registers, preset.operand, lane,
          ValueOf(preset, first_thread + lane, index, shape_,
                  parameters_.data()));
    }
  }
}

void Block::Start(unsigned index, std::mt19937_64& random) {
  index_ = index;
  random_ = &random;
  turn_ = 0;
  failed_ = Status();
  const std::uint64_t bits = random();
  order_.warps = static_cast<Order::Warps>(bits % 3);
  order_.apart = (bits >> 8) % 8 == 0;
  order_.lanes_descend = (bits >> 16) % 2 == 0;
  order_.quantum = (bits >> 24) % 2 == 0 ? ~0U : 1 + (bits >> 32) % 64;
  stretch_ = NewStretch();
  shared_.Reset(kernel_.static_shared_bytes + shape_.shared_bytes, stretch_);
  for (unsigned w = 0; w < warps_.size(); ++w) {
    Warp& warp = warps_[w];
    warp.first_thread = w * kLanes;
    const unsigned left = shape_.threads - warp.first_thread;
    warp.lanes = left >= kLanes ? kAllLanes : (1U << left) - 1;
    warp.ended = 0;
    warp.stretch = NewStretch();
    warp.fragments.assign(1, {warp.lanes, 0, false});
    warp.current = 0;
    Preset(warp, warp.first_thread, index);
  }
}

Status Block::Run(unsigned index, std::mt19937_64& random,
                  std::uint64_t* steps) {
  steps_ = steps;
  Start(index, random);
  while (failed_.ok()) {
    if (Warp* warp = Next(); warp != nullptr) {
      Turn(*warp);
      continue;
    }
    const bool done =
        std::all_of(warps_.begin(), warps_.end(),
                    [](const Warp& warp) { return warp.fragments.empty(); });
    if (done) break;
    OpenBarrier();
  }
  return failed_;
}

Warp* Block::Next() {
  const std::size_t count = warps_.size();
  const std::size_t start = order_.warps == Order::Warps::kRandom
                                ? (*random_)() % count
                                : turn_++ % count;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = (start + i) % count;
    Warp& warp =
        warps_[order_.warps == Order::Warps::kDescending ? count - 1 - at : at];
    if (std::any_of(warp.fragments.begin(), warp.fragments.end(),
                    [](const Fragment& f) { return !f.waits; })) {
      return &warp;
    }
  }
  return nullptr;
}

// Makes one of the fragments that can go on the current one; false if none can.
bool Block::Choose(Warp& warp) {
  std::vector<Fragment>& all = warp.fragments;
  if (all.size() == 1 && !all[0].waits) {
    warp.current = 0;
    return true;
  }
  if (order_.apart) {
    std::size_t ready = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!all[i].waits && (*random_)() % ++ready == 0) warp.current = i;
    }
    return ready > 0;
  }
  const auto behind = std::min_element(
      all.begin(), all.end(), [](const Fragment& a, const Fragment& b) {
        return std::pair(a.waits, a.at) < std::pair(b.waits, b.at);
      });
  if (behind == all.end() || behind->waits) return false;
  for (auto other = behind + 1; other < all.end();) {
    if (other->waits || other->at != behind->at) {
      ++other;
      continue;
    }
    behind->lanes |= other->lanes;
    other = all.erase(other);
  }
  warp.current = static_cast<std::size_t>(behind - all.begin());
  return true;
}

void Block::Turn(Warp& warp) {
  for (unsigned left = order_.quantum; left > 0 && failed_.ok(); --left) {
    if (!Choose(warp)) return;
    // Alone, a fragment needs no choice; else one does some steps in its turn.
    unsigned alone = warp.fragments.size() == 1 ? left
                     : order_.apart             ? 1 + left % 16
                                                : 1;
    const std::size_t fragments = warp.fragments.size();
    for (; alone > 0 && failed_.ok(); --alone, --left) {
      Step(warp);
      if (warp.fragments.size() != fragments || warp.fragment().waits) break;
    }
    if (left == 0) return;
  }
}

void Block::Step(Warp& warp) {
  Fragment& fragment = warp.fragment();
  if (fragment.at >= kernel_.code.size()) {
    return Fail(warp, 0, "comes to the end without ret");
  }
  if ((*steps_)-- == 0) {
    *steps_ = 0;
    return Fail(warp, static_cast<unsigned>(std::countr_zero(fragment.lanes)),
                "the launch does not end");
  }
  const Instruction& in = kernel_.code[fragment.at];
  std::uint32_t lanes = fragment.lanes;
  if (in.guard.present) {
    const std::uint32_t bits = warp.registers().Predicate(in.guard.predicate);
    lanes &= in.guard.negated ? ~bits : bits;
    if (lanes == 0) {
      ++fragment.at;
      return;
    }
  }
  kernel_.executed[fragment.at] = 1;
  switch (in.kind) {
    case Kind::kCompute:
      in.compute(warp.registers(), in, lanes);
      ++fragment.at;
      return;
    case Kind::kNothing:
      ++fragment.at;
      return;
    case Kind::kBranch:
      return Branch(warp, in, lanes);
    case Kind::kExit:
      return Exit(warp, lanes);
    case Kind::kTrap:
      return Fail(warp, static_cast<unsigned>(std::countr_zero(lanes)), "trap");
    case Kind::kLoad:
    case Kind::kStore:
    case Kind::kAtomic:
      Access(warp, in, lanes);
      ++fragment.at;
      return;
    default:
      return Arrive(warp, lanes);
  }
}

void Block::Branch(Warp& warp, const Instruction& in, std::uint32_t lanes) {
  Fragment& fragment = warp.fragment();
  if (lanes == fragment.lanes) {
    fragment.at = in.detail;
    return;
  }
  fragment.lanes &= ~lanes;
  ++fragment.at;
  warp.fragments.push_back({lanes, in.detail, false});
}

void Block::Exit(Warp& warp, std::uint32_t lanes) {
  warp.ended |= lanes;
  Fragment& fragment = warp.fragment();
  fragment.lanes &= ~lanes;
  ++fragment.at;
  if (fragment.lanes == 0) {
    warp.fragments.erase(warp.fragments.begin() +
                         static_cast<std::ptrdiff_t>(warp.current));
    warp.current = 0;
    // An empty warp must not look as if it could go on.
    if (warp.fragments.empty()) warp.fragments.reserve(1);
  }
}

void Block::Arrive(Warp& warp, std::uint32_t lanes) {
  const std::uint32_t at = warp.fragment().at;
  if (lanes == warp.fragment().lanes) {
    warp.fragment().waits = true;
  } else {
    warp.fragment().lanes &= ~lanes;
    ++warp.fragment().at;
    warp.fragments.push_back({lanes, at, true});
    warp.current = warp.fragments.size() - 1;
  }
  // All that wait at one place are one fragment.
  for (std::size_t i = 0; i < warp.fragments.size();) {
    const Fragment& other = warp.fragments[i];
    if (i == warp.current || !other.waits || other.at != at) {
      ++i;
      continue;
    }
    warp.fragment().lanes |= other.lanes;
    warp.fragments.erase(warp.fragments.begin() +
                         static_cast<std::ptrdiff_t>(i));
    if (i < warp.current) --warp.current;
  }
  if (kernel_.code[at].kind != Kind::kBarrier) Meet(warp, at);
}

// Lets those go on whose whole mask has come.
void Block::Meet(Warp& warp, std::uint32_t at) {
  const Instruction& in = kernel_.code[at];
  const Registers registers = warp.registers();
  std::uint32_t waiting = warp.fragment().lanes;
  std::uint32_t free = 0;
  for (std::uint32_t left = waiting; left != 0;) {
    const auto lane = static_cast<unsigned>(std::countr_zero(left));
    const std::uint32_t mask = MaskOfLane(registers, in, lane);
    const std::uint32_t same = MaskOf(waiting, [&](unsigned l) {
      return MaskOfLane(registers, in, l) == mask;
    });
    left &= ~same;
    if ((mask >> lane & 1U) == 0) {
      return Fail(warp, lane, "a lane that its own mask does not name");
    }
    if ((mask & (warp.ended | ~warp.lanes)) != 0) {
      return Fail(warp, lane,
                  StrCat("the mask names lanes that have ended: ",
                         mask & (warp.ended | ~warp.lanes)));
    }
    if (same != mask) continue;
    for (unsigned l = 0; in.kind == Kind::kShuffle && l < kLanes; ++l) {
      bool in_range = false;
      if ((same >> l & 1U) != 0 &&
          (mask >> SourceLane(registers, in, l, &in_range) & 1U) == 0) {
        return Fail(warp, l, "a shuffle from a lane that is not in the mask");
      }
    }
    Exchange(registers, in, same);
    if (in.kind == Kind::kWarpBarrier && same == warp.lanes) {
      warp.stretch = NewStretch();
    }
    free |= same;
  }
  if (free == 0) return;
  if (free == waiting) {
    warp.fragment().waits = false;
    ++warp.fragment().at;
    return;
  }
  warp.fragment().lanes &= ~free;
  warp.fragments.push_back({free, at + 1, false});
}

void Block::OpenBarrier() {
  const std::uint32_t at =
      warps_[0].fragments.empty() ? 0 : warps_[0].fragments[0].at;
  for (const Warp& warp : warps_) {
    const bool all_there =
        warp.fragments.size() == 1 && warp.fragments[0].lanes == warp.lanes &&
        warp.fragments[0].at == at && kernel_.code[at].kind == Kind::kBarrier;
    if (!all_there) return FailOfWaiting();
  }
  stretch_ = NewStretch();
  for (Warp& warp : warps_) {
    warp.fragments[0].waits = false;
    ++warp.fragments[0].at;
  }
}

void Block::Fail(const Warp& warp, unsigned lane, const std::string& why) {
  if (!failed_.ok()) return;
  const std::size_t at = warp.fragments[warp.current].at;
  failed_ = {
      StatusCode::kInternal,
      StrCat(at < kernel_.code.size() ? Where(kernel_, at) : kernel_.file, ": ",
             why, " (block ", index_, ", thread ", warp.first_thread + lane,
             ")")};
}

// Names where threads wait, by warp.
void Block::FailOfWaiting() {
  constexpr int kMost = 6;
  std::string text = "threads wait for each other in different places:";
  int named = 0;
  for (const Warp& warp : warps_) {
    if (warp.ended != 0 && ++named <= kMost) {
      text += StrCat("\n  ", std::popcount(warp.ended), " from thread ",
                     warp.first_thread, " on have ended");
    }
    for (const Fragment& fragment : warp.fragments) {
      if (++named > kMost) continue;
      text += StrCat("\n  ", std::popcount(fragment.lanes), " from thread ",
                     warp.first_thread, " on at ", Where(kernel_, fragment.at));
    }
  }
  failed_ = {StatusCode::kInternal, StrCat(text, "\n  (block ", index_, ")")};
}

}  // namespace gradientflow::cuda_ptx
