#include "tests/session/ranks.h"

#include <barrier>
#include <utility>

#include "gradientflow/device/device.h"

namespace gradientflow::testing {

Status Update(GradientSession& session, const OptimizerOptions& config,
              const std::vector<float*>& weights) {
  GF_RETURN_IF_ERROR(session.OptimizerStep(config, weights));
  return session.SaveState().status();  // Copies the momentum.
}

Status ZeroAndWait(GradientSession& session) {
  GF_RETURN_IF_ERROR(session.ZeroGradients());
  return StreamOfThisRank() == nullptr ? Status()
                                       : StreamOfThisRank()->Synchronize();
}

void OpenRanks(const Job& job,
               const std::function<void(int rank, Opened)>& body) {
  std::vector<std::vector<TensorSpec>> tensors(
      static_cast<std::size_t>(job.size), job.tensors);
  CommJob comm_job = job;
  if (job.adapt) {
    comm_job.differ = [&](int rank, Options* options) {
      job.adapt(rank, options, &tensors[static_cast<std::size_t>(rank)]);
    };
  }
  OpenRanks(comm_job, [&](const Options& options, OpenedComm comm) {
    if (!comm.ok()) return body(options.rank, comm.status());
    Opened opened = GradientSession::Open(
        std::move(comm).value(),
        tensors[static_cast<std::size_t>(options.rank)], options);
    if (opened.ok() && StreamOfThisRank() != nullptr) {
      EXPECT_TRUE(opened.value()->SetStream(StreamOfThisRank()->native()).ok());
    }
    body(options.rank, std::move(opened));
  });
}

void RunRanks(const Job& job,
              const std::function<void(GradientSession&)>& body) {
  // The end of one rank's body must not end a rank that is still joining.
  std::barrier<> opened_by_all(job.size);
  OpenRanks(job, [&](int rank, Opened opened) {
    opened_by_all.arrive_and_wait();
    ASSERT_TRUE(opened.ok())
        << OverName(job.over) << ", rank " << rank << " of " << job.size << ": "
        << opened.status().ToString();
    body(*opened.value());
  });
}

}  // namespace gradientflow::testing
