#include "gradientflow/planner/price.h"

#include "gradientflow/planner/json_fields.h"

namespace gradientflow::planner {

Result<NodePrice> ParsePrice(std::string_view text) {
  NodePrice price;
  const auto read = [&](Fields& fields) {
    price.currency = fields.Text("currency");
    price.price_per_node_hour = fields.Number("price_per_node_hour");
    price.price_per_gb_out = fields.Number("price_per_gb_out");
    price.spot = fields.Flag("spot");
  };
  GF_RETURN_IF_ERROR(ParseFile(text, "price", &price.measured, read));
  return price;
}

std::string PriceText(const NodePrice& price) {
  nlohmann::ordered_json file = FileHead("price", price.measured);
  file["currency"] = price.currency;
  file["price_per_node_hour"] = price.price_per_node_hour;
  file["price_per_gb_out"] = price.price_per_gb_out;
  file["spot"] = price.spot;
  return FileText(file);
}

}  // namespace gradientflow::planner
