#pragma once

#include "kernels/chunk_kernels.h"
#include "kernels/kernels.h"

// Tables whose kernels all go through one function each:
//   struct Runner {
//     template <auto kMember, class Args>
//     static int Run(const Args& args, void* stream);        // KernelTable's.
//     template <auto kMember, class Args>
//     static int RunChunks(const Args& args, void* stream);  // The other's.
//   };
namespace gradientflow::testing {

template <class Runner>
constexpr kernels::KernelTable KernelsThrough(const char* name) {
  using Table = kernels::KernelTable;
  return {
      name,
      &Runner::template Run<&Table::convert>,
      &Runner::template Run<&Table::reduce_many>,
      &Runner::template Run<&Table::find_nonfinite>,
  };
}

template <class Runner>
constexpr kernels::ChunkKernelTable ChunkKernelsThrough(const char* name) {
  using Table = kernels::ChunkKernelTable;
  return {
      name,
      &Runner::template RunChunks<&Table::chunk_residual>,
      &Runner::template RunChunks<&Table::chunk_unpack>,
      &Runner::template RunChunks<&Table::chunk_restore>,
      &Runner::template RunChunks<&Table::chunk_rescale>,
      &Runner::template RunChunks<&Table::top_k>,
      &Runner::template RunChunks<&Table::tile_squares>,
      &Runner::template RunChunks<&Table::lars_rates>,
      &Runner::template RunChunks<&Table::tile_sgd>,
  };
}

}  // namespace gradientflow::testing
