#pragma once

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <memory>
#include <random>

#include "tests/rdma/verbs_end.h"
#include "tests/rdma/verbs_rules.h"

// The two ends that most rules are about: b's memory is written by a.
#define GF_TWO_ENDS_OR_SKIP(a_options, b_options)                      \
  const VerbsWorld world = GetParam().make();                          \
  if (!world.missing.empty()) GTEST_SKIP() << world.missing;           \
  VerbsEnd a(world.verbs[0], world.devices[0], world.move, a_options); \
  VerbsEnd b(world.verbs[1], world.devices[1], world.move, b_options); \
  FillRandomly(&a);                                                    \
  FillRandomly(&b)

namespace gradientflow {

inline void FillRandomly(VerbsEnd* end) {
  std::mt19937 random(end->address().number);
  for (char& byte : end->memory()) byte = static_cast<char>(random());
}

inline void Connect(VerbsEnd* a, VerbsEnd* b) {
  a->Connect(b->address());
  b->Connect(a->address());
}

}  // namespace gradientflow
