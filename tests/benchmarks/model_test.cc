#include "benchmarks/scaling/model.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>

#include "gtest/gtest.h"
#include "tests/benchmarks/temporary_file.h"

namespace gradientflow::benchmarks {
namespace {

constexpr char kData[] = "benchmarks/data";

Model Load(const std::string& name, int batch = 128) {
  auto model = LoadModel(kData, name, batch);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return model.ok() ? model.value() : Model{};
}

TEST(Model, TablesHaveThePublishedNumbersOfTensorsAndParameters) {
  const std::map<std::string, std::pair<std::size_t, std::size_t>> published = {
      {"alexnet_bn", {26, 60967976}}, {"resnet50_gf", {153, 25549352}},
      {"alexnet", {16, 61100840}},    {"resnet50", {161, 25557032}},
      {"resnet101", {314, 44549160}}, {"vgg16", {32, 138357544}}};
  ASSERT_EQ(ModelNames().size(), published.size());
  for (const std::string& name : ModelNames()) {
    const Model model = Load(name);
    EXPECT_EQ(model.tensors.size(), published.at(name).first) << name;
    EXPECT_EQ(model.elements(), published.at(name).second) << name;
  }
}

TEST(Model, MeasuredTimesAreThoseOfTheProfiles) {
  const Model alexnet = Load("alexnet_bn");
  EXPECT_TRUE(alexnet.measured);
  EXPECT_NEAR(alexnet.backward_seconds, 15.426e-3, 1e-9);
  EXPECT_NEAR(alexnet.iteration_seconds(), 34.7e-3, 1e-9);
  EXPECT_EQ(alexnet.tensors.back().name, "fc8.bias");
  EXPECT_NEAR(alexnet.tensors.back().ready_seconds, 0.271e-3, 1e-9);
  const Model resnet = Load("resnet50_gf");
  EXPECT_NEAR(resnet.backward_seconds, 121.046e-3, 1e-9);
  EXPECT_NEAR(resnet.iteration_seconds(), 206e-3, 1e-9);
}

TEST(Model, DerivedTimesFollowTheOperationsAtTheFamilysRate) {
  // alexnet_bn: 1,449,977,416 forward operations, 15.426 ms of backward.
  const Model vgg = Load("vgg16");
  EXPECT_FALSE(vgg.measured);
  const double operations = 30954148840;
  EXPECT_NEAR(vgg.backward_seconds, 15.426e-3 * operations / 1449977416, 1e-6);
  EXPECT_NEAR(vgg.rest_seconds / vgg.backward_seconds, (34.7 - 15.426) / 15.426,
              1e-6);
}

TEST(Model, GradientsOfDerivedModelsBecomeReadyLastToFirst) {
  for (const std::string& name : ModelNames()) {
    const Model model = Load(name);
    for (std::size_t i = 1; i < model.tensors.size(); ++i) {
      EXPECT_LE(model.tensors[i].ready_seconds,
                model.tensors[i - 1].ready_seconds)
          << name << " tensor " << i;
    }
    EXPECT_DOUBLE_EQ(model.tensors[0].ready_seconds, model.backward_seconds);
  }
}

TEST(Model, TimesScaleWithTheBatch) {
  const Model whole = Load("alexnet_bn", 128);
  const Model half = Load("alexnet_bn", 64);
  EXPECT_EQ(half.batch, 64);
  EXPECT_DOUBLE_EQ(half.iteration_seconds(), whole.iteration_seconds() / 2);
  EXPECT_DOUBLE_EQ(half.tensors[3].ready_seconds,
                   whole.tensors[3].ready_seconds / 2);
}

TEST(Model, ReadyOrderIsByTimeThenLastToFirst) {
  Model model;
  for (const double ready : {0.3, 0.1, 0.2, 0.2, 0.1}) {
    model.tensors.push_back(ModelTensor{"", 1, ready});
  }
  EXPECT_EQ(model.ReadyOrder(), (std::vector<std::size_t>{4, 1, 3, 2, 0}));
}

class DamagedModel : public testing::Test {
 protected:
  // The error of alexnet_bn with its profile's first `from` replaced by `to`.
  std::string ErrorWith(const std::string& from, const std::string& to) {
    const TemporaryFolder folder;
    const std::string file = "profiles/alexnet_bn_v100_fp16_b128.csv";
    std::filesystem::create_directories(folder.path() + "/models");
    std::filesystem::copy(std::string(kData) + "/models/alexnet_bn.csv",
                          folder.path() + "/models/alexnet_bn.csv");
    std::ifstream in(std::string(kData) + "/" + file);
    std::string text((std::istreambuf_iterator<char>(in)), {});
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos);
    text.replace(at, from.size(), to);
    folder.Write(file, text);
    const auto model = LoadModel(folder.path(), "alexnet_bn", 128);
    EXPECT_FALSE(model.ok());
    return model.ok() ? "" : model.status().message();
  }
};

TEST_F(DamagedModel, OtherTensorThanInTheTableIsNamed) {
  EXPECT_NE(ErrorWith("fc7.bias", "fc9.bias")
                .find(":4: expected tensor fc7.bias, got fc9.bias"),
            std::string::npos);
}

TEST_F(DamagedModel, OtherSizeThanInTheTableIsNamed) {
  EXPECT_NE(ErrorWith("fc7.bias,4096", "fc7.bias,4097")
                .find(":4: numel: expected a number from 4096 to 4096, got "
                      "\"4097\""),
            std::string::npos);
}

TEST_F(DamagedModel, TimeThatGoesBackwardIsNamed) {
  EXPECT_NE(ErrorWith("2.782", "2.5").find(":8: ready_ms: expected a number"),
            std::string::npos);
}

TEST_F(DamagedModel, MissingRowsAreCounted) {
  EXPECT_NE(ErrorWith("25,conv1.weight,34848,60933128,1,2.978,15.426\n", "")
                .find("expected 26 rows as in the model's table, got 25"),
            std::string::npos);
}

TEST(Model, UnknownNamesAndBatchesAreErrors) {
  EXPECT_FALSE(LoadModel(kData, "lenet", 128).ok());
  EXPECT_FALSE(LoadModel(kData, "vgg16", 0).ok());
}

}  // namespace
}  // namespace gradientflow::benchmarks
