#include "tests/kernels/chunk_oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace gradientflow::kernels::testing {
namespace {

std::vector<Elements> RandomTensors(const std::vector<std::size_t>& sizes,
                                    std::mt19937_64& random) {
  std::vector<Elements> tensors;
  tensors.reserve(sizes.size());
  for (const std::size_t elements : sizes) {
    tensors.emplace_back(DType::kFloat32, elements, random() % 17);
    tensors.back().Fill(random);
  }
  return tensors;
}

Records<float*> PointersTo(std::vector<Elements>& tensors) {
  Records<float*> pointers(tensors.size());
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    pointers[t] = static_cast<float*>(tensors[t].data());
  }
  return pointers;
}

bool IsPowerOfTwo(float scale) {
  int exponent = 0;
  return std::frexp(scale, &exponent) == 0.5F;
}

}  // namespace

std::string ChunkTableName(
    const ::testing::TestParamInfo<const ChunkKernelTable*>& info) {
  std::string name = info.param->name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

::testing::AssertionResult Matches(const Elements& seen,
                                   const Elements& expected) {
  if (seen.size() != expected.size() || seen.type() != expected.type()) {
    return ::testing::AssertionFailure() << "compared with another size";
  }
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (seen.Bits(i) == expected.Bits(i)) continue;
    const auto result = Is(seen, i, expected.Get(i));
    if (!result) return result;
  }
  if (seen.CanariesIntact()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "written beside the elements";
}

::testing::AssertionResult NormIs(float seen, double exact, float scale,
                                  std::size_t n) {
  const double expected = exact * double{scale};
  if (!std::isfinite(exact)) {
    if (std::isnan(exact) ? std::isnan(seen) : seen == exact) {
      return ::testing::AssertionSuccess();
    }
  } else {
    // Scaling by a power of two scales the unit along with the sum; any other
    // scale may double the error in units, and rounds once more.
    const double bound =
        IsPowerOfTwo(scale) ? NormUlpBound(n) : 2 * NormUlpBound(n) + 1;
    if (FloatUlps(seen, expected) <= bound) {
      return ::testing::AssertionSuccess();
    }
  }
  return ::testing::AssertionFailure()
         << "norm of " << n << " elements: expected " << expected << ", seen "
         << seen;
}

std::size_t ChunksOf(const ChunkRange& range) {
  return (range.elements + range.chunk_elements - 1) / range.chunk_elements;
}

std::size_t ChunkBegin(const ChunkRange& range, std::size_t c) {
  return c * range.chunk_elements;
}

std::size_t ChunkCount(const ChunkRange& range, std::size_t c) {
  return std::min(range.chunk_elements, range.elements - ChunkBegin(range, c));
}

bool InRange(const ChunkRange& range, std::size_t c) {
  return c >= range.first && c - range.first < range.count;
}

std::vector<ChunkRange> Ranges() {
  const struct {
    std::size_t chunk_elements;
    std::size_t elements;
  } pools[] = {{1, 37}, {7, 254}, {32, 300}, {1000, 4001}, {9000, 21503}};
  std::vector<ChunkRange> ranges;
  for (const auto& pool : pools) {
    const bool large = pool.elements > 5000;
    if (kSmallCases && large) continue;
    ChunkRange range{pool.elements, pool.chunk_elements, 0, 0};
    const std::size_t chunks = ChunksOf(range);
    const std::size_t parts[][2] = {{0, chunks},
                                    {chunks / 3, chunks / 2},
                                    {chunks - 1, 1},
                                    {chunks / 2, 0},
                                    {chunks, 0}};
    // The other parts of large pools show nothing that those of small ones do
    // not.
    for (const auto& part : std::span(parts).first(large ? 2 : 5)) {
      range.first = part[0];
      range.count = part[1];
      ranges.push_back(range);
    }
  }
  ranges.push_back({0, 5, 0, 0});
  return ranges;
}

std::vector<ChunkRange> RangesOfRows() {
  std::vector<ChunkRange> ranges = {{1800, 508, 0, 4},
                                    {1801, 511, 0, 4},
                                    {14000, 6652, 0, 3},
                                    {14001, 6655, 0, 3}};
  if (kSmallCases) return ranges;
  ranges.push_back({66044, 66044, 0, 1});
  ranges.push_back({66047, 66047, 0, 1});
  return ranges;
}

std::vector<ChunkRange> BadRanges() {
  const std::size_t huge = std::numeric_limits<std::size_t>::max();
  return {{20, 0, 0, 1}, {20, 7, 0, 4},    {20, 7, 4, 0},
          {20, 7, 2, 2}, {20, 7, huge, 2}, {20, 7, 2, huge}};
}

Slots MakeSlots(std::size_t chunks, Sent sent, std::mt19937_64& random) {
  Slots slots(chunks, kNotSent);
  std::uint32_t next = 0;
  for (std::size_t c = 0; c < chunks; ++c) {
    if (sent == Sent::kAll || (sent == Sent::kSome && random() % 3 == 0)) {
      slots[c] = next++;
    }
  }
  return slots;
}

std::uint32_t FirstSlot(const ChunkRange& range, const Slots& slots,
                        std::uint32_t gap) {
  std::uint32_t before = 0;
  for (std::size_t c = 0; c < range.first; ++c) {
    if (slots[c] != kNotSent) ++before;
  }
  return before - std::min(before, gap);
}

std::size_t PackedBegin(const ChunkRange& range, const Slots& slots,
                        std::uint32_t first_slot, std::size_t c) {
  return (slots[c] - first_slot) * range.chunk_elements;
}

std::size_t PackedElements(const ChunkRange& range, const Slots& slots,
                           std::uint32_t first_slot) {
  std::size_t end = 0;
  for (std::size_t c = range.first; c < range.first + range.count; ++c) {
    if (slots[c] == kNotSent) continue;
    end = PackedBegin(range, slots, first_slot, c) + ChunkCount(range, c);
  }
  return end;
}

TileTable MakeTiles(const std::vector<std::size_t>& tensors,
                    std::size_t chunk_elements) {
  std::vector<Tile> tiles;
  Records<std::uint64_t> first_tile(tensors.size() + 1);
  std::size_t pool_elements = 0;
  for (const std::size_t elements : tensors) pool_elements += elements;
  std::size_t tensor_end = pool_elements;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    first_tile[t] = tiles.size();
    const std::size_t tensor_begin = tensor_end - tensors[t];
    for (std::size_t at = tensor_begin; at < tensor_end;) {
      const std::size_t chunk = at / chunk_elements;
      const std::size_t count =
          std::min({std::size_t{kTileElements}, tensor_end - at,
                    (chunk + 1) * chunk_elements - at});
      tiles.push_back({at, at - tensor_begin, static_cast<std::uint32_t>(t),
                       static_cast<std::uint32_t>(count),
                       static_cast<std::uint32_t>(chunk), 0});
      at += count;
    }
    tensor_end = tensor_begin;
  }
  first_tile[tensors.size()] = tiles.size();
  Records<Tile> records(tiles.size());
  std::copy(tiles.begin(), tiles.end(), records.data());
  const std::size_t chunks =
      (pool_elements + chunk_elements - 1) / chunk_elements;
  return {tensors, pool_elements, chunks, records, first_tile};
}

