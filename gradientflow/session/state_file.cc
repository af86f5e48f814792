#include "gradientflow/session/state_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

static_assert(std::endian::native == std::endian::little,
              "states are written and read as the machine stores them");

constexpr std::string_view kMagic{"GFSTATE\0", 8};
constexpr std::uint32_t kVersion = 3;
constexpr std::size_t kHeaderBytes = 24;
constexpr std::size_t kSectionBytes = 16;  // In front of the name.
constexpr std::size_t kChecksumBytes = 8;

struct Section {
  std::string_view name;
  std::span<const std::byte> payload;
};
// The order of the sections in a state.
enum SectionIndex : std::uint8_t {
  kSettings,
  kJob,
  kRank,
  kStep,
  kLossScale,
  kSelection,
  kResidual,
  kMomentum,
  kSections
};
constexpr std::array<std::string_view, kSections> kSectionNames = {
    "settings",   "job",       "rank",     "step",
    "loss_scale", "selection", "residual", "momentum"};

template <typename T>
T Load(std::span<const std::byte> bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

void Append(std::vector<std::byte>* out, std::span<const std::byte> bytes) {
  out->insert(out->end(), bytes.begin(), bytes.end());
}

template <typename T>
void AppendValue(std::vector<std::byte>* out, T value) {
  Append(out, std::as_bytes(std::span(&value, 1)));
}

std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string_view TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Status Damaged(std::string message) {
  return {StatusCode::kDataLoss, "saved state: " + std::move(message)};
}

// Damage comes before the version, so that a damaged version number is reported
// as damage.
Status CheckFrame(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes + kChecksumBytes) {
    return Damaged(StrCat("expected at least ", kHeaderBytes + kChecksumBytes,
                          " bytes, seen ", bytes.size()));
  }
  if (TextOf(bytes.first(kMagic.size())) != kMagic) {
    return Damaged("expected \"GFSTATE\" in front, seen other bytes");
  }
  const auto total_bytes = Load<std::uint64_t>(bytes, 16);
  if (total_bytes != bytes.size()) {
    return Damaged(StrCat("expected ", total_bytes, " bytes, as it says, seen ",
                          bytes.size()));
  }
  const std::size_t body_bytes = bytes.size() - kChecksumBytes;
  const auto expected = Load<std::uint64_t>(bytes, body_bytes);
  const std::uint64_t seen = StateChecksum(bytes.first(body_bytes));
  if (seen != expected) {
    return Damaged(StrCat("expected checksum ", std::hex, expected, ", seen ",
                          seen, ": the bytes have changed"));
  }
  const auto version = Load<std::uint32_t>(bytes, 8);
  if (version != kVersion) {
    return {StatusCode::kInvalidArgument,
            StrCat("saved state: expected version ", kVersion, ", seen ",
                   version, ": another release saved it")};
  }
  return {};
}

// Takes the next section off the front of `rest`.
Result<Section> TakeSection(std::span<const std::byte>* rest) {
  if (rest->size() < kSectionBytes) {
    return Damaged(StrCat("expected a section of at least ", kSectionBytes,
                          " bytes, seen ", rest->size()));
  }
  const std::size_t name_bytes = Load<std::uint32_t>(*rest, 0);
  const auto reserved = Load<std::uint32_t>(*rest, 4);
  const auto payload_bytes = Load<std::uint64_t>(*rest, 8);
  const std::span<const std::byte> body = rest->subspan(kSectionBytes);
  if (reserved != 0) {
    return Damaged(
        StrCat("expected 0 in a section's reserved field, seen ", reserved));
  }
  if (name_bytes > body.size() || payload_bytes > body.size() - name_bytes) {
    return Damaged(StrCat("expected a section with a name of ", name_bytes,
                          " and a payload of ", payload_bytes,
                          " bytes, seen only ", body.size(), " bytes"));
  }
  *rest = body.subspan(name_bytes + payload_bytes);
  return Section{TextOf(body.first(name_bytes)),
                 body.subspan(name_bytes, payload_bytes)};
}

Result<std::array<std::span<const std::byte>, kSections>> TakeSections(
    std::span<const std::byte> rest) {
  std::array<std::span<const std::byte>, kSections> payloads;
  for (std::size_t i = 0; i < kSections; ++i) {
    const Result<Section> section = TakeSection(&rest);
    if (!section.ok()) return section.status();
    // The name is not printed, because it may be anything.
    if (section.value().name != kSectionNames[i]) {
      return Damaged(StrCat("expected section \"", kSectionNames[i],
                            "\" at place ", i, ", seen another"));
    }
    payloads[i] = section.value().payload;
  }
  if (!rest.empty()) {
    return Damaged(StrCat("expected nothing after the last section, seen ",
                          rest.size(), " bytes"));
  }
  return payloads;
}

Status CheckSize(SectionIndex index, std::size_t expected, std::size_t seen) {
  if (expected == seen) return {};
  return Damaged(StrCat("section \"", kSectionNames[index], "\": expected ",
                        expected, " bytes, seen ", seen));
}

