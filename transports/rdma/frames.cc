#include "transports/rdma/frames.h"

#include <algorithm>
#include <array>
#include <utility>

#include "gradientflow/base/little_endian.h"
#include "gradientflow/base/str_cat.h"

// Turns frames.h's structs into bytes and back. A peer's bytes are not trusted:
// what is too short, too long, of another version or out of range is kDataLoss,
// and nothing is read beyond its end. All numbers are little-endian.
//
//   kOffer    version (1) | kind (1) | bytes of text (2) | text |
//             queue pair (4) | first packet (4) | LID (2) | MTU (4) |
//             Ethernet? (1) | ring (12) | grants (12) | slots (12) |
//             bytes of a slot (8) | GIDs (1) | per GID: type (1), GID (16)
//   others    version (1) | kind (1) | bytes of text (2) | text
namespace gradientflow {
namespace {

constexpr int kKindShift = 30;
constexpr int kLaneShift = 26;
constexpr int kCreditsShift = 18;
constexpr std::uint32_t kMoreBit = 1U << 17;  // Grant, or filled.
constexpr std::uint32_t kUnused = kMoreBit - 1;
static_assert(kRdmaLanes <= 16 && kRingSlots < 256 &&
              kKindShift == kNoticeBits);

constexpr std::uint8_t kVersion = 2;
constexpr std::size_t kMostTextBytes = 1024;
constexpr std::size_t kGidBytes = 16;

class Writer {
 public:
  template <typename T>
  void Put(T value) {
    std::array<std::byte, sizeof(T)> bytes;
    PutLittleEndian(bytes.data(), value);
    text_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  void Put(const RemotePlace& place) {
    Put(place.address);
    Put(place.key);
  }
  void Put(const std::string& text) { text_ += text; }
  void Put(const RdmaGid& gid) {
    Put(static_cast<std::uint8_t>(gid.type));
    text_.append(reinterpret_cast<const char*>(gid.bytes.data()), kGidBytes);
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

class Reader {
 public:
  explicit Reader(const std::string& text) : text_(text) {}

  template <typename T>
  void Get(T* value) {
    if (const char* const from = Take(sizeof(T)); from != nullptr) {
      *value = GetLittleEndian<T>(reinterpret_cast<const std::byte*>(from));
    }
  }
  void Get(RemotePlace* place) {
    Get(&place->address);
    Get(&place->key);
  }
  void Get(std::string* text, std::size_t bytes) {
    if (const char* const from = Take(bytes); from != nullptr) {
      text->assign(from, bytes);
    }
  }
  void Get(RdmaGid* gid) {
    std::uint8_t type = 0;
    Get(&type);
    ok_ &= type <= IBV_GID_TYPE_ROCE_V2;
    gid->type = static_cast<ibv_gid_type>(type);
    if (const char* const from = Take(kGidBytes); from != nullptr) {
      std::copy_n(from, kGidBytes, gid->bytes.begin());
    }
  }
  // Whether all was there, and nothing else.
  bool AtEnd() const { return ok_ && at_ == text_.size(); }
  bool ok() const { return ok_; }

 private:
  const char* Take(std::size_t bytes) {
    ok_ = ok_ && bytes <= text_.size() - at_;
    if (!ok_) return nullptr;
    at_ += bytes;
    return text_.data() + at_ - bytes;
  }
  const std::string& text_;
  std::size_t at_ = 0;
  bool ok_ = true;
};

void GetOffer(Reader* reader, RailFrame* frame) {
  std::uint8_t ethernet = 0;
  std::uint32_t mtu = 0;
  std::uint8_t gids = 0;
  reader->Get(&frame->address.number);
  reader->Get(&frame->address.psn);
  reader->Get(&frame->address.lid);
  reader->Get(&mtu);
  reader->Get(&ethernet);
  reader->Get(&frame->ring);
  reader->Get(&frame->grants);
  reader->Get(&frame->slots);
  reader->Get(&frame->slot_bytes);
  reader->Get(&gids);
  frame->address.mtu = static_cast<int>(std::min<std::uint32_t>(mtu, 1 << 16));
  frame->ethernet = ethernet != 0;
  for (std::size_t i = 0; i < std::min<std::size_t>(gids, kMostGids); ++i) {
    frame->gids.emplace_back();
    reader->Get(&frame->gids.back());
  }
}

}  // namespace

std::uint32_t Encode(const Immediate& immediate) {
  if (immediate.kind == ImmediateKind::kPlaced) {
    return EncodePlaced(immediate.notice);
  }
  return static_cast<std::uint32_t>(immediate.kind) << kKindShift |
         static_cast<std::uint32_t>(immediate.lane) << kLaneShift |
         static_cast<std::uint32_t>(immediate.credits) << kCreditsShift |
         (immediate.grant || immediate.filled ? kMoreBit : 0);
}

Result<Immediate> DecodeImmediate(std::uint32_t number) {
  Immediate immediate;
  immediate.kind = static_cast<ImmediateKind>(number >> kKindShift);
  if (immediate.kind == ImmediateKind::kPlaced) {
    immediate.notice = NoticeOf(number);
    return immediate;
  }
  immediate.lane = static_cast<int>(number >> kLaneShift & 0xF);
  immediate.credits = static_cast<int>(number >> kCreditsShift & 0xFF);
  const bool more = (number & kMoreBit) != 0;
  immediate.grant = more && immediate.kind == ImmediateKind::kGrant;
  immediate.filled = more && immediate.kind == ImmediateKind::kFrame;
  if (immediate.lane < kRdmaLanes && immediate.credits <= kRingSlots &&
      (number & kUnused) == 0 &&
      (!more || immediate.kind != ImmediateKind::kPiece)) {
    return immediate;
  }
  return Status(
      StatusCode::kDataLoss,
      StrCat("immediate number ", number, ", expected one of a lane below ",
             kRdmaLanes, " with at most ", kRingSlots, " credits"));
}

void Encode(const Grant& grant, std::byte* to) {
  PutLittleEndian(to, grant.there.address);
  PutLittleEndian(to + 8, grant.there.key);
  PutLittleEndian(to + 12, grant.bytes);
}

Grant DecodeGrant(const std::byte* from) {
  Grant grant;
  grant.there.address = GetLittleEndian<std::uint64_t>(from);
  grant.there.key = GetLittleEndian<std::uint32_t>(from + 8);
  grant.bytes = GetLittleEndian<std::uint32_t>(from + 12);
  return grant;
}

std::string Encode(const RailFrame& frame) {
  Writer writer;
  writer.Put(kVersion);
  writer.Put(static_cast<std::uint8_t>(frame.kind));
  const std::string text = frame.text.substr(0, kMostTextBytes);
  writer.Put(static_cast<std::uint16_t>(text.size()));
  writer.Put(text);
  if (frame.kind != RailFrame::Kind::kOffer) return writer.Take();
  writer.Put(frame.address.number);
  writer.Put(frame.address.psn);
  writer.Put(frame.address.lid);
  writer.Put(static_cast<std::uint32_t>(frame.address.mtu));
  writer.Put(static_cast<std::uint8_t>(frame.ethernet));
  writer.Put(frame.ring);
  writer.Put(frame.grants);
  writer.Put(frame.slots);
  writer.Put(frame.slot_bytes);
  writer.Put(static_cast<std::uint8_t>(frame.gids.size()));
  for (const RdmaGid& gid : frame.gids) writer.Put(gid);
  return writer.Take();
}

Result<RailFrame> DecodeRailFrame(const std::string& bytes) {
  Reader reader(bytes);
  RailFrame frame;
  std::uint8_t version = 0;
  std::uint8_t kind = 0;
  std::uint16_t text = 0;
  reader.Get(&version);
  reader.Get(&kind);
  reader.Get(&text);
  reader.Get(&frame.text, text);
  frame.kind = static_cast<RailFrame::Kind>(kind);
  const bool known = version == kVersion && kind >= 1 && kind <= 4;
  if (known && frame.kind == RailFrame::Kind::kOffer) GetOffer(&reader, &frame);
  if (known && reader.AtEnd()) return frame;
  return Status(StatusCode::kDataLoss,
                StrCat("expected an RDMA set-up frame of version ",
                       static_cast<int>(kVersion), ", seen ", bytes.size(),
                       " bytes of version ", static_cast<int>(version),
                       " and kind ", static_cast<int>(kind)));
}

}  // namespace gradientflow
