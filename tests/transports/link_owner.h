#pragma once

#include <dirent.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "gradientflow/base/status.h"
#include "transports/link.h"
#include "transports/poller.h"
#include "transports/wire.h"

// The owner of links in tests: it plays the part of the fabric.
namespace gradientflow::testing {

// Bytes that depend on seed and place, so that any shift or mix-up shows.
std::vector<std::byte> Pattern(std::uint64_t seed, std::size_t bytes);

struct Received {
  int peer = -1;
  int lane = 0;
  Header header;
  std::vector<std::byte> payload;
};

// One end of any number of links: keeps what arrives, owns what it sends, and
// drives the links as a fabric would.
class LinkOwner final : public LinkEvents {
 public:
  LinkOwner() : poller_(std::move(Poller::Create()).value()) {}

  Poller* poller() { return poller_.get(); }
  void Take(std::vector<std::unique_ptr<Link>> links) {
    links_ = std::move(links);
  }
  // Takes the link to rank 1 as the only one.
  void TakeOne(std::unique_ptr<Link> link) {
    links_.clear();
    links_.push_back(nullptr);
    links_.push_back(std::move(link));
  }
  Link& to(int peer) { return *links_[static_cast<std::size_t>(peer)]; }
  void Drop(int peer) { links_[static_cast<std::size_t>(peer)].reset(); }

  // Sends Pattern(seed) of `bytes` bytes with the tag `seed`.
  void Send(int peer, std::uint64_t seed, std::size_t bytes, int lane = 0,
            MessageKind kind = MessageKind::kData) {
    auto sending = std::make_unique<Sending>();
    sending->payload = Pattern(seed, bytes);
    sending->owner = this;
    sending->seed = seed;
    OutMessage message;
    message.header.kind = kind;
    message.header.tag = seed;
    message.header.payload_bytes = bytes;
    message.payload = {sending->payload.data(), bytes, DeviceId{}};
    message.done = {&LinkOwner::OnSent, sending.get(), 0};
    sends_.push_back(std::move(sending));
    to(peer).Send(lane, message);
  }

  bool PollOnce() {
    bool moved = false;
    ++polls_;
    for (auto& link : links_) {
      if (link == nullptr) continue;
      moved |= link->Poll();
      // As a fabric that waits for a single message does.
      const int lane = polls_ % 2 == 0 ? link->LaneToLook(polls_ / 2) : -1;
      if (lane >= 0) moved |= link->Look(lane);
    }
    return poller_->Poll(std::chrono::nanoseconds(0)) || moved;
  }

  // Polls, and blocks when there is nothing to do. Returns false if nothing
  // came for `watchdog`, that is, if a wake-up was lost.
  bool PollOrSleep(std::chrono::nanoseconds watchdog) {
    if (PollOnce()) return true;
    bool may_sleep = true;
    for (auto& link : links_) {
      if (link != nullptr) may_sleep &= link->PrepareToSleep();
    }
    const auto start = std::chrono::steady_clock::now();
    if (may_sleep) {
      ++sleeps;
      poller_->Poll(watchdog);
    }
    for (auto& link : links_) {
      if (link != nullptr) link->WakeUp();
    }
    return std::chrono::steady_clock::now() - start < watchdog;
  }

  // Drives until `done()`; false if a wake-up was lost.
  template <typename Condition>
  bool Await(Condition done) {
    while (!done()) {
      if (!PollOrSleep(std::chrono::seconds(20))) return false;
    }
    return true;
  }

  Result<Landing> OnHeader(int peer, int lane, const Header& header) override {
    ++headers;
    if (!refuse.ok()) return refuse;
    if (pause || (pause_if && pause_if(lane, header))) {
      return Landing{nullptr, true};
    }
    std::vector<std::byte>& landing = arriving_[{peer, lane}];
    landing.assign(header.payload_bytes, std::byte{0xee});
    return Landing{header.payload_bytes > 0 ? landing.data() : nullptr, false};
  }
  void OnMessage(int peer, int lane, const Header& header) override {
    std::vector<std::byte>& landing = arriving_[{peer, lane}];
    if (keep_payloads) {
      received.push_back({peer, lane, header, std::move(landing)});
    }
    landing = {};
    ++messages;
    if (on_message) on_message(header);
  }
  void OnDown(int peer, const Status& why) override {
    down.emplace_back(peer, why);
  }

  std::vector<Received> received;
  std::vector<std::pair<int, Status>> down;
  std::vector<std::pair<std::uint64_t, Status>> sent;  // Tag, how it ended.
  std::size_t messages = 0;
  std::size_t headers = 0;
  std::size_t sleeps = 0;
  bool keep_payloads = true;
  bool pause = false;
  std::function<bool(int lane, const Header& header)> pause_if;
  std::function<void(const Header& header)> on_message;
  Status refuse;

 private:
  struct Sending {
    std::vector<std::byte> payload;
    LinkOwner* owner;
    std::uint64_t seed;
  };
  static void OnSent(void* self, std::uint64_t, std::uint32_t,
                     const Status& status) {
    auto* const sending = static_cast<Sending*>(self);
    sending->owner->sent.emplace_back(sending->seed, status);
    // If the link still read the buffer after this, it would send garbage.
    std::fill(sending->payload.begin(), sending->payload.end(),
              std::byte{0xdd});
  }

  std::unique_ptr<Poller> poller_;
  std::uint64_t polls_ = 0;
  std::map<std::pair<int, int>, std::vector<std::byte>> arriving_;
  std::deque<std::unique_ptr<Sending>> sends_;
  std::vector<std::unique_ptr<Link>> links_;  // Destroyed first.
};

// Drives the owners on this thread until `until`, for 10 s at most. Returns
// whether the condition came true.
inline bool Drive(const std::vector<LinkOwner*>& owners,
                  const std::function<bool()>& until) {
  const auto give_up =
      std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!until()) {
    if (std::chrono::steady_clock::now() > give_up) return false;
    bool moved = false;
    for (LinkOwner* owner : owners) moved |= owner->PollOnce();
    if (!moved && !until()) {
      owners[0]->PollOrSleep(std::chrono::milliseconds(1));
    }
  }
  return true;
}

// Whether the payload is the Pattern() of the message's tag and length.
bool Intact(const Received& message);

// The number of entries of a directory, without "." and "..".
inline std::size_t CountEntries(const char* path) {
  DIR* const dir = ::opendir(path);
  if (dir == nullptr) return 0;
  std::size_t count = 0;
  while (const dirent* entry = ::readdir(dir)) {
    count += entry->d_name[0] != '.' ? 1 : 0;
  }
  ::closedir(dir);
  return count;
}

}  // namespace gradientflow::testing
