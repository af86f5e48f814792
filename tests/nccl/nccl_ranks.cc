#include "tests/nccl/nccl_ranks.h"

#include <dlfcn.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "gradientflow/base/clock.h"
#include "tests/device/fake_queue.h"

namespace gradientflow::testing {
namespace {

using kernels::testing::Elements;

void EnqueueOnFakeStream(void* stream, void (*fn)(void*), void* arg) {
  FakeTask task;
  task.run = [fn, arg] {
    fn(arg);
    return Status();
  };
  const Status pushed = FakeQueue::Of(stream)->Push(std::move(task));
  EXPECT_TRUE(pushed.ok()) << pushed.ToString();
}

// The devices by their numbers, and what NCCL has allocated on them.
struct Devices {
  std::mutex mutex;
  std::map<int, FakeDevice*> by_number;
  std::map<void*, DeviceMemory> memory;
};
Devices& AllDevices() {
  static Devices all;
  return all;
}

// To touch all of a staging memory would take most of a test's time.
constexpr std::size_t kPoisonedBytes = std::size_t{64} << 10;

void* AllocateOnFakeDevice(int number, std::size_t bytes) {
  Devices& all = AllDevices();
  const std::lock_guard lock(all.mutex);
  const auto device = all.by_number.find(number);
  if (device == all.by_number.end()) return nullptr;
  Result<DeviceMemory> memory = device->second->Allocate(bytes);
  if (!memory.ok()) return nullptr;
  void* data = memory.value().get();
  std::memset(data, kFakePoison, std::min(bytes, kPoisonedBytes));
  all.memory[data] = std::move(memory).value();
  return data;
}

void FreeOnFakeDevice(void* data) {
  Devices& all = AllDevices();
  const std::lock_guard lock(all.mutex);
  all.memory.erase(data);
}

template <typename Function>
Function* Find(void* library, const char* name) {
  auto* found = reinterpret_cast<Function*>(::dlsym(library, name));
  if (found == nullptr) std::abort();  // Not the library that tests expect.
  return found;
}

// Where rank 0 leaves bytes for the other ranks.
class Board {
 public:
  Status Broadcast(int rank, void* data, std::size_t bytes) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (rank == 0) {
      const auto* begin = static_cast<const std::byte*>(data);
      bytes_.assign(begin, begin + bytes);
      there_.notify_all();
      return Status();
    }
    there_.wait(lock, [this] { return !bytes_.empty(); });
    EXPECT_EQ(bytes_.size(), bytes);
    std::memcpy(data, bytes_.data(), bytes);
    return Status();
  }
  // Whether all of `size` ranks say yes.
  bool Agree(bool mine, int size) {
    std::unique_lock<std::mutex> lock(mutex_);
    all_ &= mine;
    ++said_;
    there_.notify_all();
    there_.wait(lock, [&] { return said_ == size; });
    return all_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable there_;
  bool all_ = true;
  int said_ = 0;
  std::vector<std::byte> bytes_;
};

}  // namespace

FakeNccl::FakeNccl(const char* path) {
  Result<std::shared_ptr<const NcclApi>> api = LoadNccl(path);
  EXPECT_TRUE(api.ok()) << api.status().ToString();
  if (api.ok()) api_ = std::move(api).value();
  void* library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
  reset_ = Find<FakeNcclReset>(library, kFakeNcclReset);
  set_ = Find<FakeNcclSet>(library, kFakeNcclSet);
  get_ = Find<FakeNcclGet>(library, kFakeNcclGet);
  reset_();
  Find<FakeNcclSetEnqueue>(library, kFakeNcclSetEnqueue)(EnqueueOnFakeStream);
  Find<FakeNcclSetMemory>(library, kFakeNcclSetMemory)(AllocateOnFakeDevice,
                                                       FreeOnFakeDevice);
  Find<FakeNcclSetCurrent>(library,
                           kFakeNcclSetCurrent)(FakeDevice::CurrentOfThread);
}

FakeNccl::~FakeNccl() { reset_(); }

void FakeNccl::Await(FakeNcclCount count, int value) const {
  while (Get(count) != value) std::this_thread::yield();
}

Outcome NcclRank::Run(const CollectiveCall& call) {
  Outcome outcome;
  collective.Start(call, outcome.done());
  EXPECT_FALSE(outcome.ended) << "done inside Start()";
  PollUntil(outcome);
  return outcome;
}

void NcclRank::PollUntil(const Outcome& outcome) {
  while (!outcome.ended) {
    if (!collective.Poll()) std::this_thread::yield();
  }
}

DeviceMemory NcclRank::Upload(const Elements& from) const {
  const std::size_t bytes = from.size() * SizeOf(from.type());
  Result<DeviceMemory> memory = device.Allocate(bytes);
  EXPECT_TRUE(memory.ok()) << memory.status().ToString();
  if (bytes > 0) std::memcpy(memory.value().get(), from.data(), bytes);
  return memory.value();
}

void NcclRank::Download(const DeviceMemory& from, Elements* to) {
  const std::size_t bytes = to->size() * SizeOf(to->type());
  if (bytes > 0) std::memcpy(to->data(), from.get(), bytes);
}

DeviceForNccl::DeviceForNccl(FakeDevice* device) : number_(device->id().index) {
  Devices& all = AllDevices();
  const std::lock_guard lock(all.mutex);
  all.by_number[number_] = device;
}

DeviceForNccl::~DeviceForNccl() {
  Devices& all = AllDevices();
  const std::lock_guard lock(all.mutex);
  all.by_number.erase(number_);
}

void CreateNcclRanks(
    const NcclJob& job,
    const std::function<void(int rank, FakeDevice& device,
                             Result<std::unique_ptr<NcclCollective>> made)>&
        body) {
  Board board;
  const SteadyClock clock;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < job.size; ++rank) {
    threads.emplace_back([&, rank] {
      FakeOptions options;
      options.id.index = rank;
      options.lag = job.lag;
      options.seed = 100 + static_cast<std::uint64_t>(rank);
      FakeDevice device(options);
      const DeviceForNccl known(&device);
      NcclArgs args;
      args.api = job.nccl->api();
      args.rank = rank;
      args.size = job.size;
      args.device = &device;
      args.clock = &clock;
      args.broadcast = [&board, rank](void* data, std::size_t bytes) {
        return board.Broadcast(rank, data, bytes);
      };
      args.all_agree = [&board, size = job.size](bool mine) -> Result<bool> {
        return board.Agree(mine, size);
      };
      if (job.adjust) job.adjust(rank, &args);
      body(rank, device, NcclCollective::Create(std::move(args)));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(job.nccl->Get(FakeNcclCount::kStrayCalls), 0);
}

void RunNcclRanks(const NcclJob& job,
                  const std::function<void(NcclRank&)>& body) {
  CreateNcclRanks(job, [&](int rank, FakeDevice& device,
                           Result<std::unique_ptr<NcclCollective>> made) {
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    NcclRank self{rank, device, *made.value()};
    body(self);
  });
}

}  // namespace gradientflow::testing
