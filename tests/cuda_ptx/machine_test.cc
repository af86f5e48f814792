#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/cuda_ptx/block.h"
#include "tests/cuda_ptx/decode.h"
#include "tests/cuda_ptx/memory.h"
#include "tests/cuda_ptx/module.h"

// Small kernels, each of which does one thing, right or wrong.
namespace gradientflow::cuda_ptx {
namespace {

// A kernel that has the address of its memory in %rd1, the thread's number in
// %r1, %r1 * 4 in %r2 and the address of its word in %rd2. Statements may use
// %r3 to %r19, %p1 to %p9 and %rd3 to %rd9.
std::string KernelOf(const std::string& statements) {
  return R"(.version 9.0
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 memory[];
.visible .entry run(
	.param .u64 .ptr .align 1 run_param_0
)
.maxntid 128
{
	.reg .pred %p<10>;
	.reg .b16 %rs<10>;
	.reg .b32 %r<20>;
	.reg .b64 %rd<10>;
	ld.param.u64 %rd1, [run_param_0];
	mov.u32 %r1, %tid.x;
	shl.b32 %r2, %r1, 2;
	cvt.u64.u32 %rd2, %r2;
	add.s64 %rd2, %rd1, %rd2;
	mov.u32 %r3, memory;
	add.s32 %r4, %r3, %r2;
)" + statements +
         "\n\tret;\n}\n";
}

struct Outcome {
  std::string error;  // Empty: none.
  std::vector<std::uint32_t> memory;
};

Outcome RunOn(const std::string& statements, unsigned threads,
              std::uint64_t seed) {
  const Result<Module> module = ParseModule("a.ptx", KernelOf(statements));
  if (!module.ok()) return {module.status().message(), {}};
  Result<Kernel> kernel = Decode(module.value(), module.value().kernels[0]);
  if (!kernel.ok()) return {kernel.status().message(), {}};
  Outcome outcome;
  const std::size_t bytes = threads * sizeof(std::uint32_t);
  void* memory = DeviceMemory::Get().Allocate(bytes);
  std::memset(memory, 0, bytes);
  std::vector<std::byte> parameters(sizeof(memory));
  std::memcpy(parameters.data(), &memory, sizeof(memory));
  std::mt19937_64 random(seed);
  std::uint64_t steps = 100000;
  Block block(kernel.value(), {1, threads, bytes}, parameters);
  outcome.error = block.Run(0, random, &steps).message();
  outcome.memory.resize(threads);
  std::memcpy(outcome.memory.data(), memory, bytes);
  DeviceMemory::Get().Free(memory);
  return outcome;
}

// The word of each thread, after the kernel ran in some orders, which make no
// difference.
std::vector<std::uint32_t> Words(const std::string& statements,
                                 unsigned threads = 64) {
  const Outcome first = RunOn(statements, threads, 0);
  EXPECT_EQ(first.error, "");
  for (std::uint64_t seed = 1; seed < 20; ++seed) {
    const Outcome other = RunOn(statements, threads, seed);
    EXPECT_EQ(other.error, "") << "seed " << seed;
    EXPECT_EQ(other.memory, first.memory) << "seed " << seed;
  }
  return first.memory;
}

// The error, which any order shows.
std::string ErrorOf(const std::string& statements, unsigned threads = 64) {
  const std::string error = RunOn(statements, threads, 0).error;
  for (std::uint64_t seed = 1; seed < 20; ++seed) {
    EXPECT_EQ(RunOn(statements, threads, seed).error.empty(), error.empty())
        << "seed " << seed;
  }
  return error;
}

testing::AssertionResult Has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "no \"" << part << "\" in: " << text;
}

TEST(Decoding, NamesFileLineAndInstructionOfWhatItDoesNotKnow) {
  EXPECT_EQ(RunOn("\ttanh.approx.f32 %r5, %r6;", 32, 0).error,
            "a.ptx:21: tanh.approx.f32 %r5, %r6: unknown instruction");
  EXPECT_TRUE(Has(RunOn("add.sat.s32 %r5, %r6, 1;", 32, 0).error,
                  "a.ptx:21: add.sat.s32 %r5, %r6, 1: unknown: .sat"));
  EXPECT_TRUE(
      Has(RunOn("bar.sync 1;", 32, 0).error, "only barrier 0 is known"));
  EXPECT_TRUE(
      Has(RunOn("add.s32 %r5, %rd1, 1;", 32, 0).error, "has another size"));
  EXPECT_TRUE(Has(RunOn("bra $nowhere;", 32, 0).error, "no label $nowhere"));
  EXPECT_TRUE(Has(RunOn("mov.b32 %r5, {%rs1, %rs2, %rs3};", 32, 0).error,
                  "has another size"));
}

TEST(Warps, BranchApartAndMeetAgain) {
  const auto words = Words(R"(
	and.b32 %r5, %r1, 3;
	mov.u32 %r6, 0;
$again:
	setp.ge.u32 %p1, %r6, %r5;
	@%p1 bra $done;
	add.s32 %r6, %r6, 1;
	bra.uni $again;
$done:
	shfl.sync.bfly.b32 %r7|%p2, %r6, 1, 31, -1;
	st.global.u32 [%rd2], %r7;)");
  for (unsigned t = 0; t < words.size(); ++t) EXPECT_EQ(words[t], (t ^ 1U) % 4);
}

TEST(Warps, ShuffleAsPtxDefinesIt) {
  const auto up = Words(R"(
	shfl.sync.up.b32 %r5|%p1, %r1, 3, 0, -1;
	@!%p1 add.s32 %r5, %r5, 1000;
	st.global.u32 [%rd2], %r5;)");
  const auto index = Words(R"(
	shfl.sync.idx.b32 %r5, %r1, 5, 6175, -1;
	st.global.u32 [%rd2], %r5;)");
  for (unsigned t = 0; t < up.size(); ++t) {
    EXPECT_EQ(up[t], t % 32 < 3 ? t + 1000 : t - 3);
    // 6175 is 24 << 8 | 31: segments of 8 lanes.
    EXPECT_EQ(index[t], t / 8 * 8 + 5);
  }
}

TEST(Warps, VoteAmongTheLanesOfTheirMasks) {
  const auto words = Words(R"(
	and.b32 %r5, %r1, 1;
	setp.eq.u32 %p1, %r5, 0;
	setp.lt.u32 %p2, %r1, 8;
	@%p1 vote.sync.ballot.b32 %r6, %p2, 0x55555555;
	@!%p1 vote.sync.ballot.b32 %r6, %p2, 0xAAAAAAAA;
	st.global.u32 [%rd2], %r6;)",
                           32);
  for (unsigned t = 0; t < words.size(); ++t) {
    EXPECT_EQ(words[t], t % 2 == 0 ? 0x55U : 0xAAU);
  }
}

