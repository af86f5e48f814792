#include "tests/transports/thread_places.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string_view>
#include <thread>
#include <utility>

#include "gradientflow/base/str_cat.h"

//   Put()          rank r's thread: a flight joins the lane to its peer
//   DeliverSome()  any thread: reads the pieces, writes them to their place,
//                  and leaves a notice for the peer and a Done for rank r
//   Tell()         their own threads: the sink gets the notice, the Done runs
namespace gradientflow::testing {
namespace {

constexpr std::size_t kAlignment = 4096;
// The key of memory that is reached without having been registered.
constexpr std::uint32_t kAnyKey = 1;
constexpr std::uint64_t kFirstAddress = std::uint64_t{0xADD} << 32;

// A link of another kind that polls the places, too.
class PlacedLink final : public Link {
 public:
  PlacedLink(std::unique_ptr<Link> inner, int peer, ThreadPlaces& places)
      : inner_(std::move(inner)), peer_(peer), places_(places) {}
  ~PlacedLink() override { Stop(); }

  const char* kind() const override { return inner_->kind(); }
  const char* address() const override { return inner_->address(); }
  int lanes() const override { return inner_->lanes(); }
  int DataLane(std::uint64_t spread) override {
    return inner_->DataLane(spread);
  }
  void Send(int lane, const OutMessage& message) override {
    places_.CountMessage();
    inner_->Send(lane, message);
  }
  bool Poll() override {
    const bool moved = places_.Poll();
    return inner_->Poll() || moved;
  }
  void Resume(int lane) override { inner_->Resume(lane); }
  bool sockets_carry_data() const override {
    return inner_->sockets_carry_data();
  }
  // Nothing wakes a rank to which something has been put, so it lets another
  // one work, of which there are more than cores.
  bool PrepareToSleep() override {
    std::this_thread::yield();
    return false;
  }
  void WakeUp() override {}
  std::size_t queued_messages() const override {
    return inner_->queued_messages() + places_.undelivered(peer_);
  }
  void Close() override { Stop(); }

 private:
  void Stop() {
    places_.Close(peer_);
    inner_->Close();
  }