// Takes the next line, without its line feed, off the front of `text`.
std::string_view TakeLine(std::string_view* text) {
  const std::size_t end = text->find('\n');
  const std::string_view line = text->substr(0, end);
  text->remove_prefix(end == std::string_view::npos ? text->size() : end + 1);
  return line;
}

}  // namespace

// Each round is a bijection of the sum for a given word, and of the word for a
// given sum, so damage within one word always changes the checksum.
std::uint64_t StateChecksum(std::span<const std::byte> bytes) {
  std::uint64_t sum = 0x6a09e667f3bcc909U ^ bytes.size();
  while (!bytes.empty()) {
    std::uint64_t word = 0;
    const std::size_t n = std::min(bytes.size(), sizeof(word));
    std::memcpy(&word, bytes.data(), n);
    sum = std::rotl((sum ^ word) * 0x9e3779b97f4a7c15U, 29);
    bytes = bytes.subspan(n);
  }
  return sum ^ (sum >> 32);
}

std::size_t StateBytes(const StatePayloads& payloads) {
  std::size_t total = kHeaderBytes + kChecksumBytes + payloads.settings +
                      sizeof(SavedState::job) + sizeof(SavedState::rank) +
                      sizeof(SavedState::step) +
                      sizeof(SavedState::loss_scale) + payloads.selection +
                      payloads.residual + payloads.momentum;
  for (const std::string_view name : kSectionNames) {
    total += kSectionBytes + name.size();
  }
  return total;
}

std::vector<std::byte> WriteState(const SavedState& state) {
  const std::array<std::span<const std::byte>, kSections> payloads = {
      BytesOf(state.settings),
      std::as_bytes(std::span(&state.job, 1)),
      std::as_bytes(std::span(&state.rank, 1)),
      std::as_bytes(std::span(&state.step, 1)),
      std::as_bytes(std::span(&state.loss_scale, 1)),
      state.selection,
      state.residual,
      state.momentum,
  };
  const std::size_t total_bytes =
      StateBytes({state.settings.size(), state.selection.size(),
                  state.residual.size(), state.momentum.size()});
  std::vector<std::byte> out;
  out.reserve(total_bytes);
  Append(&out, BytesOf(kMagic));
  AppendValue(&out, kVersion);
  AppendValue(&out, std::uint32_t{kSections});
  AppendValue(&out, std::uint64_t{total_bytes});
  for (std::size_t i = 0; i < kSections; ++i) {
    AppendValue(&out, static_cast<std::uint32_t>(kSectionNames[i].size()));
    AppendValue(&out, std::uint32_t{0});
    AppendValue(&out, std::uint64_t{payloads[i].size()});
    Append(&out, BytesOf(kSectionNames[i]));
    Append(&out, payloads[i]);
  }
  AppendValue(&out, StateChecksum(out));
  return out;
}

Result<SavedState> ReadState(std::span<const std::byte> bytes) {
  GF_RETURN_IF_ERROR(CheckFrame(bytes));
  const auto sections = Load<std::uint32_t>(bytes, 12);
  if (sections != kSections) {
    return Damaged(
        StrCat("expected ", int{kSections}, " sections, seen ", sections));
  }
  const auto payloads = TakeSections(bytes.subspan(
      kHeaderBytes, bytes.size() - kHeaderBytes - kChecksumBytes));
  if (!payloads.ok()) return payloads.status();
  const auto& payload = payloads.value();
  GF_RETURN_IF_ERROR(
      CheckSize(kJob, sizeof(SavedState::job), payload[kJob].size()));
  GF_RETURN_IF_ERROR(
      CheckSize(kRank, sizeof(SavedState::rank), payload[kRank].size()));
  GF_RETURN_IF_ERROR(
      CheckSize(kStep, sizeof(SavedState::step), payload[kStep].size()));
  GF_RETURN_IF_ERROR(CheckSize(kLossScale, sizeof(SavedState::loss_scale),
                               payload[kLossScale].size()));
  return SavedState{
      .settings = TextOf(payload[kSettings]),
      .job = Load<std::uint64_t>(payload[kJob], 0),
      .rank = Load<std::uint32_t>(payload[kRank], 0),
      .step = Load<std::uint64_t>(payload[kStep], 0),
      .loss_scale = Load<float>(payload[kLossScale], 0),
      .selection = payload[kSelection],
      .residual = payload[kResidual],
      .momentum = payload[kMomentum],
  };
}

Status CheckSettings(std::string_view expected, std::string_view seen) {
  while (!expected.empty() || !seen.empty()) {
    const std::string_view expected_line = TakeLine(&expected);
    const std::string_view seen_line = TakeLine(&seen);
    if (expected_line != seen_line) {
      return {StatusCode::kInvalidArgument,
              StrCat("saved state is of other settings: expected \"",
                     expected_line, "\", seen \"", seen_line, "\"")};
    }
  }
  return {};
}

}  // namespace gradientflow
