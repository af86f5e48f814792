#include "gradientflow/nccl/nccl_api.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/nccl/nccl_ranks.h"

namespace gradientflow::testing {
namespace {

void ExpectRefused(const std::string& path,
                   const std::vector<std::string>& words) {
  const Result<std::shared_ptr<const NcclApi>> api = LoadNccl(path);
  ASSERT_FALSE(api.ok());
  EXPECT_EQ(api.status().code(), StatusCode::kUnimplemented);
  for (const std::string& word : words) {
    EXPECT_NE(api.status().message().find(word), std::string::npos)
        << api.status().ToString() << " does not say \"" << word << '"';
  }
}

TEST(LoadNccl, SaysWhichNamesItTried) {
  ExpectRefused("/nowhere/libnccl.so.9",
                {"/nowhere/libnccl.so.9", "No such file"});
}

TEST(LoadNccl, RefusesWhatIsNotNccl) {
  ExpectRefused("libm.so.6", {"libm.so.6", "ncclGetVersion"});
}

TEST(LoadNccl, RefusesVersionsItDoesNotKnow) {
  FakeNccl fake;
  fake.Set(FakeNcclMode::kVersion, 21705);
  ExpectRefused(kFakeNcclPath, {"libfake_nccl.so", "2.17.5", "2.18.0"});
  fake.Set(FakeNcclMode::kVersion, 2708);
  ExpectRefused(kFakeNcclPath, {"2.7.8"});
  fake.Set(FakeNcclMode::kVersion, 30000);
  ExpectRefused(kFakeNcclPath, {"3.0.0", "2.x"});
  fake.Set(FakeNcclMode::kVersion, 21800);
  EXPECT_TRUE(LoadNccl(kFakeNcclPath).ok());
}

TEST(LoadNccl, NamesTheFunctionsThatAreMissing) {
  ExpectRefused(kNoGroupEndPath, {"2.28.9", "lacks ncclGroupEnd"});
}

TEST(LoadNccl, DoesWithoutRegistration) {
  EXPECT_NE(FakeNccl().api()->comm_register, nullptr);
  EXPECT_EQ(FakeNccl(kNoRegisterPath).api()->comm_register, nullptr);
}

TEST(LoadNccl, TellsPathAndVersion) {
  const FakeNccl fake;
  EXPECT_EQ(fake.api()->version, 22809);
  EXPECT_NE(fake.api()->path.find("libfake_nccl.so"), std::string::npos);
  EXPECT_EQ(NcclVersionText(22809), "2.28.9");
}

}  // namespace
}  // namespace gradientflow::testing
