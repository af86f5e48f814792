#include "benchmarks/rdma/parts.h"

#include "benchmarks/lib/must.h"
#include "kernels/kernels.h"
#include "transports/rdma/choose.h"
#include "transports/rdma/devices.h"
#include "transports/rdma/verbs_api.h"

namespace gradientflow::benchmarks {

std::shared_ptr<Rail> OpenPort(const std::string& port, std::size_t ranks,
                               int receives) {
  const auto verbs = Must(LoadVerbs());
  const auto devices = Must(ListRdmaDevices(*verbs));
  return Must(Rail::Open(
      {verbs, Must(ChooseRails(devices, {"=" + port, {}, 0})).front(),
       static_cast<int>(ranks), receives}));
}

void SumParts(const std::vector<const void*>& parts, std::size_t own,
              float* sum, std::size_t floats) {
  constexpr auto kFloat32 = kernels::DType::kFloat32;
  void* to = sum;
  kernels::CpuKernels().reduce_many(
      {parts.data(), static_cast<int>(parts.size()), static_cast<int>(own),
       kFloat32, &to, 1, kFloat32, kFloat32, floats, kernels::ReduceOp::kSum, 1,
       nullptr},
      nullptr);
}

}  // namespace gradientflow::benchmarks
