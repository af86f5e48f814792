#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/status.h"
#include "transports/rdma/verbs_api.h"
#include "transports/remote_places.h"

// Memory that the network card reads and writes by itself. It has to be
// registered, which pins its pages and gives it two keys: one to be named in
// work requests of this rank, and one for those of peers.
namespace gradientflow {

// Zeroed whole pages, huge ones if the kernel has reserved enough. They are
// mapped shared, since a fork makes private pages copy-on-write: this process
// would write to a copy of its own, and the card would go on reading the old
// page. A forked child gets its own copy of the memory.
class CardMemory {
 public:
  static Result<CardMemory> Map(std::size_t bytes);
  CardMemory() = default;
  ~CardMemory();
  CardMemory(CardMemory&& other) noexcept { *this = std::move(other); }
  CardMemory& operator=(CardMemory&& other) noexcept;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  int fd_ = -1;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;  // Whole pages.
};

enum class CardRights : std::uint8_t {
  kRead,           // The card reads the memory, to send it.
  kPeersMayWrite,  // Peers that know its key write there.
};

// The registration of some memory, which must outlive it.
class Registration {
 public:
  // `what` names the memory in errors, which also say what may be done about a
  // limit: kResourceExhausted if memory may not be pinned, else kUnavailable.
  static Result<Registration> Make(const VerbsApi& verbs, ibv_pd* pd,
                                   BufferView memory, CardRights rights,
                                   const std::string& what);
  Registration() = default;
  // Takes over what the card has registered.
  Registration(const VerbsApi& verbs, ibv_mr* mr, BufferView memory)
      : verbs_(&verbs), mr_(mr), memory_(memory) {}
  ~Registration();
  Registration(Registration&& other) noexcept { *this = std::move(other); }
  Registration& operator=(Registration&& other) noexcept;

  bool valid() const { return mr_ != nullptr; }
  bool Covers(const void* data, std::size_t bytes) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory_.data);
    const auto at = reinterpret_cast<std::uintptr_t>(data);
    return at >= begin && at - begin <= memory_.bytes &&
           bytes <= memory_.bytes - (at - begin);
  }
  std::uint32_t local_key() const { return mr_->lkey; }
  std::uint32_t remote_key() const { return mr_->rkey; }
  const std::byte* data() const { return memory_.data; }

 private:
  const VerbsApi* verbs_ = nullptr;
  ibv_mr* mr_ = nullptr;
  BufferView memory_;
};

// Registers memory of an accelerator, to which peers may write. *way gets how:
// by its dma-buf, or by its address, which works if the accelerator's driver
// gives the kernel the pages behind it. kUnavailable says for both why not, and
// what may be done about it. (device_registration.cc)
Result<Registration> RegisterOfDevice(const VerbsApi& verbs, ibv_pd* pd,
                                      const DeviceBuffer& buffer,
                                      std::string* way);

// The memory of others that the card reaches. NOT thread-safe.
class CardReach {
 public:
  // Registers memory, for peers to write to. It stays so until Remove().
  Status Add(const VerbsApi& verbs, ibv_pd* pd, BufferView memory,
             const std::string& what);
  // The same for memory of an accelerator; returns how it is registered.
  Result<std::string> AddDevice(const VerbsApi& verbs, ibv_pd* pd,
                                const DeviceBuffer& buffer);
  void Remove(const std::byte* data);
  // Null if the card does not reach all of it by one registration.
  const Registration* Find(const void* data, std::size_t bytes) const {
    for (const Registration& registration : registrations_) {
      if (registration.Covers(data, bytes)) return &registration;
    }
    return nullptr;
  }

 private:
  std::vector<Registration> registrations_;
};

// Slots of equal size, for what has to be copied because it lies in memory that
// the card does not reach. Each slot has a registration, and so keys, of its
// own: a peer that may write to one cannot reach the others.
//
// Links that want more slots than there are get them in turn, one at a time, so
// that none keeps all of them for its long messages.
// NOT thread-safe.
class CardSlots {
 public:
  struct Slot {
    std::byte* data = nullptr;
    std::uint32_t local_key = 0;
    std::uint32_t remote_key = 0;
    int index = -1;
  };

  static Result<CardSlots> Make(const VerbsApi& verbs, ibv_pd* pd, int slots,
                                std::size_t slot_bytes, CardRights rights,
                                const std::string& what);

  std::size_t slot_bytes() const { return slot_bytes_; }
  // Whether Take() gives `who` a slot now: there are more free ones than others
  // that come first.
  bool HasFor(const void* who) const;
  // Returns a slot, or lets `who` wait for its turn to try once more.
  std::optional<Slot> Take(const void* who);
  // `who` does not wait any more. Every waiting link must call this when it
  // closes, or when it cannot take a slot for another reason: others wait
  // behind it.
  void Leave(const void* who) { std::erase(waiting_, who); }
  void Give(int index) { free_.push_back(index); }

 private:
  CardMemory memory_;
  std::size_t slot_bytes_ = 0;
  std::vector<Registration> registrations_;
  std::vector<int> free_;
  std::vector<const void*> waiting_;  // In the order of their turns.
};

}  // namespace gradientflow