  const std::unique_ptr<Link> inner_;
  const int peer_;
  ThreadPlaces& places_;
};

}  // namespace

PlacesNetwork::Flight PlacesNetwork::Lane::Pop(std::uint64_t dice) {
  std::swap(flights[next], flights[next + dice % size()]);
  const Flight flight = flights[next++];
  if (size() == 0) {
    flights.clear();
    next = 0;
  }
  return flight;
}

PlacesNetwork::PlacesNetwork(int size, std::size_t slot_bytes,
                             std::uint64_t seed)
    : size_(size),
      random_(seed),
      lanes_(static_cast<std::size_t>(size) * static_cast<std::size_t>(size)),
      regions_(static_cast<std::size_t>(size)),
      held_(static_cast<std::size_t>(size)) {
  busy_.reserve(lanes_.size());
  for (int r = 0; r < size; ++r) {
    ranks_.push_back(std::make_unique<ThreadPlaces>(*this, r, slot_bytes));
  }
}

PlacesNetwork::~PlacesNetwork() = default;

void PlacesNetwork::Reserve(std::size_t puts) {
  const std::lock_guard lock(mutex_);
  for (Lane& lane : lanes_) lane.flights.reserve(puts);
  for (auto& rank : ranks_) {
    rank->inbox_.reserve(puts);
    rank->telling_.reserve(puts);
    rank->due_.reserve(puts);
    rank->running_.reserve(puts);
  }
}

std::size_t PlacesNetwork::undelivered(int from, int to) const {
  const std::lock_guard lock(mutex_);
  return lanes_[Index(from, to)].size();
}

std::string PlacesNetwork::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

void PlacesNetwork::Wrong(const std::string& what) {
  if (error_.empty()) error_ = what;
}

const PlacesNetwork::Region* PlacesNetwork::Find(int rank, const void* data,
                                                 std::size_t bytes) const {
  const auto* at = static_cast<const std::byte*>(data);
  for (const Region& region : regions_[static_cast<std::size_t>(rank)]) {
    if (at >= region.data && bytes <= region.bytes &&
        at - region.data <= static_cast<std::ptrdiff_t>(region.bytes - bytes)) {
      return &region;
    }
  }
  return nullptr;
}

void PlacesNetwork::DeliverSome(unsigned flights) {
  for (; flights > 0 && !busy_.empty(); --flights) {
    std::swap(busy_[random_() % busy_.size()], busy_.back());
    const std::size_t index = busy_.back();
    const Flight flight = lanes_[index].Pop(random_());
    if (lanes_[index].size() == 0) busy_.pop_back();
    Deliver(static_cast<int>(index / ranks_.size()),
            static_cast<int>(index % ranks_.size()), flight);
  }
  flying_ = !busy_.empty();
}

std::byte* PlacesNetwork::At(int rank, RemotePlace there, std::size_t bytes) {
  if (there.key == kAnyKey && places(rank).reaches_all_) {
    return reinterpret_cast<std::byte*>(there.address);  // NOLINT
  }
  for (const Region& region : regions_[static_cast<std::size_t>(rank)]) {
    if (region.key == there.key && there.address >= region.address &&
        there.address + bytes <= region.address + region.bytes) {
      return region.data + (there.address - region.address);
    }
  }
  return nullptr;
}

void PlacesNetwork::Write(int rank, std::byte* to,
                          const ConstBufferView& piece) {
  const Region* const region = Find(rank, to, piece.bytes);
  if (region == nullptr || !region->of_device) {
    std::memcpy(to, piece.data, piece.bytes);
    return;
  }
  held_[static_cast<std::size_t>(rank)].push_back(
      {to, {piece.data, piece.data + piece.bytes}});
}

void PlacesNetwork::Deliver(int from, int to, const Flight& flight) {
  std::size_t bytes = 0;
  for (const ConstBufferView& piece : flight.pieces) {
    if (piece.bytes > 0 && !places(from).reaches_all_ &&
        Find(from, piece.data, piece.bytes) == nullptr) {
      return Wrong(StrCat("rank ", from, " puts ", piece.bytes,
                          " bytes of memory that is not registered"));
    }
    bytes += piece.bytes;
  }
  std::byte* at = At(to, flight.there, bytes);
  if (at == nullptr) {
    return Wrong(StrCat("rank ", from, " puts ", bytes, " bytes to key ",
                        flight.there.key, " of rank ", to,
                        ", outside of its memory"));
  }
  for (const ConstBufferView& piece : flight.pieces) {
    if (piece.bytes > 0) Write(to, at, piece);
    at += piece.bytes;
  }
  places(to).inbox_.push_back({from, flight.notice});
  places(to).mail_ = true;
  if (flight.done.run != nullptr) {
    places(from).mail_ = true;
    places(from).due_.push_back(
        {to, flight.pieces, places(from).HashOf(flight.pieces), flight.done});
  }
}

ThreadPlaces::ThreadPlaces(PlacesNetwork& network, int rank,
                           std::size_t slot_bytes)
    : network_(network), rank_(rank) {
  slots_ = Allocate(slot_bytes).value();
}

Result<BufferView> ThreadPlaces::Allocate(std::size_t bytes) {
  std::size_t room = bytes + kAlignment;
  memory_.push_back(std::make_unique<std::byte[]>(room));
  void* begin = memory_.back().get();
  std::align(kAlignment, bytes, begin, room);
  Register(begin, bytes);
  return BufferView{static_cast<std::byte*>(begin), bytes, {}};
}

void ThreadPlaces::Free(BufferView memory) {
  Deregister(memory.data);
  std::erase_if(memory_, [&](const auto& block) {
    return block.get() + kAlignment >= memory.data &&
           block.get() <= memory.data;
  });
}

Status ThreadPlaces::Lend(BufferView memory) {
  Register(memory.data, memory.bytes);
  return Status();
}

RemotePlace ThreadPlaces::SlotsOf(int peer) const {
  const std::lock_guard lock(network_.mutex_);
  const auto& slots = network_.regions_[static_cast<std::size_t>(peer)].front();
  return {slots.address, slots.key};
}

bool ThreadPlaces::Reaches(const void* data, std::size_t bytes) const {
  const std::lock_guard lock(network_.mutex_);
  return reaches_all_ || network_.Find(rank_, data, bytes) != nullptr;
}

RemotePlace ThreadPlaces::NameOf(const void* data) const {
  const std::lock_guard lock(network_.mutex_);
  const PlacesNetwork::Region* region = network_.Find(rank_, data, 1);
  if (region == nullptr && reaches_all_) {
    return {reinterpret_cast<std::uintptr_t>(data), kAnyKey};
  }
  if (region == nullptr) {
    network_.Wrong(StrCat("rank ", rank_, " names memory that it has not"));
    return {};
  }
  const auto offset = static_cast<const std::byte*>(data) - region->data;
  return {region->address + static_cast<std::uint64_t>(offset), region->key};
}

void ThreadPlaces::Put(int peer, std::span<const ConstBufferView> pieces,
                       RemotePlace there, std::uint32_t notice, Done done) {
  const std::lock_guard lock(network_.mutex_);
  PlacesNetwork::Lane& lane = network_.LaneOf(rank_, peer);
  if (peer == rank_ || pieces.empty() || pieces.size() > 2 ||
      notice >> kNoticeBits != 0) {
    return network_.Wrong(StrCat("rank ", rank_, " puts ", pieces.size(),
                                 " pieces to rank ", peer, ", notice ",
                                 notice));
  }
  if (lane.closed) return;
  PlacesNetwork::Flight flight = {{}, there, notice, done};
  std::copy(pieces.begin(), pieces.end(), flight.pieces.begin());
  if (lane.size() == 0) network_.busy_.push_back(network_.Index(rank_, peer));
  lane.flights.push_back(flight);
  network_.flying_ = true;
  counts_.waiting = std::max(counts_.waiting, ++lane.untold);
  ++counts_.puts;
  for (const ConstBufferView& piece : pieces) {
    counts_.bytes += piece.bytes;
    if (piece.bytes == 0) continue;
    const PlacesNetwork::Region* region =
        network_.Find(rank_, piece.data, piece.bytes);
    if (region == nullptr) continue;
    if (region->data == slots_.data) counts_.from_slots += piece.bytes;
    if (region->of_device) counts_.from_device += piece.bytes;
  }
}

void ThreadPlaces::ReachAll() {
  const std::lock_guard lock(network_.mutex_);
  reaches_all_ = true;
}

Result<std::string> ThreadPlaces::Attach(const DeviceBuffer& buffer) {
  if (buffer.dma_buf < 0) {
    return Status(StatusCode::kUnavailable, buffer.no_dma_buf);
  }
  Register(buffer.memory.data, buffer.memory.bytes, /*of_device=*/true);
  return std::string("dma-buf");
}

void ThreadPlaces::Flush() {
  const std::lock_guard lock(network_.mutex_);
  auto& held = network_.held_[static_cast<std::size_t>(rank_)];
  for (const PlacesNetwork::Held& write : held) {
    std::copy(write.bytes.begin(), write.bytes.end(), write.to);
  }
  held.clear();
}

void ThreadPlaces::Register(void* data, std::size_t bytes, bool of_device) {
  const std::lock_guard lock(network_.mutex_);
  const std::uint32_t key = network_.next_key_++;
  network_.regions_[static_cast<std::size_t>(rank_)].push_back(
      {static_cast<std::byte*>(data), bytes,
       kFirstAddress + (std::uint64_t{key} << 36), key, of_device});
}

void ThreadPlaces::Deregister(const void* data) {
  const std::lock_guard lock(network_.mutex_);
  auto& regions = network_.regions_[static_cast<std::size_t>(rank_)];
  const auto region =
      std::find_if(regions.begin(), regions.end(),
                   [&](const auto& r) { return r.data == data; });
  const auto check = [&](const std::array<ConstBufferView, 2>& pieces) {
    for (const ConstBufferView& piece : pieces) {
      if (piece.data < region->data ||
          piece.data >= region->data + region->bytes) {
        continue;
      }
      network_.Wrong(StrCat("rank ", rank_, " takes back memory that is lent"));
    }
  };
  std::erase_if(network_.held_[static_cast<std::size_t>(rank_)],
                [&](const PlacesNetwork::Held& write) {
                  return write.to >= region->data &&
                         write.to < region->data + region->bytes;
                });
  for (int peer = 0; peer < network_.size_; ++peer) {
    const PlacesNetwork::Lane& lane = network_.LaneOf(rank_, peer);
    for (std::size_t i = lane.next; i < lane.flights.size(); ++i) {
      check(lane.flights[i].pieces);
    }
  }
  for (const Due& due : due_) check(due.pieces);
  regions.erase(region);
}

// Peers may write to other memory, as the answer to what was delivered.
std::size_t ThreadPlaces::HashOf(
    const std::array<ConstBufferView, 2>& pieces) const {
  std::size_t hash = 0;
  for (const ConstBufferView& piece : pieces) {
    if (piece.data < slots_.data || piece.data >= slots_.data + slots_.bytes) {
      continue;
    }
    const std::string_view text(reinterpret_cast<const char*>(piece.data),
                                piece.bytes);
    hash = hash * 31 + std::hash<std::string_view>()(text);
  }
  return hash;
}

bool ThreadPlaces::Poll() {
  if (network_.flying_) {
    const std::lock_guard lock(network_.mutex_);
    network_.DeliverSome(network_.random_() % 3);
  }
  return mail_ && Tell();
}

bool ThreadPlaces::Tell(bool all) {
  if (sink_ == nullptr) return false;
  {
    const std::lock_guard lock(network_.mutex_);
    if (inbox_.empty() && due_.empty()) return false;
    telling_.swap(inbox_);
    for (const Told& one : telling_) --network_.LaneOf(one.peer, rank_).untold;
    const std::size_t due = due_.size();
    const auto some =
        due_.begin() +
        static_cast<std::ptrdiff_t>(all ? due : network_.random_() % (due + 1));
    running_.assign(due_.begin(), some);
    due_.erase(due_.begin(), some);
    mail_ = !due_.empty();
  }
  for (const Due& due : running_) {
    if (HashOf(due.pieces) != due.hash) {
      const std::lock_guard lock(network_.mutex_);
      network_.Wrong(StrCat("rank ", rank_, " changes memory that is lent"));
    }
    due.done(Status());
  }
  for (const Told& one : telling_) sink_->OnNotice(one.peer, one.notice);
  counts_.done += running_.size();
  counts_.notices += telling_.size();
  const bool any = !running_.empty() || !telling_.empty();
  running_.clear();
  telling_.clear();
  return any;
}

void ThreadPlaces::Close(int peer) {
  const std::lock_guard lock(network_.mutex_);
  for (const std::size_t index :
       {network_.Index(rank_, peer), network_.Index(peer, rank_)}) {
    PlacesNetwork::Lane& lane = network_.lanes_[index];
    lane.closed = true;
    lane.flights.clear();
    lane.next = 0;
    std::erase(network_.busy_, index);
  }
  std::erase_if(due_, [&](const Due& due) { return due.peer == peer; });
}

std::vector<std::unique_ptr<Link>> WithPlaces(
    std::vector<std::unique_ptr<Link>> links, ThreadPlaces& places) {
  for (std::size_t r = 0; r < links.size(); ++r) {
    if (links[r] == nullptr) continue;
    links[r] = std::make_unique<PlacedLink>(std::move(links[r]),
                                            static_cast<int>(r), places);
  }
  return links;
}

}  // namespace gradientflow::testing
