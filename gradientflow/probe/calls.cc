#include "gradientflow/probe/calls.h"

namespace gradientflow {

Status Barrier(Communicator& comm) {
  CollectiveCall call;
  call.kind = CollectiveKind::kBarrier;
  return comm.Run(call);
}

Status Allreduce(Communicator& comm, ReduceOp op, std::vector<double>* values) {
  CollectiveCall call;
  call.output = values->data();
  call.count = values->size();
  call.dtype = call.wire = DType::kFloat64;
  call.op = op;
  return comm.Run(call);
}

Status BroadcastBytes(Communicator& comm, int root, void* bytes,
                      std::size_t count) {
  CollectiveCall call;
  call.kind = CollectiveKind::kBroadcast;
  call.output = bytes;
  call.count = count;
  call.dtype = call.wire = DType::kUInt8;
  call.root = root;
  return comm.Run(call);
}

}  // namespace gradientflow
