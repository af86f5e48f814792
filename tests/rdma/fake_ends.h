#pragma once

#include <chrono>

#include "tests/rdma/fake_verbs.h"
#include "tests/rdma/verbs_end.h"

// Two fake hosts whose pairs are connected, for tests of the fake itself.
namespace gradientflow {

// Time passes only in Advance() and Step(), and each message takes 1 ms.
inline FakeVerbsOptions Stepped() {
  FakeVerbsOptions options;
  options.stepped = true;
  options.delay = std::chrono::milliseconds(1);
  options.late_share = 0;
  return options;
}

struct FakeEnds {
  explicit FakeEnds(const FakeVerbsOptions& options = Stepped(),
                    const VerbsEndOptions& of_a = {},
                    const VerbsEndOptions& of_b = {})
      : fake(2, options),
        a(fake.api(0), "fake0", Move(), of_a),
        b(fake.api(1), "fake1", Move(), of_b) {
    a.Connect(b.address());
    b.Connect(a.address());
  }

  std::function<void()> Move() {
    return [this] {
      if (fake.Pending() > 0) fake.Step();
    };
  }
  // Until nothing is under way any more.
  void Settle() {
    while (fake.Pending() > 0) fake.Step();
  }

  FakeVerbs fake;
  VerbsEnd a;
  VerbsEnd b;
};

}  // namespace gradientflow
