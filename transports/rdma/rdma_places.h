#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/status.h"
#include "transports/rdma/card_memory.h"
#include "transports/rdma/rail.h"
#include "transports/remote_places.h"

namespace gradientflow {

class RdmaLink;

struct RdmaPlacesArgs {
  std::vector<std::shared_ptr<Rail>> rails;  // 1 to kMostRails.
  int ranks = 1;
  std::size_t slot_bytes = 0;  // The same on all ranks.
  int notices = 0;  // Placed messages that a peer may have under way.
};

// Memory that peers write to over their RDMA links. Every rail reaches all of
// it, so a message may take any rail that links the two ranks: it takes the one
// on which it is predicted to arrive first.
// NOT thread-safe.
class RdmaPlaces final : public RemotePlaces {
 public:
  static Result<std::shared_ptr<RdmaPlaces>> Create(RdmaPlacesArgs args);
  ~RdmaPlaces() override;

  // From RemotePlaces.
  void SetSink(Sink* sink) override;
  BufferView slots() const override;
  RemotePlace SlotsOf(int peer) const override;
  Result<BufferView> Allocate(std::size_t bytes) override;
  void Free(BufferView memory) override;
  Status Lend(BufferView memory) override;
  void Withdraw(BufferView memory) override;
  Result<std::string> Attach(const DeviceBuffer& buffer) override;
  void Detach(const std::byte* data) override;
  bool Reaches(const void* data, std::size_t bytes) const override;
  RemotePlace NameOf(const void* data) const override;
  void Put(int peer, std::span<const ConstBufferView> pieces, RemotePlace there,
           std::uint32_t notice, Done done) override;

  // For the links.
  // By the key of one rail, which stands as the first one.
  RemotePlace SlotsHere(std::size_t rail) const;
  // `slots` is what SlotsHere() of the peer's rail of that number returns.
  void SetLink(int peer, RdmaLink* link, const RemotePlace& slots);
  void DropLink(int peer, std::size_t rail);
  // Tells the sink. Returns false if there is none.
  bool TellSink(int peer, std::uint32_t notice) {
    if (sink_ == nullptr) return false;
    sink_->OnNotice(peer, notice);
    return true;
  }
  // Keeps a notice for the sink to come. Returns kDataLoss, with what was
  // expected, if there are too many.
  Status KeepNotice(int peer, std::uint32_t notice);

 private:
  struct Peer {
    std::array<RdmaLink*, kMostRails> links = {};  // Null: there is none.
    std::size_t count = 0;                         // Of those that are not.
    RemotePlace slots;
  };
  explicit RdmaPlaces(RdmaPlacesArgs args);
  Status Register(BufferView memory, const std::string& what);
  void Deregister(const std::byte* data);
  static RdmaLink* Quickest(const Peer& peer,
                            std::span<const ConstBufferView> pieces);

  const RdmaPlacesArgs args_;
  CardMemory slots_;
  std::map<const std::byte*, CardMemory> allocated_;
  std::vector<Peer> peers_;
  Sink* sink_ = nullptr;
  std::vector<std::pair<int, std::uint32_t>> early_;
};

}  // namespace gradientflow
