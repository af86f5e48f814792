#include "tests/communicator/allreduce_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gradientflow/base/str_cat.h"

namespace gradientflow::testing {
namespace {

using kernels::testing::Elements;
using kernels::testing::PrecisionOf;
using kernels::testing::RoundTo;

std::uint64_t Scramble(std::uint64_t x) {
  x = (x ^ (x >> 31)) * 0xFF51AFD7ED558CCD;
  return x ^ (x >> 29);
}

// Allowed errors in units in the last place, at the coarser of the two types,
// of the sum of magnitudes. They cover the order of summation and roundings on
// the way.
//   contributions travel once   one rounding each, one of the result
//   partial results travel      one rounding per hop
constexpr double kOnce = 2;
constexpr double kPerHop = 0.5;
// Sums of the ranks in the type of the wire: float32 and float64 round at each
// addition, whatever the algorithm.
constexpr double kWidePerRank = 0.5;
// A product's factors each bring their own relative error.
constexpr double kProductPerRank = 1.5;

// "auto" may choose such an algorithm.
bool PartialsTravel(const AllreduceCase& c) {
  return c.algorithm == nullptr ||
         MakeSchedule(*c.algorithm, 0, {.size = 2}, 8).multi_hop;
}

double MaxUlp(const AllreduceCase& c, int size) {
  const bool narrow = PrecisionOf(c.wire) < 24 || PrecisionOf(c.dtype) < 24;
  double per_rank = narrow ? (PartialsTravel(c) ? kPerHop : 0) : kWidePerRank;
  if (c.op == ReduceOp::kProduct) per_rank = kProductPerRank;
  return kOnce + per_rank * size;
}

std::uint64_t Wrap(DType dtype, std::uint64_t bits) {
  return dtype == DType::kInt64
             ? bits
             : bits & ((std::uint64_t{1} << (8 * SizeOf(dtype))) - 1);
}

std::uint64_t ExpectedBits(const AllreduceCase& c, int size, std::size_t i) {
  std::uint64_t total = InputBits(c.dtype, 0, i);
  for (int r = 1; r < size; ++r) {
    total =
        kernels::testing::CombineBits(static_cast<kernels::ReduceOp>(c.op),
                                      c.dtype, total, InputBits(c.dtype, r, i));
  }
  return total;
}

struct Exact {
  double value = 0;
  double magnitude = 0;  // What roundings are relative to.
};

Exact ExactValue(const AllreduceCase& c, const std::vector<Elements>& inputs,
                 std::size_t i) {
  Exact exact{inputs[0].Get(i), std::fabs(inputs[0].Get(i))};
  for (std::size_t r = 1; r < inputs.size(); ++r) {
    const double next = inputs[r].Get(i);
    switch (c.op) {
      case ReduceOp::kProduct:
        exact.value *= next;
        break;
      case ReduceOp::kMin:
        exact.value = std::min(exact.value, next);
        break;
      case ReduceOp::kMax:
        exact.value = std::max(exact.value, next);
        break;
      default:
        exact.value += next;
    }
    exact.magnitude += std::fabs(next);
  }
  const bool sums = c.op == ReduceOp::kSum || c.op == ReduceOp::kMean;
  double factor = double{c.scale};
  if (c.op == ReduceOp::kMean) factor /= static_cast<double>(inputs.size());
  exact.value *= factor;
  exact.magnitude = sums ? exact.magnitude * factor : std::fabs(exact.value);
  return exact;
}

// Rank `rank`'s elements [begin, begin + count).
Elements Compute(DType dtype, int rank, std::size_t begin, std::size_t count) {
  Elements elements(dtype, count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t bits = InputBits(DType::kInt64, rank, begin + i);
    if (!IsFloat(dtype)) {
      elements.SetBits(i, Wrap(dtype, bits));
      continue;
    }
    const double magnitude =
        0.5 + static_cast<double>(bits >> 12 & 0xFFFFF) / double{0xFFFFF};
    elements.Set(i, (bits & 1) != 0 ? -magnitude : magnitude);
  }
  return elements;
}

// Returns the elements that a rank checks; together the ranks check all.
Extent ShareOf(int rank, int size, std::size_t count) {
  const auto begin_of = [&](int r) {
    return count * static_cast<std::size_t>(r) / static_cast<std::size_t>(size);
  };
  return {begin_of(rank), begin_of(rank + 1) - begin_of(rank)};
}

// The results of one rank's share. A test runs the same call by many
// algorithms, so each thread, which is a rank of one job, remembers them.
const std::vector<Exact>& ExactValues(const AllreduceCase& c, int size,
                                      const Extent& share) {
  using Key = std::tuple<DType, ReduceOp, float, int, std::size_t, std::size_t>;
  thread_local std::map<Key, std::vector<Exact>> known;
  std::vector<Exact>& exact =
      known[{c.dtype, c.op, c.scale, size, share.begin, share.count}];
  if (exact.size() == share.count) return exact;
  std::vector<Elements> inputs;
  for (int r = 0; r < size; ++r) {
    inputs.push_back(Input(c.dtype, r, share.count, share.begin));
  }
  for (std::size_t i = 0; i < share.count; ++i) {
    exact.push_back(ExactValue(c, inputs, i));
  }
  return exact;
}

::testing::AssertionResult CheckFloats(const AllreduceCase& c, int size,
                                       const Extent& share,
                                       const Elements& seen) {
  const int precision = std::min(PrecisionOf(c.dtype), PrecisionOf(c.wire));
  const bool exact_op = (c.op == ReduceOp::kMin || c.op == ReduceOp::kMax) &&
                        c.dtype == c.wire && c.scale == 1.0F;
  const double ulps = exact_op ? 0 : MaxUlp(c, size);
  const double least_unit = std::ldexp(1.0, -precision);
  const std::vector<Exact>& all = ExactValues(c, size, share);
  for (std::size_t i = 0; i < share.count; ++i) {
    const Exact exact = all[i];
    const double error = std::fabs(seen.Get(share.begin + i) - exact.value);
    // The unit itself takes longer than all else here.
    if (error <= ulps * least_unit * exact.magnitude) continue;
    const double unit =
        exact.magnitude == 0
            ? 0
            : std::ldexp(1.0, std::ilogb(exact.magnitude) + 1 - precision);
    if (error <= ulps * unit) continue;
    return ::testing::AssertionFailure()
           << "element " << share.begin + i << " is "
           << seen.Get(share.begin + i) << ", expected " << exact.value
           << " within " << ulps << " units of " << unit;
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult CheckIntegers(const AllreduceCase& c, int size,
                                         const Extent& share,
                                         const Elements& seen) {
  for (std::size_t i = share.begin; i < share.begin + share.count; ++i) {
    const std::uint64_t expected = ExpectedBits(c, size, i);
    if (seen.Bits(i) == expected) continue;
    return ::testing::AssertionFailure()
           << "element " << i << " has bits " << seen.Bits(i) << ", expected "
           << expected;
  }
  return ::testing::AssertionSuccess();
}

}  // namespace

std::string Describe(const AllreduceCase& c) {
  return StrCat(c.count, " ", Name(c.dtype), " as ", Name(c.wire), ", ",
                Name(c.op), ", scale ", c.scale, ", ", Name(c.algorithm));
}

bool Valid(const AllreduceCase& c) {
  if (IsFloat(c.dtype)) {
    return !IsBitwise(c.op) && (c.dtype == c.wire || (IsGradientType(c.dtype) &&
                                                      IsGradientType(c.wire)));
  }
  return c.dtype == c.wire && c.op != ReduceOp::kMean && c.scale == 1.0F;
}

std::uint64_t InputBits(DType dtype, int rank, std::size_t i) {
  return Wrap(dtype,
              Scramble(Scramble(i + 1) +
                       static_cast<std::uint64_t>(rank) * 0x9E3779B97F4A7C15));
}

Elements Input(DType dtype, int rank, std::size_t count, std::size_t begin) {
  // What this thread has computed so far; cases have much of it in common.
  thread_local std::map<std::pair<DType, int>, std::vector<std::byte>> known;
  std::vector<std::byte>& bytes = known[{dtype, rank}];
  const std::size_t have = bytes.size() / SizeOf(dtype);
  if (begin + count > have) {
    const Elements more = Compute(dtype, rank, have, begin + count - have);
    const auto* data = static_cast<const std::byte*>(more.data());
    bytes.insert(bytes.end(), data, data + more.size() * SizeOf(dtype));
  }
  Elements elements(dtype, count, static_cast<std::size_t>(rank) % 3);
  if (count > 0) {
    std::memcpy(elements.data(), bytes.data() + begin * SizeOf(dtype),
                count * SizeOf(dtype));
  }
  return elements;
}

std::uint64_t Digest(const Elements& elements) {
  std::uint64_t hash = elements.size();
  for (std::size_t i = 0; i < elements.size(); ++i) {
    hash = Scramble(hash + elements.Bits(i)) * 0x100000001B3;
  }
  return hash;
}

std::uint64_t RunAndCheck(Communicator& comm, const AllreduceCase& c) {
  Elements data = Input(c.dtype, comm.rank(), c.count);
  CollectiveCall call;
  call.output = data.data();
  call.count = c.count;
  call.dtype = c.dtype;
  call.wire = c.wire;
  call.op = c.op;
  call.scale = c.scale;
  call.algorithm = c.algorithm;
  const Status status = comm.Run(call);
  const std::string what =
      StrCat(Describe(c), ", rank ", comm.rank(), " of ", comm.size());
  EXPECT_TRUE(status.ok()) << what << ": " << status.ToString();
  EXPECT_TRUE(data.CanariesIntact()) << what;
  const Extent share = ShareOf(comm.rank(), comm.size(), c.count);
  if (IsFloat(c.dtype)) {
    EXPECT_TRUE(CheckFloats(c, comm.size(), share, data)) << what;
  } else {
    EXPECT_TRUE(CheckIntegers(c, comm.size(), share, data)) << what;
  }
  return Digest(data);
}

}  // namespace gradientflow::testing
