#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/session/steps.h"

// Ranks whose settings or tensors differ do not open.
namespace gradientflow::testing {
namespace {

struct Difference {
  const char* what;  // The text must contain it.
  std::function<void(Options*, std::vector<TensorSpec>*)> make;
};

const Difference kDifferences[] = {
    {"tensors=", [](Options*, auto* t) { t->pop_back(); }},
    {"weight3", [](Options*, auto* t) { (*t)[3].elements = 65; }},
    {"another", [](Options*, auto* t) { (*t)[3].name = "another"; }},
    {"always dense", [](Options*, auto* t) { (*t)[3].always_dense = true; }},
    {"bucket_bytes", [](Options* o, auto*) { o->bucket_bytes = 4096; }},
    {"pool_dtype", [](Options* o, auto*) { o->pool_dtype = DType::kFloat16; }},
    {"wire_dtype", [](Options* o, auto*) { o->wire_dtype = DType::kFloat16; }},
    {"sparsity", [](Options* o, auto*) { o->sparsity = 0.5F; }},
    {"chunk_elements", [](Options* o, auto*) { o->chunk_elements = 100; }},
    {"reduce", [](Options* o, auto*) { o->reduce = ReduceOp::kSum; }},
    {"loss_scale", [](Options* o, auto*) { o->loss_scale = 2; }},
    {"algorithm", [](Options* o, auto*) { o->algorithm = "ring"; }},
};

TEST(Opening, NamesTheRankAndTheFirstDifference) {
  for (const Difference& difference : kDifferences) {
    Job job;
    job.size = 3;
    job.over = Over::kTcp;
    job.tensors = SomeTensors();
    job.adapt = [&](int rank, Options* options, auto* tensors) {
      if (rank == 1) difference.make(options, tensors);
    };
    OpenRanks(job, [&](int rank, Opened opened) {
      ASSERT_FALSE(opened.ok()) << difference.what;
      EXPECT_EQ(opened.status().code(), StatusCode::kInvalidArgument);
      const std::string& text = opened.status().message();
      EXPECT_NE(text.find("rank 1"), std::string::npos) << rank << text;
      EXPECT_NE(text.find(difference.what), std::string::npos) << text;
    });
  }
}

TEST(Opening, InOneProcessRefusesDifferencesToo) {
  for (const Difference& difference : kDifferences) {
    Job job;
    job.size = 3;
    job.tensors = SomeTensors();
    job.adapt = [&](int rank, Options* options, auto* tensors) {
      if (rank == 1) difference.make(options, tensors);
    };
    OpenRanks(job, [&](int, Opened opened) {
      ASSERT_FALSE(opened.ok()) << difference.what;
      EXPECT_EQ(opened.status().code(), StatusCode::kInvalidArgument)
          << opened.status().ToString();
    });
  }
}

TEST(Opening, TellsTheOthersWhyARankCannot) {
  Job job;
  job.size = 3;
  job.over = Over::kTcp;
  job.tensors = SomeTensors();
  job.adapt = [](int rank, Options* options, auto*) {
    if (rank == 1) options->device = "cuda:1023";
  };
  OpenRanks(job, [&](int rank, Opened opened) {
    ASSERT_FALSE(opened.ok());
    const std::string& text = opened.status().message();
    if (rank == 1) return;
    EXPECT_NE(text.find("rank 1 did not open its communicator"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("device"), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace gradientflow::testing