TEST(Warps, MayNotShuffleFromALaneThatTheMaskDoesNotName) {
  EXPECT_TRUE(Has(ErrorOf(R"(
	setp.lt.u32 %p1, %r1, 16;
	@%p1 shfl.sync.bfly.b32 %r5, %r1, 16, 31, 0xFFFF;)",
                          32),
                  "a shuffle from a lane that is not in the mask"));
  EXPECT_TRUE(Has(ErrorOf("vote.sync.ballot.b32 %r5, %p1, 0xFFFF0000;", 32),
                  "a lane that its own mask does not name"));
  EXPECT_TRUE(Has(ErrorOf(R"(
	setp.lt.u32 %p1, %r1, 16;
	@%p1 ret;
	shfl.sync.bfly.b32 %r5, %r1, 1, 31, -1;)",
                          32),
                  "names lanes that have ended"));
}

constexpr const char* kNeighbour = R"(
	st.shared.u32 [%r4], %r1;
	%s
	add.s32 %r5, %r1, %d;
	and.b32 %r5, %r5, 63;
	shl.b32 %r5, %r5, 2;
	add.s32 %r5, %r3, %r5;
	ld.shared.u32 %r6, [%r5];
	st.global.u32 [%rd2], %r6;)";

// Each thread reads what the one `distance` further wrote, after `between`.
std::string ReadNeighbour(const std::string& between, int distance) {
  std::string text = kNeighbour;
  text.replace(text.find("%s"), 2, between);
  text.replace(text.find("%d"), 2, std::to_string(distance));
  return text;
}

TEST(SharedMemory, NeedsABarrierBetweenThreads) {
  const auto words = Words(ReadNeighbour("bar.sync 0;", 40));
  for (unsigned t = 0; t < words.size(); ++t)
    EXPECT_EQ(words[t], (t + 40) % 64);
  EXPECT_NE(ErrorOf(ReadNeighbour("", 40)), "");
  EXPECT_NE(ErrorOf(ReadNeighbour("", 1)), "");
}

