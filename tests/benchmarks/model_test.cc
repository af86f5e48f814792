#include "benchmarks/scaling/model.h"

#include "gtest/gtest.h"

namespace gradientflow::benchmarks {
namespace {

constexpr char kPlan[] = R"({"name": "two", "batch": 32,
    "backward_seconds": 0.5, "rest_seconds": 0.25, "tensors": [
    {"name": "a", "elements": 3, "ready_seconds": 0.5},
    {"name": "b", "elements": 4, "ready_seconds": 0.1}]})";

TEST(Model, HoldsWhatThePlanSays) {
  const Model model = nlohmann::json::parse(kPlan);
  EXPECT_EQ(model.name, "two");
  EXPECT_EQ(model.backward_seconds, 0.5);
  EXPECT_EQ(model.rest_seconds, 0.25);
  EXPECT_EQ(model.elements(), 7U);
  ASSERT_EQ(model.Specs().size(), 2U);
  EXPECT_EQ(model.Specs()[1].name, "b");
  EXPECT_EQ(model.Specs()[1].elements, 4U);
}

TEST(Model, PlanThatLacksAFieldIsRefused) {
  auto plan = nlohmann::json::parse(kPlan);
  plan["tensors"][1].erase("elements");
  EXPECT_THROW(plan.get<Model>(), nlohmann::json::exception);
}

}  // namespace
}  // namespace gradientflow::benchmarks
