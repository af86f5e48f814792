#include <gtest/gtest.h>

#include <set>
#include <string>

#include "kernels/kernels.h"
#include "tests/kernels/oracle.h"

namespace gradientflow::kernels::testing {
namespace {

TEST(CpuKernels, ListsTheScalarReferenceFirstAndEndsWithTheBest) {
  const auto tables = CpuTables();
  ASSERT_FALSE(tables.empty());
  EXPECT_STREQ(tables.front()->name, "cpu-scalar");
  EXPECT_EQ(tables.back(), &CpuKernels());
  EXPECT_EQ(&CpuKernels(), &CpuKernels());
}

TEST(CpuKernels, NamesEachTableOnceAndLeavesNoKernelOut) {
  std::set<std::string> names;
  for (const CpuKernelTable* table : CpuTables()) {
    EXPECT_TRUE(names.insert(table->name).second) << table->name;
    EXPECT_NE(table->convert, nullptr);
    EXPECT_NE(table->accumulate, nullptr);
    EXPECT_NE(table->reduce_many, nullptr);
    EXPECT_NE(table->residual, nullptr);
    EXPECT_NE(table->l1_norm, nullptr);
    EXPECT_NE(table->sum_squares, nullptr);
    EXPECT_NE(table->find_nonfinite, nullptr);
    EXPECT_NE(table->sgd, nullptr);
  }
}

}  // namespace
}  // namespace gradientflow::kernels::testing
