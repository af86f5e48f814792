#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/chunk_kernels.h"
#include "tests/kernels/backend.h"
#include "tests/kernels/oracle.h"

// The oracle for the kernels of chunk_kernels.h, in addition to oracle.h.
namespace gradientflow::kernels::testing {

// Under sanitizers, which are ten times slower, large cases are left out: what
// these look for does not depend on lengths, and canaries guard every run.
#ifdef __has_feature
inline constexpr bool kSmallCases =
    __has_feature(thread_sanitizer) || __has_feature(address_sanitizer);
#else
inline constexpr bool kSmallCases = false;
#endif

// The tables under test. They are defined beside the backend's Tables(): a test
// links one library of tables.
std::vector<const ChunkKernelTable*> ChunkTables();

// Records of a plain type in memory on which the tables work, between canaries.
template <class T>
class Records {
  static_assert(std::is_trivially_copyable_v<T>);
  static_assert(sizeof(T) % 8 == 0 || sizeof(T) == 4 || sizeof(T) == 1);

 public:
  explicit Records(std::size_t n, T value = {})
      : n_(n), elements_(kType, n * (sizeof(T) / SizeOf(kType))) {
    for (std::size_t i = 0; i < n; ++i) data()[i] = value;
  }

  std::size_t size() const { return n_; }
  T* data() { return static_cast<T*>(elements_.data()); }
  const T* data() const { return static_cast<const T*>(elements_.data()); }
  T& operator[](std::size_t i) { return data()[i]; }
  const T& operator[](std::size_t i) const { return data()[i]; }

  bool SameBits(const Records& other) const {
    return elements_.SameBits(other.elements_);
  }
  bool CanariesIntact() const { return elements_.CanariesIntact(); }

 private:
  static constexpr DType kType = sizeof(T) % 8 == 0   ? DType::kInt64
                                 : sizeof(T) % 4 == 0 ? DType::kInt32
                                                      : DType::kInt8;
  std::size_t n_;
  Elements elements_;
};

using Slots = Records<std::uint32_t>;

// A test that runs once for every table of chunk kernels.
class EveryChunkTable
    : public ::testing::TestWithParam<const ChunkKernelTable*> {
 protected:
  // Runs one call, which is done when this returns.
  template <class Args>
  int Launch(int (*ChunkKernelTable::*kernel)(const Args&, void*),
             const std::type_identity_t<Args>& args) {
    BeforeLaunch();
    const int error = (GetParam()->*kernel)(args, nullptr);
    AfterLaunch();
    return error;
  }

  // `n` random elements, at any alignment, or at that of a vector.
  Elements RandomElements(DType type, std::size_t n) {
    Elements elements(type, n, aligned_ ? 0 : random_() % 17);
    elements.Fill(random_);
    return elements;
  }

  std::mt19937_64 random_{19020685};
  bool aligned_ = false;
};

std::string ChunkTableName(
    const ::testing::TestParamInfo<const ChunkKernelTable*>& info);

#define GRADIENTFLOW_FOR_EVERY_CHUNK_TABLE(Suite)                           \
  INSTANTIATE_TEST_SUITE_P(                                                 \
      Every, Suite,                                                         \
      ::testing::ValuesIn(::gradientflow::kernels::testing::ChunkTables()), \
      ::gradientflow::kernels::testing::ChunkTableName)

// Whether all of `seen` has the bits of `expected` (for a NaN: is a quiet NaN),
// and nothing was written beside it.
::testing::AssertionResult Matches(const Elements& seen,
                                   const Elements& expected);

// Whether `seen` is `scale` times a float32 sum of n magnitudes whose exact sum
// is `exact`.
::testing::AssertionResult NormIs(float seen, double exact, float scale,
                                  std::size_t n);

std::size_t ChunksOf(const ChunkRange& range);
std::size_t ChunkBegin(const ChunkRange& range, std::size_t c);
std::size_t ChunkCount(const ChunkRange& range, std::size_t c);
bool InRange(const ChunkRange& range, std::size_t c);

// Whole pools of chunks of 1, 7, 32, 1000 and 9000 elements, with a short last
// chunk where possible, and of each pool also some chunks; of the small ones
// the last chunk, and no chunk, too.
std::vector<ChunkRange> Ranges();
// Whole pools whose chunks a GPU gives to a warp, to a block, or to several
// blocks, and whose elements it can move four at a time, if their memory is
// aligned, or not. A part of a row of 256 elements is left over, which is
// nearly whole, so that each instruction for such parts has something to do.
std::vector<ChunkRange> RangesOfRows();
// Ranges that reach beyond the pool.
std::vector<ChunkRange> BadRanges();

enum class Sent { kNone, kSome, kAll };
inline constexpr Sent kSents[] = {Sent::kNone, Sent::kSome, Sent::kAll};
Slots MakeSlots(std::size_t chunks, Sent sent, std::mt19937_64& random);

// The slot of the first sent chunk of the range, or up to `gap` less.
std::uint32_t FirstSlot(const ChunkRange& range, const Slots& slots,
                        std::uint32_t gap);
// How many elements the packed buffer must hold for the range.
std::size_t PackedElements(const ChunkRange& range, const Slots& slots,
                           std::uint32_t first_slot);
// Where chunk `c`, which is sent, begins in the packed buffer.
std::size_t PackedBegin(const ChunkRange& range, const Slots& slots,
                        std::uint32_t first_slot, std::size_t c);

// Tensors in a pool, the last one first, and their tiles by tensor.
struct TileTable {
  std::vector<std::size_t> tensors;  // Elements.
  std::size_t pool_elements;
  std::size_t chunks;
  Records<Tile> tiles;
  Records<std::uint64_t> first_tile;
};
TileTable MakeTiles(const std::vector<std::size_t>& tensors,
                    std::size_t chunk_elements);
// Tables of tiny tensors, of no tensors, and of tensors with sizes around the
// borders of tiles and chunks.
std::vector<TileTable> TileTables();

// Random float32 weights of some tensors, at any alignment, and the pointers to
// them.
class Weights {
 public:
  Weights(const std::vector<std::size_t>& tensors, std::mt19937_64& random);
  Weights(const Weights& other);
  Weights& operator=(const Weights&) = delete;

  float* const* pointers() const { return pointers_.data(); }
  Elements& operator[](std::size_t t) { return tensors_[t]; }
  const Elements& operator[](std::size_t t) const { return tensors_[t]; }
  // Whether Matches() holds for all tensors.
  ::testing::AssertionResult Match(const Weights& expected) const;

 private:
  std::vector<Elements> tensors_;
  Records<float*> pointers_;
};

}  // namespace gradientflow::kernels::testing
