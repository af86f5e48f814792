#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "gradientflow/nccl/create.h"
#include "gradientflow/nccl/nccl_comm.h"
#include "tests/nccl/nccl_ranks.h"

// NCCL itself, as far as it goes without a device: its functions are there, and
// what fails says so and leaves nothing behind. The library may be where the
// loader looks, or in CUDA's folder, where tests/setup.sh puts PyPI's.
namespace gradientflow::testing {
namespace {

using nccl::ReturnCode;

class RealNccl : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string tried;
    for (const char* path : {"", "/usr/local/cuda/lib/libnccl.so.2",
                             "/usr/local/cuda/lib64/libnccl.so.2"}) {
      Result<std::shared_ptr<const NcclApi>> api = LoadNccl(path);
      if (api.ok()) {
        api_ = std::move(api).value();
        return;
      }
      tried += api.status().message() + "; ";
    }
    GTEST_SKIP() << tried;
  }

  std::shared_ptr<const NcclApi> api_;
};

TEST_F(RealNccl, HasTheFunctionsOfItsVersion) {
  const NcclApi& api = *api_;
  EXPECT_GE(api.version, 21800);
  EXPECT_EQ(api.comm_register != nullptr, api.version >= 21900);
  EXPECT_EQ(api.comm_shrink != nullptr, api.version >= 22700);
  EXPECT_EQ(api.comm_revoke != nullptr, api.version >= 22807);
  EXPECT_EQ(api.comm_grow != nullptr, api.version >= 22900);
  for (int code = 0; code <= static_cast<int>(ReturnCode::kInProgress);
       ++code) {
    const char* text = api.get_error_string(static_cast<ReturnCode>(code));
    ASSERT_NE(text, nullptr);
    EXPECT_STRNE(text, "");
  }
}

TEST_F(RealNccl, RefusesCallsWithoutACommunicator) {
  const NcclApi& api = *api_;
  float value = 1;
  EXPECT_EQ(api.all_reduce(&value, &value, 1, nccl::DataType::kFloat32,
                           nccl::RedOp::kSum, nullptr, nullptr),
            ReturnCode::kInvalidArgument);
  ReturnCode state = ReturnCode::kSuccess;
  EXPECT_EQ(api.comm_get_async_error(nullptr, &state),
            ReturnCode::kInvalidArgument);
  // A group may be empty, and ends once.
  EXPECT_EQ(api.group_start(), ReturnCode::kSuccess);
  EXPECT_EQ(api.group_end(), ReturnCode::kSuccess);
  EXPECT_EQ(api.group_end(), ReturnCode::kInvalidUsage);
}

// What a rank sees whose driver or device is gone.
TEST_F(RealNccl, BeginningWithoutADeviceIsAnErrorThatNamesTheCall) {
  nccl::UniqueId id = {};
  ASSERT_EQ(api_->get_unique_id(&id), ReturnCode::kSuccess);
  NcclComm comm(api_, 0, 1);
  const Status begun = comm.Begin(id);
  if (begun.ok()) {
    comm.Abort([] {});
    GTEST_SKIP() << "there is a device";
  }
  EXPECT_EQ(begun.code(), StatusCode::kInternal) << begun.ToString();
  EXPECT_NE(begun.message().find("ncclCommInitRankConfig on rank 0 of 1"),
            std::string::npos)
      << begun.ToString();
  EXPECT_EQ(comm.get(), nullptr);
}

TEST_F(RealNccl, RanksThatCannotBeginAllEnd) {
  FakeDevice device;
  const SteadyClock clock;
  NcclArgs args;
  args.api = api_;
  args.device = &device;
  args.clock = &clock;
  args.init_seconds = 30;
  args.broadcast = [](void*, std::size_t) { return Status(); };
  args.culprits = [] { return std::string("rank 0 has no device"); };
  Result<std::unique_ptr<NcclCollective>> made =
      NcclCollective::Create(std::move(args));
  if (made.ok() || made.status().code() == StatusCode::kFailedPrecondition) {
    GTEST_SKIP() << "there is a device";
  }
  EXPECT_NE(made.status().message().find("rank 0 has no device"),
            std::string::npos)
      << made.status().ToString();
}

}  // namespace
}  // namespace gradientflow::testing
