#include "tests/nccl/fake_world.h"

#include <algorithm>
#include <cstring>

namespace gradientflow::testing {
namespace {

using Bytes = std::vector<std::byte>;

void Store(void* to, const Bytes& bytes) {
  if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
}

void Execute(const std::vector<FakeOp*>& parts) {
  const FakeOp& first = *parts[0];
  const std::size_t n = first.count;
  const std::size_t bytes = n * SizeOf(first.type);
  const auto root = static_cast<std::size_t>(first.root);
  switch (first.kind) {
    case FakeKind::kAllReduce: {
      const Bytes total = Reduced(parts, 0, n);
      for (FakeOp* part : parts) Store(part->recv, total);
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
      for (FakeOp* part : parts) {
        if (bytes > 0) std::memmove(part->recv, parts[root]->send, bytes);
      }
      break;
    case FakeKind::kAllGather:
      for (FakeOp* part : parts) {
        for (std::size_t r = 0; r < parts.size(); ++r) {
          auto* to = static_cast<std::byte*>(part->recv) + r * bytes;
          if (bytes > 0) std::memmove(to, parts[r]->send, bytes);
        }
      }
      break;
  }
}

bool Agree(const std::vector<FakeOp*>& parts) {
  for (const FakeOp* part : parts) {
    const FakeOp& first = *parts[0];
    if (part->kind != first.kind || part->count != first.count ||
        part->type != first.type || part->op != first.op ||
        part->factor != first.factor || part->root != first.root) {
      return false;
    }
  }
  return true;
}

void Meet(FakeComm* comm, std::size_t number, FakeOp* part,
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
      state.Count(FakeNcclCount::kMismatches);
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
      State().Count(FakeNcclCount::kMismatches);
      for (FakeComm* each : comm->world->comms) each->mismatch = true;
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

// The messages of a part on their way.
struct Exchange {
  std::deque<bool> taken;
  std::vector<FakeMessage> wanted;
};

// Shows what the part sends to its peers.
void Post(FakeComm* comm, const FakePart& part, Exchange* exchange) {
  for (const FakeMessage& message : part.messages) {
    if (!message.send) {
      exchange->wanted.push_back(message);
      continue;
    }
    bool* flag = &exchange->taken.emplace_back(false);
    comm->world->mail[{comm->rank, message.peer}].push_back(
        {message.data, message.bytes, flag});
  }
  State().changed.notify_all();
}

void Complete(FakeComm* comm, Exchange* exchange,
              std::unique_lock<std::mutex>* lock) {
  FakeNcclState& state = State();
  state.changed.wait(*lock, [&] {
    if (comm->aborted) return true;
    if (state.mode(FakeNcclMode::kHangCollectives) != 0) return false;
    bool all = TakeMail(comm, &exchange->wanted);
    for (bool flag : exchange->taken) all = all && flag;
    return all;
  });
  if (!comm->aborted) return;
  for (auto& [ends, box] : comm->world->mail) {
    if (ends.first == comm->rank) box.clear();
  }
}

// With kOneAtATime: waits until the device has come to this. Returns false if
// that is over.
bool AwaitDevice(const FakeSubmitted& submitted,
                 std::unique_lock<std::mutex>* lock) {
  auto& line = State().on_device[submitted.comm->device];
  if (std::ranges::count(line, &submitted) == 0) return true;
  State().changed.wait(*lock, [&] {
    return line.front() == &submitted || submitted.comm->aborted;
  });
  return !submitted.comm->aborted;
}

void LeaveDevice(const FakeSubmitted& submitted) {
  std::erase(State().on_device[submitted.comm->device], &submitted);
  State().changed.notify_all();
}

void Work(const FakeSubmitted& submitted, std::unique_lock<std::mutex>* lock) {
  FakePart& part = *submitted.part;
  Exchange exchange;
  Post(submitted.comm, part, &exchange);
  std::size_t number = submitted.number;
  for (FakeOp& op : part.ops) Meet(submitted.comm, number++, &op, lock);
  if (!part.messages.empty()) Complete(submitted.comm, &exchange, lock);
}

}  // namespace

FakeNcclState& State() {
  // Never destroyed: streams that were held may use it as the process ends.
  static auto* state = new FakeNcclState;
  return *state;
}

void RunPart(const FakeSubmitted& submitted) {
  std::unique_lock<std::mutex> lock(State().mutex);
  if (AwaitDevice(submitted, &lock)) Work(submitted, &lock);
  LeaveDevice(submitted);
  State().Count(FakeNcclCount::kEnded);
}

}  // namespace gradientflow::testing
