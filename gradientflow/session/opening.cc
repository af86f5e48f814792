#include "gradientflow/session/opening.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/communicator/agreement.h"
#include "gradientflow/session/claims.h"

namespace gradientflow {
namespace {

// No allgather of a caller has these places.
constexpr std::uint64_t kPlaceOfOpening = 0x6F70656E696E6701;
constexpr std::uint64_t kPlaceOfTexts = 0x6F70656E696E6702;
constexpr std::uint64_t kPlaceOfBuilding = 0x6F70656E696E6703;

// Texts are compared by their hashes, and exchanged only if these differ.
struct OpeningClaim {
  Refusal refusal;
  std::uint64_t settings = 0;  // The hash of the text.
  std::uint64_t text_bytes = 0;
  std::uint64_t job = 0;
  std::uint64_t channel_is_free = 0;
  std::uint64_t own_group = 0;
  std::uint64_t lends_places = 0;
  std::uint64_t unused[2] = {};
};
struct BuildingClaim {
  Refusal refusal;
  std::uint64_t unused[8] = {};
};

ClaimArgs At(std::uint64_t place, CommunicatorCore& core,
             const CallGroup& ranks) {
  return {&core.calls(), ranks.id, ranks.size, place};
}

// Returns the first refusal of a rank; all ranks get the same.
template <typename Claim>
Status FirstRefusal(const std::vector<Claim>& claims, const CallGroup& group) {
  for (int r = 0; r < group.size; ++r) {
    GF_RETURN_IF_ERROR(StatusOf(claims[static_cast<std::size_t>(r)].refusal,
                                StrCat("no session was opened, for rank ",
                                       group.FabricRank(r), " refused: ")));
  }
  return Status();
}

}  // namespace

Result<OpeningTerms> SessionOpening::Agree(const Result<std::string>& text,
                                           const OpeningTerms& mine) {
  OpeningClaim claim;
  if (text.ok()) {
    claim.settings = AgreementHash(text.value());
    claim.text_bytes = text.value().size();
  } else {
    claim.refusal = RefusalOf(text.status());
  }
  claim.job = mine.job;
  claim.channel_is_free = mine.channel_is_free ? 1 : 0;
  claim.own_group = mine.own_group;
  claim.lends_places = mine.lends_places ? 1 : 0;
  const Result<std::vector<OpeningClaim>> all =
      GatherClaims(At(kPlaceOfOpening, core_, ranks_), claim);
  if (!text.ok()) return text.status();
  if (!all.ok()) return all.status();
  GF_RETURN_IF_ERROR(FirstRefusal(all.value(), ranks_));
  const OpeningClaim& first = all.value()[0];
  OpeningTerms terms = {true, true, 0, first.job};
  bool same = true;
  for (const OpeningClaim& other : all.value()) {
    same &= other.settings == first.settings;
    terms.channel_is_free &= other.channel_is_free != 0;
    terms.lends_places &= other.lends_places != 0;
    terms.own_group =
        std::max(terms.own_group, static_cast<GroupId>(other.own_group));
  }
  if (same) return terms;
  return NameDifference(text.value(), claim.settings != first.settings,
                        first.text_bytes);
}

Status SessionOpening::NameDifference(const std::string& text, bool differs,
                                      std::size_t first_bytes) {
  std::string theirs = ranks_.rank == 0 ? text : std::string(first_bytes, '\0');
  CollectiveCall call;
  call.kind = CollectiveKind::kBroadcast;
  call.output = theirs.data();
  call.count = theirs.size();
  call.dtype = call.wire = DType::kInt8;
  call.group = ranks_.id;
  call.place = kPlaceOfTexts;
  GF_RETURN_IF_ERROR(core_.calls().Run(call));
  BuildingClaim claim;
  if (differs) {
    claim.refusal =
        RefusalOf({StatusCode::kInvalidArgument,
                   FirstDifference({ranks_.FabricRank(0), theirs},
                                   {ranks_.FabricRank(ranks_.rank), text})});
  }
  const Result<std::vector<BuildingClaim>> all =
      GatherClaims(At(kPlaceOfTexts, core_, ranks_), claim);
  if (!all.ok()) return all.status();
  for (const BuildingClaim& other : all.value()) {
    GF_RETURN_IF_ERROR(StatusOf(other.refusal, ""));
  }
  return Status(StatusCode::kInternal, "the ranks differ in nothing");
}

Status SessionOpening::AllAgree(const Status& mine) {
  BuildingClaim claim;
  if (!mine.ok()) claim.refusal = RefusalOf(mine);
  const Result<std::vector<BuildingClaim>> all =
      GatherClaims(At(kPlaceOfBuilding, core_, ranks_), claim);
  if (!mine.ok()) return mine;
  return all.ok() ? FirstRefusal(all.value(), ranks_) : all.status();
}

}  // namespace gradientflow