TEST(SharedMemory, NeedsOneOfTheWarpAtLeastWithinIt) {
  EXPECT_NE(ErrorOf(ReadNeighbour("bar.warp.sync -1;", 40)), "");
  const std::string within = R"(
	st.shared.u32 [%r4], %r1;
	%s
	xor.b32 %r5, %r2, 4;
	add.s32 %r5, %r3, %r5;
	ld.shared.u32 %r6, [%r5];
	st.global.u32 [%rd2], %r6;)";
  std::string with = within;
  with.replace(with.find("%s"), 2, "bar.warp.sync -1;");
  const auto words = Words(with);
  for (unsigned t = 0; t < words.size(); ++t) EXPECT_EQ(words[t], t ^ 1U);
  std::string without = within;
  without.replace(without.find("%s"), 2, "");
  EXPECT_NE(ErrorOf(without), "");
}

TEST(SharedMemory, IsNotWrittenWhileOthersMayRead) {
  const std::string twice = ReadNeighbour("bar.sync 0;", 40);
  EXPECT_TRUE(
      Has(ErrorOf(twice + "st.shared.u32 [%r4], %r1;"), "no barrier between"));
  Words(twice + "bar.sync 0; st.shared.u32 [%r4], %r1;");
}

TEST(SharedMemory, IsBoundedAlignedAndUnknownAtFirst) {
  EXPECT_TRUE(Has(ErrorOf("ld.shared.u32 %r5, [%r4];"),
                  "reads shared memory that nobody wrote"));
  EXPECT_TRUE(
      Has(ErrorOf("st.shared.u32 [%r4+4], %r1;"), "not in shared memory"));
  EXPECT_TRUE(Has(ErrorOf("st.shared.u32 [%r4+2], %r1;"), "misaligned"));
}

TEST(GlobalMemory, IsBoundedAndAligned) {
  EXPECT_TRUE(Has(ErrorOf("st.global.u32 [%rd2+4], %r1;"),
                  "a.ptx:21: st.global.u32 [%rd2+4], %r1: not in memory of the "
                  "device: address 0x"));
  EXPECT_TRUE(Has(ErrorOf("ld.global.u32 %r5, [%rd2+-4];"), "not in memory"));
  EXPECT_TRUE(
      Has(ErrorOf("ld.global.v2.u32 {%r5, %r6}, [%rd2];"), "misaligned"));
  EXPECT_TRUE(Has(ErrorOf("ld.global.u32 %r5, [%rd3];"), "not in memory"));
}

TEST(Atomics, LoseNothing) {
  const auto words = Words(R"(
	st.shared.u32 [%r4], 0;
	bar.sync 0;
	atom.shared.add.u32 %r5, [%r3], %r1;
	red.shared.max.u32 [%r3+4], %r1;
	bar.sync 0;
	ld.shared.u32 %r6, [%r3];
	ld.shared.u32 %r7, [%r3+4];
	add.s32 %r6, %r6, %r7;
	st.global.u32 [%rd2], %r6;)");
  for (const std::uint32_t word : words) EXPECT_EQ(word, 63U * 32 + 63);
  EXPECT_TRUE(Has(ErrorOf(R"(
	st.shared.u32 [%r4], 0;
	bar.sync 0;
	atom.shared.add.u32 %r5, [%r3], %r1;
	ld.shared.u32 %r6, [%r3];)"),
                  "no barrier between"));
}

TEST(Barriers, AreForAllThreadsOfABlock) {
  const std::string divergent = R"(
	setp.lt.u32 %p1, %r1, 40;
	@%p1 bra $other;
	bar.sync 0;
	bra.uni $end;
$other:
	bar.sync 0;
$end:)";
  EXPECT_TRUE(Has(ErrorOf(divergent), "wait for each other"));
  const std::string error = ErrorOf(R"(
	setp.lt.u32 %p1, %r1, 40;
	@%p1 ret;
	bar.sync 0;)");
  EXPECT_TRUE(Has(error, "40 from thread 0 on have ended") ||
              Has(error, "32 from thread 0 on have ended"))
      << error;
  EXPECT_TRUE(Has(error, "24 from thread 32 on at a.ptx:24: bar.sync 0"));
}

TEST(Barriers, OfAWarpAreForTheLanesOfTheMask) {
  EXPECT_NE(ErrorOf(R"(
	setp.lt.u32 %p1, %r1, 7;
	@%p1 bar.warp.sync -1;)",
                    32),
            "");
}

TEST(Launches, End) {
  EXPECT_TRUE(
      Has(ErrorOf("$again: bra.uni $again;"), "the launch does not end"));
}

}  // namespace
}  // namespace gradientflow::cuda_ptx
