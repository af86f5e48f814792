#include "gradientflow/planner/price.h"

#include "gradientflow/planner/json_fields.h"

namespace gradientflow::planner {
namespace {

std::optional<SpotTerms> ReadSpot(Fields& fields) {
  if (fields.IsFalse("spot")) return std::nullopt;
  SpotTerms spot;
  if (fields.Has("spot") && !fields.IsObject("spot")) {
    fields.Expected("spot",
                    "false, or an object that says what an interruption costs");
  }
  fields.Object("spot", [&](Fields& terms) {
    spot.interruptions_per_node_hour =
        terms.Number("interruptions_per_node_hour");
    spot.checkpoint_interval_seconds =
        terms.Positive("checkpoint_interval_seconds");
    spot.checkpoint_seconds = terms.Number("checkpoint_seconds");
    spot.restart_seconds = terms.Number("restart_seconds");
  });
  return spot;
}

}  // namespace

Result<NodePrice> ParsePrice(std::string_view text) {
  NodePrice price;
  const auto read = [&](Fields& fields) {
    price.currency = fields.Text("currency");
    price.price_per_node_hour = fields.Number("price_per_node_hour");
    price.price_per_gb_out = fields.Number("price_per_gb_out");
    price.spot = ReadSpot(fields);
  };
  GF_RETURN_IF_ERROR(ParseFile(text, "price", &price.measured, read));
  return price;
}

std::string PriceText(const NodePrice& price) {
  nlohmann::ordered_json file = FileHead("price", price.measured);
  file["currency"] = price.currency;
  file["price_per_node_hour"] = price.price_per_node_hour;
  file["price_per_gb_out"] = price.price_per_gb_out;
  file["spot"] = false;
  if (price.spot) {
    file["spot"] = {{"interruptions_per_node_hour",
                     price.spot->interruptions_per_node_hour},
                    {"checkpoint_interval_seconds",
                     price.spot->checkpoint_interval_seconds},
                    {"checkpoint_seconds", price.spot->checkpoint_seconds},
                    {"restart_seconds", price.spot->restart_seconds}};
  }
  return FileText(file);
}

}  // namespace gradientflow::planner
