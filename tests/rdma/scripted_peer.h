#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/manual_clock.h"
#include "tests/rdma/fake_verbs.h"
#include "tests/rdma/verbs_end.h"
#include "tests/transports/link_owner.h"
#include "transports/rdma/choose.h"
#include "transports/rdma/devices.h"
#include "transports/rdma/frames.h"
#include "transports/rdma/rail.h"
#include "transports/rdma/rdma_link.h"
#include "transports/rdma/rdma_places.h"

// An RDMA link, rank 0's, whose peer is played by the test: it writes what no
// rank would write. Time passes only when the test says so.
//
//   test ─> ScriptedControl ─> RdmaLink <═ fake devices ═ VerbsEnd <─ test
namespace gradientflow::testing {

// A control link without a peer.
class ScriptedControl final : public Link {
 public:
  struct Told {
    Header header;
    std::string payload;
  };

  const char* kind() const override { return "scripted"; }
  const char* address() const override { return "10.9.0.2:1"; }
  int lanes() const override { return 1; }
  void Send(int lane, const OutMessage& message) override {
    EXPECT_EQ(lane, 0);
    if (closed) return;
    told.push_back({message.header, std::string(reinterpret_cast<const char*>(
                                                    message.payload.data),
                                                message.payload.bytes)});
    dones_.push_back(message.done);
  }
  bool Poll() override {
    for (const Done& done : std::exchange(dones_, {})) done(Status());
    return false;
  }
  void Resume(int lane) override { EXPECT_EQ(lane, 0); }
  bool PrepareToSleep() override { return dones_.empty(); }
  void WakeUp() override {}
  std::size_t queued_messages() const override { return dones_.size(); }
  void Close() override {
    closed = true;
    dones_.clear();
  }

  std::vector<Told> told;
  bool closed = false;

 private:
  std::vector<Done> dones_;
};

inline FakeVerbsOptions ScriptedOptions(ManualClock* clock) {
  FakeVerbsOptions options;
  options.stepped = true;
  options.clock = clock;
  options.delay = std::chrono::microseconds(1);
  options.rnr_is_a_problem = false;  // This peer does what it likes.
  return options;
}

class ScriptedPeer {
 public:
  // Rank 0's device writes `most_bytes` at once.
  explicit ScriptedPeer(std::size_t placed_bytes = 0, int notices = 0,
                        std::size_t most_bytes = std::size_t{1} << 30)
      : fake(2, ScriptedOptions(&clock)),
        end(
            std::in_place, fake.api(1), "fake1", [] {}, EndOptions()) {
    const auto devices = ListRdmaDevices(*fake.api(0));
    RdmaChoice choice = ChooseRails(devices.value(), {}).value().front();
    choice.port.max_message_bytes = most_bytes;
    rail = Rail::Open({fake.api(0), choice, 1,
                       kImmediatesWithoutNotices + notices, 0, 4})
               .value();
    if (placed_bytes > 0) {
      places = RdmaPlaces::Create({{rail}, 2, placed_bytes, notices}).value();
    }
    RdmaLinkArgs args;
    args.rank = 0;
    args.peer = 1;
    args.rail = rail;
    auto scripted = std::make_unique<ScriptedControl>();
    control = scripted.get();
    args.control = std::move(scripted);
    args.events = &owner;
    args.clock = &clock;
    args.places = places;
    auto made = std::make_unique<RdmaLink>(std::move(args));
    link = made.get();
    owner.TakeOne(std::move(made));
    slot_bytes = placed_bytes;
  }

