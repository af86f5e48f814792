// The files of the planner: what is written is read back, and every mistake is
// an error that names its field.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "gradientflow/planner/price.h"
#include "gradientflow/planner/probe.h"
#include "gradientflow/planner/profile.h"
#include "gradientflow/planner/text_file.h"

namespace gradientflow::planner {
namespace {

using Json = nlohmann::ordered_json;

Profile SomeProfile() {
  Profile profile;
  profile.measured = {"a test", "2026-11-24T00:00:00Z", "two tensors"};
  profile.model = "m";
  profile.device = "d";
  profile.batch_samples = 8;
  profile.backward_seconds = {0.2, 0.1, 0.3};
  profile.step_seconds = {0.5, 0.4, 0.6};
  profile.step_spread_fraction = 0.01;
  profile.rank_spread_fraction = 0.02;
  profile.tensors = {{"b", 10, {0.1, 0.1, 0.1}}, {"a", 0, {0.2, 0.1, 0.3}}};
  return profile;
}

PairLevels SomeLevels() {
  PairLevels levels;
  levels.latency_seconds = {1e-5, 2e-5};
  levels.message_seconds = {1e-6, 1e-6};
  levels.reduce_bytes_per_second = {1e10, 9e9};
  levels.bandwidth = {{1 << 17, Direction::kBothWays, 2, 1, {1e9, 8e8}},
                      {1 << 17, Direction::kOneWay, 1, 4, {1e9, 8e8}, 6}};
  return levels;
}

Probe SomeProbe() {
  Probe probe;
  probe.measured = {"a test", "2026-11-24T00:00:00Z", ""};
  probe.hosts = 2;
  probe.memory_bytes_per_second = {2e10, 1e10};
  ProbedPair pair;
  pair.transport = "tcp";
  pair.idle = SomeLevels();
  pair.loaded = SomeLevels();
  pair.loaded->backward_seconds_per_message = Level{1e-5, 1e-4};
  pair.idle.driver_seconds_per_byte = Level{1e-9, 2e-9};
  probe.pass_seconds = Level{1e-4, 2e-4};
  probe.pairs = {pair};
  return probe;
}

NodePrice SomePrice() {
  return {{"a test", "2026-11-24T00:00:00Z", ""},
          "USD",
          3.5,
          0.01,
          SpotTerms{0.02, 900, 20, 180}};
}

// What the parser says about the file once `change` was made to it.
template <typename Parse>
std::string Complaint(const std::string& text, Parse parse,
                      const std::function<void(Json&)>& change) {
  Json file = Json::parse(text);
  change(file);
  return parse(file.dump()).status().message();
}
std::string OfProfile(const std::function<void(Json&)>& change) {
  return Complaint(ProfileText(SomeProfile()), ParseProfile, change);
}
std::string OfProbe(const std::function<void(Json&)>& change) {
  return Complaint(ProbeText(SomeProbe()), ParseProbe, change);
}
std::string OfPrice(const std::function<void(Json&)>& change) {
  return Complaint(PriceText(SomePrice()), ParsePrice, change);
}

TEST(PlannerFiles, WhatIsWrittenIsReadBack) {
  const auto profile = ParseProfile(ProfileText(SomeProfile()));
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_EQ(ProfileText(profile.value()), ProfileText(SomeProfile()));
  EXPECT_EQ(profile.value().tensors[0].elements, 10U);
  EXPECT_EQ(profile.value().measured.note, "two tensors");

  const auto probe = ParseProbe(ProbeText(SomeProbe()));
  ASSERT_TRUE(probe.ok()) << probe.status().message();
  EXPECT_EQ(ProbeText(probe.value()), ProbeText(SomeProbe()));
  EXPECT_EQ(probe.value().pairs[0].idle.bandwidth[1].ranks, 4U);
  EXPECT_EQ(probe.value().pairs[0].idle.bandwidth[0].hosts, 2U);
  EXPECT_EQ(probe.value().pairs[0].idle.bandwidth[1].hosts, 6U);

  const auto price = ParsePrice(PriceText(SomePrice()));
  ASSERT_TRUE(price.ok()) << price.status().message();
  EXPECT_EQ(PriceText(price.value()), PriceText(SomePrice()));
  EXPECT_EQ(price.value().spot->checkpoint_interval_seconds, 900);
  NodePrice stays = SomePrice();
  stays.spot.reset();
  EXPECT_FALSE(ParsePrice(PriceText(stays)).value().spot.has_value());
}

// Every field of the three files is taken away in turn, and every number made
// negative, and huge: the error has its path.
void Walk(const Json& node,
          const std::function<void(const Json::json_pointer&)>& visit,
          const Json::json_pointer& here) {
  if (node.is_object()) {
    for (const auto& [name, value] : node.items()) {
      visit(here / name);
      Walk(value, visit, here / name);
    }
  } else if (node.is_array()) {
    for (std::size_t i = 0; i < node.size(); ++i) {
      Walk(node[i], visit, here / i);
    }
  }
}

template <typename Parse>
void ExpectEveryFieldIsChecked(const std::string& text, Parse parse) {
  const Json whole = Json::parse(text);
  int fields = 0;
  Walk(
      whole,
      [&](const Json::json_pointer& at) {
        const std::string name = at.back();
        const bool optional = name == "note" || name == "loaded" ||
                              name == "rank_spread_fraction" ||
                              name == "backward_seconds_per_message" ||
                              name == "driver_seconds_per_byte" ||
                              name == "pass_seconds" ||
                              // A bandwidth may lack it, a probe may not.
                              (name == "hosts" && at.to_string() != "/hosts");
        Json without = whole;
        without[at.parent_pointer()].erase(name);
        const auto missing = parse(without.dump());
        EXPECT_EQ(missing.ok(), optional) << at.to_string();
        if (!optional) {
          EXPECT_NE(missing.status().message().find(name + ": "),
                    std::string::npos)
              << missing.status().message();
        }
        if (!whole[at].is_number()) return;
        for (const double wrong : {-1.0, 1e300}) {
          Json changed = whole;
          changed[at] = wrong;
          const auto refused = parse(changed.dump());
          ASSERT_FALSE(refused.ok()) << at.to_string();
          EXPECT_NE(refused.status().message().find(name + ": expected"),
                    std::string::npos)
              << refused.status().message();
        }
        ++fields;
      },
      Json::json_pointer());
  EXPECT_GT(fields, 2);
}

TEST(PlannerFiles, EveryFieldIsMissedAndNeitherNegativeNorHuge) {
  ExpectEveryFieldIsChecked(ProfileText(SomeProfile()), ParseProfile);
  ExpectEveryFieldIsChecked(ProbeText(SomeProbe()), ParseProbe);
  ExpectEveryFieldIsChecked(PriceText(SomePrice()), ParsePrice);
}

TEST(PlannerFiles, AnErrorHasThePathOfItsField) {
  EXPECT_EQ(OfProfile([](Json& f) {
              f["tensors"][1]["ready_seconds"]["median"] = -2;
            }),
            "profile: tensors[1].ready_seconds.median: expected a number of at "
            "least 0, seen -2");
  EXPECT_EQ(OfProfile([](Json& f) { f["version"] = 2; }),
            "profile: version: expected 1, seen 2");
  EXPECT_EQ(OfProbe([](Json& f) { f["version"] = 0; }),
            "probe: version: expected 1, seen 0");
  EXPECT_EQ(OfPrice([](Json& f) { f["version"] = "1"; }),
            "price: version: expected a whole number of at least 0, seen "
            "\"1\"");
  EXPECT_EQ(OfPrice([](Json& f) { f["kind"] = "probe"; }),
            "price: kind: expected \"price\", seen \"probe\"");
  EXPECT_EQ(OfPrice([](Json& f) { f["price_per_hour"] = 3; }),
            "price: price_per_hour: no such field in version 1");
  EXPECT_EQ(OfPrice([](Json& f) { f["spot"] = true; }),
            "price: spot: expected false, or an object that says what an "
            "interruption costs, seen true");
  EXPECT_EQ(
      OfPrice([](Json& f) { f["spot"]["checkpoint_interval_seconds"] = 0; }),
      "price: spot.checkpoint_interval_seconds: expected a number above 0, "
      "seen 0");
  EXPECT_EQ(OfProbe([](Json& f) { f["memory_bytes_per_second"]["p99"] = 0.5; }),
            "probe: memory_bytes_per_second.p99: expected at least 1, seen "
            "0.5");
  EXPECT_EQ(OfProfile([](Json& f) {
              f["tensors"][1]["elements"] = std::uint64_t{1} << 40;
            }),
            "profile: tensors[1].elements: expected at most 1099511627776 in "
            "all tensors, seen 1099511627776");
  EXPECT_EQ(OfProbe([](Json& f) {
              f["pairs"][0]["idle"]["bandwidth"][1]["direction"] = "up";
            }),
            "probe: pairs[0].idle.bandwidth[1].direction: expected one_way or "
            "both_ways, seen \"up\"");
}

TEST(PlannerFiles, NumbersFitTogether) {
  EXPECT_EQ(
      OfProfile([](Json& f) { f["step_seconds"]["lower_quartile"] = 0.55; }),
      "profile: step_seconds.lower_quartile: expected at most the "
      "median, seen 0.55");
  EXPECT_EQ(OfProfile([](Json& f) { f["tensors"][0]["elements"] = 1.5; }),
            "profile: tensors[0].elements: expected a whole number of at "
            "least 0, seen 1.5");
  EXPECT_EQ(OfProfile([](Json& f) { f["dtype"] = "int8"; }),
            "profile: dtype: expected float32, float16 or bfloat16, seen "
            "\"int8\"");
  EXPECT_EQ(OfProbe([](Json& f) {
              f["pairs"][0]["idle"]["bandwidth"].erase(0);
            }).find("probe: pairs[0].idle.bandwidth: expected an entry"),
            0U);
  EXPECT_EQ(OfProbe([](Json& f) {
              f["pairs"][0]["idle"]["bandwidth"][1]["hosts"] = 1;
            }),
            "probe: pairs[0].idle.bandwidth[1].hosts: expected a whole number "
            "of at least 2, seen 1");
  EXPECT_EQ(OfProbe([](Json& f) {
              f["pairs"][0]["idle"]["bandwidth"][0]["hosts"] = 4;
            }).find("probe: pairs[0].idle.bandwidth: expected an entry"),
            0U);
  EXPECT_EQ(
      OfProbe([](Json& f) { f["memory_bytes_per_second"]["p99"] = 3e10; }),
      "probe: memory_bytes_per_second.p99: expected at most p50, seen "
      "30000000000.0");
  EXPECT_EQ(OfProbe([](Json& f) { f["pairs"].push_back(f["pairs"][0]); }),
            "probe: pairs[1].class: expected one entry of each class, seen "
            "\"other_host\"");
}

TEST(PlannerFiles, OtherTextIsRefused) {
  EXPECT_EQ(ParseProfile("{").status().message(), "profile: this is not JSON");
  EXPECT_EQ(ParsePrice("[]").status().message(),
            "price: expected an object, seen []");
  EXPECT_FALSE(ReadTextFile("/nowhere/at/all").ok());
  EXPECT_FALSE(WriteTextFile("/nowhere/at/all", "x").ok());
  const std::string path = ::testing::TempDir() + "/planner_file.json";
  ASSERT_TRUE(WriteTextFile(path, PriceText(SomePrice())).ok());
  EXPECT_EQ(ReadTextFile(path).value(), PriceText(SomePrice()));
}

}  // namespace
}  // namespace gradientflow::planner
