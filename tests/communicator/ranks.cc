#include "tests/communicator/ranks.h"

#include <algorithm>
#include <barrier>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/mutex.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/communicator/agreement.h"
#include "gradientflow/communicator/inproc.h"
#include "gradientflow/communicator/transport.h"
#include "gradientflow/observe/stderr_logger.h"
#include "tests/communicator/placed_transport.h"
#include "tests/nccl/nccl_ranks.h"
#include "tests/rdma/cards.h"
#include "tests/rdma/fake_verbs.h"
#include "tests/transports/thread_places.h"
#include "transports/rdma/verbs_api.h"

namespace gradientflow::testing {
namespace {

constexpr std::size_t kArenaBytes = std::size_t{256} << 20;

// An empty folder in which ranks can meet; removed at the end.
class MeetingPlace {
 public:
  MeetingPlace() : path_(::testing::TempDir() + "/gf_ranks_XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ~MeetingPlace() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  MeetingPlace(const MeetingPlace&) = delete;
  MeetingPlace& operator=(const MeetingPlace&) = delete;
  std::string address() const { return "file://" + path_; }

 private:
  std::string path_;
};

void OnThreads(int size, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) threads.emplace_back(body, r);
  for (std::thread& thread : threads) thread.join();
}

std::string CardName(int rank) {
  return StrCat(RealCards().empty() ? "fake" : RealCards(), rank);
}

FakeVerbs* cards_of_ranks = nullptr;
FakeNccl* nccl_of_ranks = nullptr;

// Cards for all ranks of a job, as of one host, and the devices beside them.
class Cards {
 public:
  explicit Cards(const CommJob& job) {
    const bool devices = job.over == Over::kRdmaDevices;
    if (!devices && (job.over != Over::kRdma || !RealCards().empty())) return;
    FakeHost host;
    for (int r = 0; r < job.size; ++r) {
      host.devices.push_back(UsualHost(r).devices.front());
    }
    if (devices) host.of_gpu = [this](const void* at) { return Owns(at); };
    host.peermem = job.peermem;
    network_.emplace(0);
    network_->AddHost(host);
    cards_of_ranks = &*network_;
    ReplaceVerbs(network_->api(0));
  }
  ~Cards() {
    if (!network_) return;  // Jobs without cards run at once in one process.
    cards_of_ranks = nullptr;
    ReplaceVerbs(nullptr);
  }
  Cards(const Cards&) = delete;
  Cards& operator=(const Cards&) = delete;

  void Add(std::shared_ptr<FakeDevice> device) {
    const MutexLock lock(mutex_);
    devices_.push_back(std::move(device));
  }
  // For a device that waits for what cards have written to it.
  Status Flush(const FakeDevice& device) {
    network_->FlushGpus([&](const void* at) { return device.Owns(at); });
    return Status();
  }

 private:
  bool Owns(const void* at) {
    const MutexLock lock(mutex_);
    return std::any_of(devices_.begin(), devices_.end(),
                       [&](const auto& device) { return device->Owns(at); });
  }