  // -- Setting up, step by step.
  void Begin() {
    link->Begin();
    EXPECT_TRUE(rail->Start(owner.poller()).ok());
    ASSERT_EQ(control->told.size(), 1U);
    offer = DecodeRailFrame(control->told[0].payload).value();
    const auto& gids = offer.gids;
    const auto used = std::find_if(gids.begin(), gids.end(), [](auto& gid) {
      return gid.type == IBV_GID_TYPE_ROCE_V2 && gid.is_ipv4();
    });
    ASSERT_NE(used, gids.end());
    VerbsAddress address;
    std::copy(used->bytes.begin(), used->bytes.end(), address.gid.raw);
    address.number = offer.address.number;
    address.psn = offer.address.psn;
    end->Connect(address);
    for (int i = 0; i < 200; ++i) EXPECT_EQ(end->PostReceive(7), 0);
  }
  RailFrame Offer() const {
    RailFrame mine;
    mine.text = "fake1:1";
    const VerbsAddress at = end->address();
    mine.address.number = at.number;
    mine.address.psn = at.psn;
    mine.address.mtu = 1024;
    RdmaGid gid;
    gid.type = IBV_GID_TYPE_ROCE_V2;
    std::copy_n(at.gid.raw, gid.bytes.size(), gid.bytes.begin());
    mine.gids = {gid};
    const std::uint32_t key = end->region()->rkey;
    mine.ring = {end->At(0), key};
    mine.grants = {end->At(kGrantsAt), key};
    mine.slots = {end->At(0), key};
    mine.slot_bytes = slot_bytes;
    return mine;
  }
  void Say(const RailFrame& frame) {
    Deliver(MessageKind::kRail, Encode(frame));
  }
  void Say(RailFrame::Kind kind, const std::string& text = {}) {
    RailFrame frame;
    frame.kind = kind;
    frame.text = text;
    Say(frame);
  }
  // A message on the control link.
  void Deliver(MessageKind kind, const std::string& payload) {
    Header header;
    header.kind = kind;
    header.payload_bytes = payload.size();
    const auto landing = link->OnHeader(1, 0, header);
    if (!landing.ok()) return link->OnDown(1, landing.status());
    ASSERT_FALSE(landing.value().paused);
    std::memcpy(landing.value().data, payload.data(), payload.size());
    link->OnMessage(1, 0, header);
  }
  // What the set-up expects in slot 0; see RdmaHandshake::ProbeOf().
  void Probe() {
    std::uint64_t x =
        std::uint64_t{end->address().number} << 32 | end->address().psn;
    for (std::size_t i = 0; i < kRingSlotBytes; ++i) {
      x = x * 6364136223846793005U + 1442695040888963407U;
      end->memory()[kStageAt + i] = static_cast<char>(x >> 56);
    }
    Write(offer.ring, kRingSlotBytes, 0);
  }
  void SetUp() {
    Begin();
    Say(Offer());
    Say(RailFrame::Kind::kReady);
    Probe();
    Settle([&] { link->PollSetup(); });
    Say(RailFrame::Kind::kPassed);
    ASSERT_EQ(link->outcome(), RdmaLink::Outcome::kWorks)
        << link->why().ToString();
    link->Adopt();
    Settle();
    end->Poll();
  }

  // -- Moving.
  template <typename Poll>
  void Settle(const Poll& poll) {
    for (int i = 0; i < 50; ++i) {
      while (fake.Pending() > 0) fake.Step();
      poll();
    }
  }
  void Settle() {
    Settle([&] { owner.PollOnce(); });
  }

