#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/types.h"

// The element-wise work of the data path: one Args struct per kernel, and one
// table of implementations per kind of memory. Every kind of memory has the
// kernels of KernelTable. Those of CpuKernelTable are for the memory of the
// host alone: on a device the kernels of chunk_kernels.h do their work, on many
// chunks per launch. cpu/*.cc and cuda/*.cu have one file per kernel, of the
// same name. All sizes are elements unless the name says bytes. Pointers need
// only the alignment of their elements. n may be 0.
//
// float16 and bfloat16 are read exactly and written with round to nearest even;
// overflow gives an infinity, a NaN stays a (quiet) NaN. Arithmetic on float16,
// bfloat16 and float32 is done in float32, on float64 in float64, on integers
// in their own type, wrapping. Every multiplication and addition below is
// rounded by itself (none is fused), so that all tables give the same bits,
// except for the order of sums. A minimum or maximum is a NaN if either side is
// one.
//
// `nonfinite`: if an Args struct has this pointer and it is not null,
// *nonfinite is set to 1 if any value WRITTEN by the call is an infinity or a
// NaN, and is left alone otherwise. Integers are always finite.
namespace gradientflow::kernels {

// dst[i] = dst_type(scale * src[i]).
//
// If `settled` is not null, also settled[i] = src_type(settled_scale * dst[i]):
// the sender keeps exactly what its receivers get. `settled` may equal src. dst
// overlaps neither of them, except that dst == src is allowed if dst_type ==
// src_type and scale != 1.
//
// Both types are gradient types; or src_type == dst_type is any type and both
// scales are 1 (a copy).
struct ConvertArgs {
  const void* src;
  DType src_type;
  void* dst;
  DType dst_type;
  void* settled;
  std::size_t n;
  float scale;
  std::uint32_t* nonfinite;
  float settled_scale = 1.0F;
};
constexpr bool IsCopy(const ConvertArgs& args) {
  return args.src_type == args.dst_type && args.scale == 1 &&
         (args.settled == nullptr || args.settled_scale == 1);
}

// dst[i] = dst_type(out_scale * ((dst_scale * dst[i]) op src[i])).
//
// Both types are gradient types; or dst_type == src_type is any type and both
// scales are 1 (float64 takes scales too). Bitwise operations are for integers
// only. dst and src do not overlap.
struct AccumulateArgs {
  void* dst;
  DType dst_type;
  const void* src;
  DType src_type;
  std::size_t n;
  ReduceOp op;
  float dst_scale;
  float out_scale;
  std::uint32_t* nonfinite;
};

// v = round(scale * (wire(srcs[0][i]) op wire(srcs[1][i]) op ...)), in that
// order and in float32 (float64, or the integer type); then dsts[d][i] =
// dst_type(last_scale * v) for every d. `wire` rounds each source to wire_type
// (float32: not at all), as if it had travelled; `round` rounds the result to
// round_type (which adds nothing if that is dst_type).
//
// srcs[own] has dst_type, all others src_type; own = -1 means that all have
// src_type. A dst may equal a src of the same type; otherwise nothing overlaps.
// sources and dests are at least 1 and at most kMaxParties. The restrictions on
// types and operations are those of AccumulateArgs.
inline constexpr int kMaxParties = 64;
struct ReduceManyArgs {
  const void* const* srcs;
  int sources;
  int own;
  DType src_type;
  void* const* dsts;
  int dests;
  DType dst_type;
  DType round_type;
  std::size_t n;
  ReduceOp op;
  float scale;
  std::uint32_t* nonfinite;
  DType wire_type = DType::kFloat32;
  float last_scale = 1.0F;  // 1 unless dst_type is a gradient type.
};

// Coarse-grained sparse communication before the wire: one pass over one run of
// elements of one chunk (GradientFlow, arXiv 1902.06855, section on CSC,
// Algorithm 1):
//   s = grads[i] + residual[i]                     (in float32)
//   send:  grads[i] = type(s);  residual[i] = s - grads[i], the error of
//          rounding to 16 bits, undecayed; 0 if that is not finite, or for
//          float32
//   keep:  residual[i] = keep_factor * s;  grads[i] = zero_kept ? 0 : as it was
// *norm += sum |s| in float32 (null: not wanted). The order of the sum is fixed
// for a given n and instruction set, so a repeated run gives the same bits.
//
// If `residual` is null, the gradients contain it already:
//   s = grads[i];  keep:  grads[i] = type(keep_factor * s)
// and `send` and `zero_kept` must be false.
struct ResidualArgs {
  void* grads;
  DType type;  // A gradient type.
  float* residual;
  std::size_t n;
  bool send;
  bool zero_kept;
  float keep_factor;
  float* norm;
};

// *norm += scale * sum |src[i]|, accumulated in float32, in an order that is
// fixed as for ResidualArgs.
struct L1NormArgs {
  const void* src;
  DType type;  // A gradient type.
  std::size_t n;
  float scale;
  float* norm;
};

// *sum += sum src[i]^2. Squares and sums are in float64, in an order that
// depends on n alone and is the same in every table:
//   Elements are cut into blocks of 512. In a block, lane l of 32 adds the
//   squares of elements l, l + 32, ... in order. Lanes are added up as a tree:
//   first pairs whose numbers differ in bit 4, then in bit 3, 2, 1, 0.
//   Total t of 1024 adds the sums of blocks t, t + 1024, ... in order. Totals
//   are added up as a tree: pairs that differ in bit 0, then in 1, 2, ... 9.
// Missing elements, blocks and totals count as 0.
inline constexpr std::size_t kSquareBlock = 512;
inline constexpr std::size_t kSquareLanes = 32;
inline constexpr std::size_t kSquareTotals = 1024;
struct SumSquaresArgs {
  const void* src;
  DType type;  // A gradient type.
  std::size_t n;
  double* sum;
};

// *nonfinite = 1 if any src[i] is an infinity or a NaN; else it is left alone.
struct FindNonfiniteArgs {
  const void* src;
  DType type;  // A gradient type.
  std::size_t n;
  std::uint32_t* nonfinite;  // Not null.
};

// Momentum SGD, with the learning rate inside of the momentum (Algorithm 1):
//   g = grad_scale * grads[i] + weight_decay * weights[i]
//   momentum_buf[i] = momentum * momentum_buf[i] + lr * g
//   weights[i] -= nesterov ? momentum * momentum_buf[i] + lr * g
//                          : momentum_buf[i]
struct SgdArgs {
  float* weights;
  float* momentum_buf;
  const void* grads;
  DType type;  // The type of grads; a gradient type.
  std::size_t n;
  float lr;
  float momentum;
  float weight_decay;
  float grad_scale;
  bool nesterov;
};

// One implementation of the kernels over one kind of memory. All calls are
// asynchronous on `stream`; CPU tables ignore it and finish before they return.
// They return 0, EINVAL for types, operations or counts that the Args do not
// allow (then nothing is touched), or the device's error code of the launch.
struct KernelTable {
  const char* name;  // "cpu-scalar", "cpu-avx2", "cpu-avx512", "cuda".
  int (*convert)(const ConvertArgs&, void* stream);
  int (*reduce_many)(const ReduceManyArgs&, void* stream);
  int (*find_nonfinite)(const FindNonfiniteArgs&, void* stream);
};

// The kernels of the host's memory.
struct CpuKernelTable : KernelTable {
  int (*accumulate)(const AccumulateArgs&, void* stream);
  int (*residual)(const ResidualArgs&, void* stream);
  int (*l1_norm)(const L1NormArgs&, void* stream);
  int (*sum_squares)(const SumSquaresArgs&, void* stream);
  int (*sgd)(const SgdArgs&, void* stream);
};

// The best table that this CPU can run. Thread-safe; the table is never
// destroyed.
const CpuKernelTable& CpuKernels();

// All tables that this CPU can run, the scalar reference first, for tests and
// benchmarks. Terminated by null.
const CpuKernelTable* const* AllCpuKernels();

}  // namespace gradientflow::kernels