  Mutex mutex_;
  std::vector<std::shared_ptr<FakeDevice>> devices_ GF_GUARDED_BY(mutex_);
  std::optional<FakeVerbs> network_;
};

thread_local FakeDevice* device_of_this_rank = nullptr;
thread_local Stream* stream_of_this_rank = nullptr;

// A device with a stream that computes, if the rank has one.
struct RankDevice {
  RankDevice(const CommJob& job, int rank, Cards* cards) {
    if (job.over != Over::kDevices && job.over != Over::kNccl &&
        job.over != Over::kRdmaDevices &&
        (job.over != Over::kSomeDevices || rank % 2 == 0)) {
      return;
    }
    FakeOptions options;
    options.id.index = rank;
    options.lag = FakeLag::kRandom;
    options.check_kernel_memory = !job.weights_on_host;
    options.seed = static_cast<std::uint64_t>(rank) + 1;
    options.work_seconds = job.work_seconds;
    const bool reached = job.over == Over::kRdmaDevices;
    options.dma_buf = reached && job.dma_buf;
    if (reached && job.flushes) {
      options.flush = [this, cards] { return cards->Flush(*device); };
    }
    device = std::make_shared<FakeDevice>(options);
    if (reached) cards->Add(device);
    known.emplace(device.get());
    stream = std::move(device->NewStream(false)).value();
    device_of_this_rank = device.get();
    stream_of_this_rank = stream.get();
  }
  ~RankDevice() {
    device_of_this_rank = nullptr;
    stream_of_this_rank = nullptr;
    if (device != nullptr) device->ReleaseStreams();
  }
  RankDevice(const RankDevice&) = delete;
  RankDevice& operator=(const RankDevice&) = delete;
  std::shared_ptr<FakeDevice> device;
  std::optional<DeviceForNccl> known;
  std::unique_ptr<Stream> stream;
};

bool InProcess(Over over) {
  return over != Over::kTcp && over != Over::kMixed && over != Over::kNeeded &&
         over != Over::kRdma && over != Over::kRdmaDevices;
}

Options OptionsOf(const CommJob& job, int rank) {
  Options options = job.options;
  options.rank = rank;
  options.size = job.size;
  options.arena_bytes = kArenaBytes;
  if (job.over == Over::kNeeded) options.connect = ConnectMode::kNeeded;
  if (job.over == Over::kMessages || job.over == Over::kTcp ||
      job.over == Over::kNeeded || job.over == Over::kSomeDevices) {
    options.fabric = "tcp";
  }
  if (job.over == Over::kRdma || job.over == Over::kRdmaDevices) {
    const std::string card =
        job.over == Over::kRdma ? CardName(rank) : StrCat("fake", rank);
    options.fabric = "rdma";
    options.transport_settings["rdma_devices"] = StrCat("=", card, ":1");
  }
  if (job.over == Over::kNccl) {
    options.device_collectives = DeviceCollectives::kNccl;
    options.nccl_library = kFakeNcclPath;
  }
  if (job.over == Over::kMixed) options.host_id = StrCat("host", rank / 2);
  if (job.differ) job.differ(rank, &options);
  return options;
}

// What the ranks of a process have in common.
struct Process {
  std::shared_ptr<InprocGroup> group;
  std::shared_ptr<PlacesNetwork> network;  // For Over::kPlaces.
};

// Has no state, and outlives every communicator.
const SteadyClock& SharedClock() {
  static const SteadyClock clock;
  return clock;
}

// On odd ranks the network reaches all memory, and on others only the slots.
OpenedComm OpenPlaced(const Process& process, const Options& options) {
  Options adapted = options;
  adapted.rendezvous = "file:///in-process";
  if (options.rank % 2 == 1) process.network->places(options.rank).ReachAll();
  Result<Transport> transport =
      PlacedTransport(process.group, process.network, adapted, SharedClock());
  if (!transport.ok()) return transport.status();
  return OpenOver(std::move(transport).value(), adapted);
}

OpenedComm OpenWithDevice(const Options& options, const RankDevice& own) {
  StderrLogger logger(options.log_level, options.rank);
  JoinArgs join;
  join.options = &options;
  join.agreement = AgreementText(options);
  join.clock = &SharedClock();
  join.logger = &logger;
  Result<Transport> transport = Join(join);
  if (!transport.ok()) return transport.status();
  return OpenOver(std::move(transport).value(), options, own.device);
}

OpenedComm OnStream(OpenedComm comm, const RankDevice& own) {
  if (comm.ok() && own.stream != nullptr) {
    EXPECT_TRUE(comm.value()->SetStream(own.stream->native()).ok());
  }
  return comm;
}

}  // namespace

FakeDevice* DeviceOfThisRank() { return device_of_this_rank; }
Stream* StreamOfThisRank() { return stream_of_this_rank; }
FakeVerbs* CardsOfRanks() { return cards_of_ranks; }
FakeNccl* NcclOfRanks() { return nccl_of_ranks; }

const char* OverName(Over over) {
  constexpr const char* kNames[] = {
      "memory", "messages", "places",      "tcp",  "mixed",      "needed",
      "rdma",   "devices",  "someDevices", "nccl", "rdmaDevices"};
  return kNames[static_cast<int>(over)];
}

std::string ParamName(
    const ::testing::TestParamInfo<std::tuple<Over, int>>& info) {
  return StrCat(OverName(std::get<Over>(info.param)),
                std::get<int>(info.param));
}

Options CommJob::TestOptions() {
  Options options;
  options.socket_ifname = "lo";
  options.log_level = LogLevel::kError;
  options.fifo_bytes = std::size_t{64} << 10;
  options.timeout_seconds = 60;
  // The devices are fakes, whichever NCCL this machine has.
  options.device_collectives = DeviceCollectives::kStaged;
  options.join_timeout_seconds = 60;
  options.bucket_bytes = std::size_t{64} << 10;
  return options;
}

void OpenRanks(const CommJob& job,
               const std::function<void(const Options&, OpenedComm)>& body) {
  if (InProcess(job.over)) {
    std::optional<FakeNccl> nccl;
    if (job.over == Over::kNccl) nccl_of_ranks = &nccl.emplace();
    ShmOptions shm;
    shm.arena_bytes = kArenaBytes;
    shm.fifo_bytes = job.options.fifo_bytes;
    Result<std::shared_ptr<InprocGroup>> group =
        InprocGroup::Create(job.size, shm);
    ASSERT_TRUE(group.ok()) << group.status().message();
    Process process = {group.value(), nullptr};
    if (job.over == Over::kPlaces) {
      Options options = job.options;
      options.size = job.size;
      process.network = PlacesNetworkFor(options, 1);
    }
    OnThreads(job.size, [&](int rank) {
      const Options options = OptionsOf(job, rank);
      const RankDevice own(job, rank, nullptr);
      body(options,
           process.network != nullptr
               ? OpenPlaced(process, options)
               : OnStream(OpenInProcess(process.group, options, own.device),
                          own));
    });
    if (process.network != nullptr) {
      EXPECT_EQ(process.network->error(), "");
    }
    if (nccl) {
      EXPECT_EQ(nccl->Get(FakeNcclCount::kStrayCalls), 0);
      EXPECT_EQ(nccl->Get(FakeNcclCount::kMisuses), 0);
      nccl_of_ranks = nullptr;
    }
    return;
  }
  const MeetingPlace place;
  Cards cards(job);
  OnThreads(job.size, [&](int rank) {
    Options options = OptionsOf(job, rank);
    options.rendezvous = place.address();
    if (job.over != Over::kRdmaDevices) {
      return body(options, Communicator::Open(options));
    }
    const RankDevice own(job, rank, &cards);
    body(options, OnStream(OpenWithDevice(options, own), own));
  });
}

void RunRanks(const CommJob& job,
              const std::function<void(Communicator&)>& body) {
  // The end of one rank's body must not end a rank that is still joining.
  std::barrier<> opened_by_all(job.size);
  OpenRanks(job, [&](const Options& options, OpenedComm opened) {
    opened_by_all.arrive_and_wait();
    ASSERT_TRUE(opened.ok())
        << OverName(job.over) << ", rank " << options.rank << " of " << job.size
        << ": " << opened.status().ToString();
    body(*opened.value());
  });
}

}  // namespace gradientflow::testing