  // -- What the peer writes.
  void Write(RemotePlace to, std::size_t bytes,
             std::optional<std::uint32_t> number, std::size_t from = kStageAt) {
    ibv_sge sge = {end->At(from), static_cast<std::uint32_t>(bytes),
                   end->region()->lkey};
    ibv_send_wr request = {};
    request.opcode = number ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
    request.send_flags = IBV_SEND_SIGNALED;
    request.sg_list = &sge;
    request.num_sge = bytes == 0 ? 0 : 1;
    request.wr.rdma.remote_addr = to.address;
    request.wr.rdma.rkey = to.key;
    if (number) request.imm_data = htonl(*number);
    EXPECT_EQ(end->Post(&request), 0);
    while (fake.Pending() > 0) fake.Step();
    end->Poll();
  }
  // `filled`: a piece was written before.
  void WriteFrame(const Header& header, std::size_t payload_bytes, int lane,
                  std::optional<std::size_t> bytes = {}, bool filled = false) {
    const auto encoded = EncodeHeader(header);
    std::memcpy(&end->memory()[kStageAt], encoded.data(), encoded.size());
    const auto pattern = Pattern(header.tag, payload_bytes);
    std::memcpy(&end->memory()[kStageAt + encoded.size()], pattern.data(),
                pattern.size());
    Immediate immediate;
    immediate.lane = lane;
    immediate.filled = filled;
    Write(offer.ring.At((frames++ % kRingSlots) * kRingSlotBytes),
          bytes.value_or(encoded.size() + payload_bytes), Encode(immediate));
  }
  // A message that fits in the ring.
  void Frame(std::uint64_t tag, std::size_t bytes, int lane = 1,
             MessageKind kind = MessageKind::kData, bool filled = false) {
    Header header;
    header.kind = kind;
    header.tag = tag;
    header.payload_bytes = bytes;
    WriteFrame(header, bytes, lane, {}, filled);
  }
  // The header of one that does not.
  void LongHeader(std::uint64_t tag, std::size_t bytes, int lane = 1) {
    Header header;
    header.tag = tag;
    header.payload_bytes = bytes;
    WriteFrame(header, 0, lane);
  }
  void Number(const Immediate& immediate) { Write({}, 0, Encode(immediate)); }
  void Credits(int credits) {
    Immediate immediate;
    immediate.kind = ImmediateKind::kGrant;
    immediate.credits = credits;
    Number(immediate);
  }
  void Piece(int lane) {
    Immediate immediate;
    immediate.kind = ImmediateKind::kPiece;
    immediate.lane = lane;
    Number(immediate);
  }
  // A grant of the lane's `place`.
  void GiveGrant(int lane, int place, const Grant& grant) {
    std::vector<std::byte> bytes(kGrantBytes);
    Encode(grant, bytes.data());
    std::memcpy(&end->memory()[kStageAt], bytes.data(), bytes.size());
    Immediate immediate;
    immediate.kind = ImmediateKind::kGrant;
    immediate.lane = lane;
    immediate.grant = true;
    Write(offer.grants.At(
              static_cast<std::size_t>(lane * kGrantsPerLane + place) *
              kGrantBytes),
          kGrantBytes, Encode(immediate));
  }
  // The immediate numbers that have come since the last call, or since this
  // peer has written.
  std::vector<Immediate> Numbers() {
    std::vector<Immediate> numbers;
    for (const ibv_wc& wc : end->Poll()) {
      if (wc.opcode != IBV_WC_RECV_RDMA_WITH_IMM) continue;
      numbers.push_back(DecodeImmediate(ntohl(wc.imm_data)).value());
    }
    return numbers;
  }
  // The grant that the link has written for the lane's `place`.
  Grant GrantAt(int lane, int place) {
    return DecodeGrant(reinterpret_cast<const std::byte*>(
        &end->memory()[kGrantsAt +
                       static_cast<std::size_t>(lane * kGrantsPerLane + place) *
                           kGrantBytes]));
  }

  // That the link has ended with this, has given back all slots, and has told
  // the peer.
  void ExpectEnded(StatusCode code, const std::string& text) {
    Settle();
    ASSERT_EQ(owner.down.size(), 1U) << "expected: " << text;
    EXPECT_EQ(owner.down[0].second.code(), code);
    EXPECT_NE(owner.down[0].second.message().find(text), std::string::npos)
        << owner.down[0].second.message();
    EXPECT_NE(owner.down[0].second.message().find("rank 1 (10.9.0.2:1)"),
              std::string::npos)
        << owner.down[0].second.message();
    ExpectAllFree();
  }
  void ExpectAllFree() const {
    for (CardSlots* slots : {&rail->staging(), &rail->landings()}) {
      std::vector<int> taken;
      while (const auto slot = slots->Take(this)) taken.push_back(slot->index);
      slots->Leave(this);
      EXPECT_EQ(taken.size(), 16U);
      for (const int index : taken) slots->Give(index);
    }
  }

  static constexpr std::size_t kGrantsAt = std::size_t{64} << 10;
  static constexpr std::size_t kStageAt = std::size_t{128} << 10;

  ManualClock clock{std::chrono::seconds(1000)};
  FakeVerbs fake;
  std::optional<VerbsEnd> end;  // The peer's.
  std::shared_ptr<Rail> rail;
  std::shared_ptr<RdmaPlaces> places;
  LinkOwner owner;
  RdmaLink* link = nullptr;
  ScriptedControl* control = nullptr;
  RailFrame offer;  // Rank 0's.
  std::size_t slot_bytes = 0;
  std::uint64_t frames = 0;

 private:
  static VerbsEndOptions EndOptions() {
    VerbsEndOptions options;
    options.completions = 1024;
    options.sends = 128;
    options.receives = 256;
    options.bytes = std::size_t{1} << 20;
    return options;
  }
};

}  // namespace gradientflow::testing