std::vector<TileTable> TileTables() {
  const std::vector<std::size_t> tiny = {1, 2, 0, 1, 3, 1, 5, 0, 7, 1, 33};
  const std::vector<std::size_t> mixed = {3, 16384, 1,    0,  16385,
                                          5, 2,     1009, 257};
  std::vector<TileTable> tables = {
      MakeTiles(tiny, 1),      MakeTiles(tiny, 7),
      MakeTiles(tiny, 1000),   MakeTiles({64, 64}, 16384),
      MakeTiles({0, 0}, 1000), MakeTiles(mixed, 1000)};
  if (kSmallCases) return tables;
  tables.push_back(MakeTiles(mixed, 32000));
  tables.push_back(MakeTiles(mixed, 1 << 20));
  tables.push_back(MakeTiles({40003}, 32000));
  return tables;
}

Weights::Weights(const std::vector<std::size_t>& tensors,
                 std::mt19937_64& random)
    : tensors_(RandomTensors(tensors, random)),
      pointers_(PointersTo(tensors_)) {}

Weights::Weights(const Weights& other)
    : tensors_(other.tensors_), pointers_(PointersTo(tensors_)) {}

::testing::AssertionResult Weights::Match(const Weights& expected) const {
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const auto result = Matches(tensors_[t], expected.tensors_[t]);
    if (!result) return result;
  }
  return ::testing::AssertionSuccess();
}

}  // namespace gradientflow::kernels::testing
