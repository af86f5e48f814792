#pragma once

#include <cstddef>

#include "gradientflow/base/status.h"
#include "gradientflow/nccl/issue.h"
#include "gradientflow/nccl/operation.h"
#include "gradientflow/nccl/plan.h"

// Sums of 16-bit elements that are added in float32 and rounded once, for calls
// with plan.exchange. NCCL carries the elements as they are, and a kernel of
// ours adds them:
//
//   parts   every rank receives the others' elements of its own block
//   sum     reduce_many: in float32 and in rank order, scaled, then rounded
//   spread  the sums go where they are wanted: to all ranks, or to the root
//
// n elements among p ranks: two phases with 2n(p - 1) / p elements per rank,
// which is what a ring sends. Small calls have one phase: every rank that wants
// the result receives everything and adds it up. All ranks that add up the same
// elements get the same bits.
namespace gradientflow {

// The first phase: sends and receives the parts. Needs
// ExchangeStagingBytes().
Status IssueParts(const NcclOperation& operation, const IssueTarget& target);

// Submits the kernels of the sum. REQUIRES that NCCL has accepted IssueParts().
Status SubmitSums(const NcclOperation& operation, const Device& device,
                  const IssueTarget& target);

// Returns whether there is a second phase.
bool Spreads(const NcclOperation& operation);
// The second phase. REQUIRES Spreads().
Status IssueSpread(const NcclOperation& operation, const IssueTarget& target);

// Returns the device memory that the call needs: for plan.staged, and for what
// it receives.
std::size_t ExchangeStagingBytes(const NcclOperation& operation, int size);

}  // namespace gradientflow
