#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/collectives/staged.h"
#include "gradientflow/device/device.h"
#include "tests/collectives/executor_ranks.h"
#include "tests/device/fake_device.h"
#include "transports/remote_places.h"

// Ranks as threads, each with a fake device whose memory collectives reach
// through the host.
namespace gradientflow::testing {

// Small, so that calls have several pieces and wait for staging memory.
inline StagedOptions SmallStaging() {
  StagedOptions options;
  options.piece_bytes = 4096;
  options.pieces_in_flight = 3;
  options.staging_bytes = std::size_t{64} << 10;
  return options;
}

class DeviceRank {
 public:
  explicit DeviceRank(TestRank& host, const FakeOptions& fake = FakeOptions(),
                      const StagedOptions& options = SmallStaging())
      : host_(host), device_(fake) {
    StagedArgs parts;
    parts.inner = &host.executor();
    parts.device = &device_;
    parts.arena = host.arena();
    parts.places = host.places();
    parts.fabric = &host.fabric();
    parts.clock = &clock_;
    parts.group = host.group();
    Result<std::unique_ptr<StagedCollective>> staged =
        StagedCollective::Create(parts, options);
    EXPECT_TRUE(staged.ok()) << staged.status().ToString();
    staged_ = std::move(staged).value();
    Result<std::unique_ptr<Stream>> work = device_.NewStream(false);
    EXPECT_TRUE(work.ok());
    work_ = std::move(work).value();
    Result<std::unique_ptr<Event>> event = device_.NewEvent();
    EXPECT_TRUE(event.ok());
    event_ = std::move(event).value();
  }

  TestRank& host() { return host_; }
  FakeDevice& device() { return device_; }
  StagedCollective& staged() { return *staged_; }
  Stream& work() { return *work_; }  // The caller's.

  // Device memory that holds `bytes`, which the caller's stream writes: the
  // collective's reads come after. `bytes` is lent to the stream.
  DeviceMemory Upload(const std::vector<std::byte>& bytes) {
    Result<DeviceMemory> memory = device_.Allocate(bytes.size());
    EXPECT_TRUE(memory.ok());
    Write(memory.value().get(), bytes);
    return memory.value();
  }
  void Write(std::byte* memory, const std::vector<std::byte>& bytes) {
    EXPECT_TRUE(work_->Copy(memory, bytes.data(), bytes.size()).ok());
    own_copies_ += !bytes.empty();
    Order();
  }
  // Orders the reads of staged() after the work of the caller's stream.
  void Order() {
    EXPECT_TRUE(work_->Record(event_.get()).ok());
    EXPECT_TRUE(staged_->stream().Wait(*event_).ok());
  }

  // The network card reaches the memory from now on.
  void Attach(const DeviceMemory& memory, std::size_t bytes) {
    const Result<DmaBuf> exported = device_.ExportDmaBuf(memory.get(), bytes);
    ASSERT_TRUE(exported.ok()) << exported.status().ToString();
    const DeviceBuffer buffer = {{memory.get(), bytes, device_.id()},
                                 exported.value().fd.get(),
                                 exported.value().offset};
    EXPECT_TRUE(host_.places()->Attach(buffer).ok());
  }

  std::vector<std::byte> Download(const DeviceMemory& memory,
                                  std::size_t bytes) {
    std::vector<std::byte> copy(bytes);
    EXPECT_TRUE(work_->Copy(copy.data(), memory.get(), bytes).ok());
    own_copies_ += bytes > 0;
    EXPECT_TRUE(work_->Synchronize().ok());
    return copy;
  }

  // Copies that would block the host on a GPU, except those above.
  std::uint64_t slow_copies() const {
    return device_.pageable_copies() - own_copies_;
  }

  void Drive(const std::function<bool()>& done) {
    host_.Drive(staged_.get(), done);
  }
  // Starts `call` and drives until it ends.
  Ending Run(const CollectiveCall& call) {
    Ending ending;
    staged_->Start(call, ending.done());
    Drive([&] { return ending.over(); });
    EXPECT_EQ(ending.times, 1);
    return ending;
  }

 private:
  TestRank& host_;
  const SteadyClock clock_;
  FakeDevice device_;
  std::unique_ptr<StagedCollective> staged_;
  std::unique_ptr<Stream> work_;
  std::unique_ptr<Event> event_;
  std::uint64_t own_copies_ = 0;
};

}  // namespace gradientflow::testing
