#include "tests/nccl/fake_world.h"

#include <cstring>

#include "kernels/kernels.h"

namespace gradientflow::testing {
namespace {

using kernels::DType;

DType TypeOf(nccl::DataType type) {
  switch (type) {
    case nccl::DataType::kUint8:
      return DType::kUInt8;
    case nccl::DataType::kInt32:
      return DType::kInt32;
    case nccl::DataType::kInt64:
      return DType::kInt64;
    case nccl::DataType::kFloat16:
      return DType::kFloat16;
    case nccl::DataType::kFloat32:
      return DType::kFloat32;
    case nccl::DataType::kFloat64:
      return DType::kFloat64;
    case nccl::DataType::kBfloat16:
      return DType::kBFloat16;
    default:
      return DType::kInt8;
  }
}

kernels::ReduceOp KernelOp(nccl::RedOp op) {
  switch (op) {
    case nccl::RedOp::kProd:
      return kernels::ReduceOp::kProduct;
    case nccl::RedOp::kMax:
      return kernels::ReduceOp::kMax;
    case nccl::RedOp::kMin:
      return kernels::ReduceOp::kMin;
    default:
      return kernels::ReduceOp::kSum;
  }
}

// NCCL stores a factor in the type of the elements.
float FactorIn(DType type, double factor) {
  float wide = static_cast<float>(factor);
  if (type == DType::kFloat32) return wide;
  std::array<std::byte, 4> narrow;
  const auto& k = kernels::CpuKernels();
  k.convert(
      {&wide, DType::kFloat32, narrow.data(), type, nullptr, 1, 1.0F, nullptr},
      nullptr);
  k.convert(
      {narrow.data(), type, &wide, DType::kFloat32, nullptr, 1, 1.0F, nullptr},
      nullptr);
  return wide;
}

using Bytes = std::vector<std::byte>;

Bytes Scaled(const std::byte* data, std::size_t n, DType type, double factor) {
  Bytes out(n * SizeOf(type));
  if (factor == 1.0 || !(IsGradientType(type) || type == DType::kFloat64)) {
    if (n > 0) std::memcpy(out.data(), data, out.size());
    return out;
  }
  if (type == DType::kFloat64) {
    for (std::size_t i = 0; i < n; ++i) {
      double value;
      std::memcpy(&value, data + i * sizeof(value), sizeof(value));
      value *= factor;
      std::memcpy(out.data() + i * sizeof(value), &value, sizeof(value));
    }
    return out;
  }
  kernels::CpuKernels().convert({data, type, out.data(), type, nullptr, n,
                                 FactorIn(type, factor), nullptr},
                                nullptr);
  return out;
}

// The ranks' elements [begin, begin + n), combined in rank order and rounded
// after each addition, as along a ring.
Bytes Reduced(const std::vector<FakePart*>& parts, std::size_t begin,
              std::size_t n) {
  const FakePart& first = *parts[0];
  const DType type = TypeOf(first.type);
  const double factor = first.op == nccl::RedOp::kAvg
                            ? 1.0 / static_cast<double>(parts.size())
                            : first.factor;
  Bytes total;
  for (const FakePart* part : parts) {
    const auto* data =
        static_cast<const std::byte*>(part->send) + begin * SizeOf(type);
    Bytes own = Scaled(data, n, type, factor);
    if (part == parts[0]) {
      total = std::move(own);
      continue;
    }
    kernels::CpuKernels().accumulate({total.data(), type, own.data(), type, n,
                                      KernelOp(first.op), 1.0F, 1.0F, nullptr},
                                     nullptr);
  }
  return total;
}

void Store(void* to, const Bytes& bytes) {
  if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
}

void Execute(const std::vector<FakePart*>& parts) {
  const FakePart& first = *parts[0];
  const std::size_t n = first.count;
  const std::size_t bytes = n * SizeOf(TypeOf(first.type));
  const auto root = static_cast<std::size_t>(first.root);
  switch (first.kind) {
    case FakeKind::kAllReduce: {
      const Bytes total = Reduced(parts, 0, n);
      for (FakePart* part : parts) Store(part->recv, total);
      break;
    }
    case FakeKind::kReduce:
      Store(parts[root]->recv, Reduced(parts, 0, n));
      break;
    case FakeKind::kReduceScatter: {
      std::vector<Bytes> blocks;
      for (std::size_t r = 0; r < parts.size(); ++r) {
        blocks.push_back(Reduced(parts, r * n, n));
      }
      for (std::size_t r = 0; r < parts.size(); ++r) {
        Store(parts[r]->recv, blocks[r]);
      }
      break;
    }
    case FakeKind::kBroadcast:
      for (FakePart* part : parts) {
        if (bytes > 0) std::memmove(part->recv, parts[root]->send, bytes);
      }
      break;
    case FakeKind::kAllGather:
      for (FakePart* part : parts) {
        for (std::size_t r = 0; r < parts.size(); ++r) {
          auto* to = static_cast<std::byte*>(part->recv) + r * bytes;
          if (bytes > 0) std::memmove(to, parts[r]->send, bytes);
        }
      }
      break;
    case FakeKind::kMessages:
      break;
  }
}

bool Agree(const std::vector<FakePart*>& parts) {
  for (const FakePart* part : parts) {
    const FakePart& first = *parts[0];
    if (part->kind != first.kind || part->count != first.count ||
        part->type != first.type || part->op != first.op ||
        part->factor != first.factor || part->root != first.root) {
      return false;
    }
  }
  return true;
}

void Meet(FakeComm* comm, std::size_t number, FakePart* part,
          std::unique_lock<std::mutex>* lock) {
  FakeNcclState& state = State();
  FakeWorld& world = *comm->world;
  const std::size_t size = world.comms.size();
  FakeWorld::Meeting& meeting = world.meetings[number];
  meeting.parts.resize(size);
  meeting.parts[static_cast<std::size_t>(comm->rank)] = part;
  if (++meeting.arrived == static_cast<int>(size) &&
      state.mode(FakeNcclMode::kHangCollectives) == 0) {
    if (Agree(meeting.parts)) {
      Execute(meeting.parts);
      meeting.done = true;
    } else {
      for (FakeComm* each : world.comms) each->mismatch = true;
    }
    state.changed.notify_all();
  }
  state.changed.wait(*lock, [&] { return meeting.done || comm->aborted; });
  if (!meeting.done) {
    // The memory belongs to the caller again: later ranks must not use it.
    meeting.arrived = -static_cast<int>(size);
  } else if (++meeting.left == static_cast<int>(size)) {
    world.meetings.erase(number);
  }
}

// Takes the messages for this rank. Returns whether none is missing.
bool TakeMail(FakeComm* comm, std::vector<FakeMessage>* wanted) {
  FakeNcclState& state = State();
  for (auto message = wanted->begin(); message != wanted->end();) {
    auto& box = comm->world->mail[{message->peer, comm->rank}];
    if (box.empty()) {
      ++message;
      continue;
    }
    if (box.front().bytes != message->bytes) {
      comm->mismatch = true;
      return false;
    }
    if (message->bytes > 0) {
      std::memcpy(message->data, box.front().data, message->bytes);
    }
    *box.front().taken = true;
    box.pop_front();
    message = wanted->erase(message);
    state.changed.notify_all();
  }
  return wanted->empty();
}

void Exchange(FakeComm* comm, const FakePart& part,
              std::unique_lock<std::mutex>* lock) {
  FakeNcclState& state = State();
  std::deque<bool> taken;
  std::vector<FakeMessage> wanted;
  for (const FakeMessage& message : part.messages) {
    if (!message.send) {
      wanted.push_back(message);
      continue;
    }
    bool* flag = &taken.emplace_back(false);
    comm->world->mail[{comm->rank, message.peer}].push_back(
        {message.data, message.bytes, flag});
  }
  state.changed.notify_all();
  state.changed.wait(*lock, [&] {
    if (comm->aborted) return true;
    if (state.mode(FakeNcclMode::kHangCollectives) != 0) return false;
    bool all = TakeMail(comm, &wanted);
    for (bool flag : taken) all = all && flag;
    return all;
  });
  if (!comm->aborted) return;
  for (auto& [ends, box] : comm->world->mail) {
    if (ends.first == comm->rank) box.clear();
  }
}

}  // namespace

FakeNcclState& State() {
  // Never destroyed: streams that were held may use it as the process ends.
  static auto* state = new FakeNcclState;
  return *state;
}

void RunPart(FakeComm* comm, std::size_t number, FakePart* part) {
  std::unique_lock<std::mutex> lock(State().mutex);
  if (part->kind == FakeKind::kMessages) {
    Exchange(comm, *part, &lock);
  } else {
    Meet(comm, number, part, &lock);
  }
  State().Count(FakeNcclCount::kEnded);
}

}  // namespace gradientflow::testing
