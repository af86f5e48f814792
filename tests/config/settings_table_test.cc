#include "gradientflow/config/settings_table.h"

#include <cctype>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "gradientflow/collectives/allreduce/table.h"
#include "gradientflow/config/options.h"
#include "gtest/gtest.h"
#include "transports/registry/registry.h"

namespace gradientflow {
namespace {

std::string Get(const Options& options, std::string_view name) {
  return GetOption(options, name).value();
}

// A valid text for each setting that is not its default.
struct Sample {
  std::string_view name;
  std::string_view text;
  std::string_view printed;
};
const std::vector<Sample>& Samples() {
  static const auto* samples = new std::vector<Sample>{
      {"rank", "3", "3"},
      {"size", "8", "8"},
      {"rendezvous", "node1:29500", "node1:29500"},
      {"job_token", "secret", "secret"},
      {"host_id", "blue", "blue"},
      {"fabric", "TCP", "tcp"},
      {"socket_ifname", "^docker,lo", "^docker,lo"},
      {"socket_family", "ipv6", "ipv6"},
      {"advertise_address", "gate.example", "gate.example"},
      {"port_range", "4000-4100", "4000-4100"},
      {"connect", "NEEDED", "needed"},
      {"connections", "4", "4"},
      {"socket_buffer_bytes", "4MB", "4MB"},
      {"io_threads", "0", "0"},
      {"tcp_congestion", "cubic", "cubic"},
      {"rdma_devices", "mlx5_0:1", "mlx5_0:1"},
      {"rdma_ports", "2", "2"},
      {"rdma_traffic_class", "106", "106"},
      {"rdma_retry_seconds", "1.5", "1.5"},
      {"segment_bytes", "65536", "64KB"},
      {"segments_in_flight", "1", "1"},
      {"arena_bytes", "1TB", "1TB"},
      {"fifo_bytes", "64K", "64KB"},
      {"spin_microseconds", "0", "0"},
      {"device", "cuda:3", "cuda:3"},
      {"device_collectives", "Staged", "staged"},
      {"device_sums", "NCCL", "nccl"},
      {"nccl_windows", "off", "off"},
      {"nccl_library", "/opt/libnccl.so", "/opt/libnccl.so"},
      {"pool_dtype", "bfloat16", "bfloat16"},
      {"wire_dtype", "Float16", "float16"},
      {"reduce", "sum", "sum"},
      {"bucket_bytes", "inf", "inf"},
      {"overlap", "off", "off"},
      {"accumulate", "on", "on"},
      {"compute_threads", "3", "3"},
      {"loss_scale", "1024", "1024"},
      {"algorithm", "ring", "ring"},
      {"sparsity", "0.85", "0.85"},
      {"chunk_elements", "1000", "1000"},
      {"warmup_steps", "500", "500"},
      {"residual", "plain", "plain"},
      {"momentum", "0.95", "0.95"},
      {"zero_kept", "on", "on"},
      {"timeout_seconds", "0.5", "0.5"},
      {"heartbeat_timeout_seconds", "5", "5"},
      {"stall_check_seconds", "1.25", "1.25"},
      {"join_timeout_seconds", "1e3", "1000"},
      {"log_level", "INFO", "info"},
      {"timeline", "trace.%r.json", "trace.%r.json"},
      {"trace_collectives", "1", "on"},
      {"profile", "model.json", "model.json"},
      {"profile_batch", "128", "128"},
  };
  return *samples;
}

TEST(SettingsTable, EachRowSetsItsOwnFieldAndNoOther) {
  ASSERT_EQ(Samples().size(), Settings().size());
  for (const Sample& sample : Samples()) {
    Options options;
    ASSERT_TRUE(SetOption(&options, sample.name, sample.text).ok())
        << sample.name;
    for (const Setting& setting : Settings()) {
      const std::string expected = setting.name == sample.name
                                       ? std::string(sample.printed)
                                       : setting.Print(Options());
      EXPECT_EQ(setting.Print(options), expected)
          << setting.name << " after " << sample.name;
    }
    EXPECT_NE(Get(options, sample.name), Get(Options(), sample.name))
        << sample.name << ": the sample is the default";
  }
}

TEST(SettingsTable, FieldsHoldTheValueMeant) {
  Options o;
  for (const Sample& sample : Samples()) {
    ASSERT_TRUE(SetOption(&o, sample.name, sample.text).ok());
  }
  EXPECT_EQ(o.rank, 3);
  EXPECT_EQ(o.fabric, "tcp");
  EXPECT_EQ(o.socket_family, AddressFamily::kIpv6);
  EXPECT_EQ(o.segment_bytes, 65536U);
  EXPECT_EQ(o.device_collectives, DeviceCollectives::kStaged);
  EXPECT_EQ(o.pool_dtype, DType::kBFloat16);
  EXPECT_EQ(o.wire_dtype, DType::kFloat16);
  EXPECT_EQ(o.reduce, ReduceOp::kSum);
  EXPECT_EQ(o.bucket_bytes, kInfiniteBytes);
  EXPECT_FALSE(o.overlap);
  EXPECT_EQ(o.residual, ResidualMode::kPlain);
  EXPECT_EQ(o.sparsity, 0.85F);
  EXPECT_EQ(o.log_level, LogLevel::kInfo);
  EXPECT_TRUE(o.trace_collectives);
}

TEST(SettingsTable, DefaultsPrintAndParseBack) {
  for (const Setting& setting : Settings()) {
    Options options;
    const std::string text = setting.Print(options);
    EXPECT_TRUE(setting.Parse(text, &options)) << setting.name << "=" << text;
    EXPECT_EQ(setting.Print(options), text) << setting.name;
  }
}

TEST(SettingsTable, AlgorithmTakesEveryAllreduceThereIs) {
  const std::string expected(FindSetting("algorithm")->expected);
  for (const CollectiveAlgorithm* algorithm : allreduce::kTable) {
    Options options;
    EXPECT_TRUE(SetOption(&options, "algorithm", algorithm->name).ok());
    EXPECT_EQ(options.algorithm, algorithm->name);
    EXPECT_NE(expected.find(algorithm->name), std::string::npos) << expected;
  }
}

TEST(SettingsTable, FabricTakesEveryTransportThereIs) {
  for (const TransportKind* kind : Transports()) {
    Options options;
    EXPECT_TRUE(SetOption(&options, "fabric", kind->name).ok());
    EXPECT_EQ(options.fabric, kind->name);
  }
  EXPECT_EQ(FindSetting("fabric")->expected, TransportNames());
}

TEST(SettingsTable, OptionsHaveOnlySettingsThatATransportHas) {
  Options options;
  options.transport_settings["rdma_ports"] = "2";
  EXPECT_TRUE(options.ValidateValues().ok());
  EXPECT_TRUE(SetOption(&options, "rdma_ports", "1").ok());
  EXPECT_TRUE(options.transport_settings.empty()) << "the default";
  options.transport_settings["rdma_ports"] = "5";
  EXPECT_NE(options.ValidateValues().message().find("from 1 to 4, got '5'"),
            std::string::npos);
  for (const char* name : {"rdma_prots", "fabric", "RDMA_PORTS"}) {
    options.transport_settings = {{name, "1"}};
    EXPECT_EQ(options.ValidateValues().code(), StatusCode::kInvalidArgument)
        << name;
  }
}

TEST(SettingsTable, AutoIsATextForEachFieldThatFindsItsValueOut) {
  for (const char* name :
       {"rank", "size", "connections", "io_threads", "spin_microseconds",
        "compute_threads", "socket_buffer_bytes", "bucket_bytes"}) {
    Options options;
    ASSERT_TRUE(SetOption(&options, name, "4KB").ok() ||
                SetOption(&options, name, "4").ok())
        << name;
    EXPECT_NE(Get(options, name), "auto");
    ASSERT_TRUE(SetOption(&options, name, "auto").ok()) << name;
    EXPECT_EQ(Get(options, name), Get(Options(), name));
  }
  Options options;
  EXPECT_TRUE(SetOption(&options, "rank", "-1").ok());
  EXPECT_EQ(options.rank, -1);
}

TEST(SettingsTable, RefusesValuesOutOfRangeAndKeepsTheOldOne) {
  const std::vector<Sample> bad = {{"rank", "-2", ""},
                                   {"rank", "1048576", ""},
                                   {"rank", "4294967296", ""},
                                   {"size", "0", ""},
                                   {"rendezvous", "nowhere", ""},
                                   {"device", "cuda:", ""},
                                   {"device", "cuda:1024", ""},
                                   {"device", "gpu", ""},
                                   {"fabric", "roce", ""},
                                   {"fabric", "", ""},
                                   {"socket_family", "ipv5", ""},
                                   {"connect", "some", ""},
                                   {"connections", "64", ""},
                                   {"connections", "-1", ""},
                                   {"socket_buffer_bytes", "2GB", ""},
                                   {"socket_buffer_bytes", "inf", ""},
                                   {"io_threads", "-2", ""},
                                   {"io_threads", "65", ""},
                                   {"tcp_congestion", "sixteen_long____", ""},
                                   {"rdma_ports", "0", ""},
                                   {"rdma_ports", "5", ""},
                                   {"rdma_traffic_class", "256", ""},
                                   {"rdma_retry_seconds", "0", ""},
                                   {"segment_bytes", "4095", ""},
                                   {"segment_bytes", "4100", ""},
                                   {"segment_bytes", "auto", ""},
                                   {"segments_in_flight", "0", ""},
                                   {"segments_in_flight", "65", ""},
                                   {"arena_bytes", "1KB", ""},
                                   {"arena_bytes", "inf", ""},
                                   {"fifo_bytes", "2GB", ""},
                                   {"spin_microseconds", "-2", ""},
                                   {"pool_dtype", "int8", ""},
                                   {"wire_dtype", "float64", ""},
                                   {"wire_dtype", "half", ""},
                                   {"reduce", "max", ""},
                                   {"bucket_bytes", "-1", ""},
                                   {"overlap", "maybe", ""},
                                   {"compute_threads", "-1", ""},
                                   {"loss_scale", "0", ""},
                                   {"loss_scale", "nan", ""},
                                   {"loss_scale", "inf", ""},
                                   {"loss_scale", "1e-42", ""},
                                   {"algorithm", "", ""},
                                   {"algorithm", "tree", ""},
                                   {"sparsity", "1", ""},
                                   {"sparsity", "-0.1", ""},
                                   {"sparsity", "nan", ""},
                                   {"chunk_elements", "0", ""},
                                   {"warmup_steps", "-1", ""},
                                   {"residual", "none", ""},
                                   {"momentum", "1", ""},
                                   {"timeout_seconds", "0", ""},
                                   {"timeout_seconds", "inf", ""},
                                   {"timeout_seconds", "1e10", ""},
                                   {"log_level", "trace", ""},
                                   {"trace_collectives", "", ""}};
  for (const Sample& sample : bad) {
    Options options;
    const Status status = SetOption(&options, sample.name, sample.text);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument)
        << sample.name << "=" << sample.text;
    EXPECT_NE(status.message().find(sample.name), std::string::npos);
    EXPECT_NE(status.message().find(FindSetting(sample.name)->expected),
              std::string::npos);
    EXPECT_EQ(Get(options, sample.name), Get(Options(), sample.name));
  }
}

TEST(SettingsTable, NamesComeInAnyCaseWithOrWithoutPrefix) {
  Options options;
  for (const char* name :
       {"wire_dtype", "WIRE_DTYPE", "Wire_DType", "GRADIENTFLOW_WIRE_DTYPE",
        "gradientflow_wire_dtype"}) {
    options.wire_dtype = DType::kFloat32;
    ASSERT_TRUE(SetOption(&options, name, "float16").ok()) << name;
    EXPECT_EQ(options.wire_dtype, DType::kFloat16) << name;
    EXPECT_EQ(Get(options, name), "float16");
  }
}

TEST(SettingsTable, AnUnknownNameGetsTheNearestOne) {
  Options options;
  const Status status = SetOption(&options, "buket_bites", "1");
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "'buket_bites' is no setting; did you mean bucket_bytes?");
  EXPECT_EQ(UnknownNameText("GRADIENTFLOW_SPARCITY"),
            "'GRADIENTFLOW_SPARCITY' is no setting; did you mean "
            "GRADIENTFLOW_SPARSITY?");
  EXPECT_FALSE(GetOption(options, "").ok());
  EXPECT_FALSE(GetOption(options, "GRADIENTFLOW_").ok());
  EXPECT_EQ(NearestSetting("tracecollective").name, "trace_collectives");
}

TEST(SettingsTable, SecretsAreMaskedForPeopleOnly) {
  Options options;
  const Setting& token = *FindSetting("job_token");
  EXPECT_EQ(token.PrintForLog(options), "");
  options.job_token = "hunter2";
  EXPECT_EQ(token.PrintForLog(options), "***");
  EXPECT_EQ(Get(options, "job_token"), "hunter2");
}

TEST(SettingsTable, IsReadyForPrint) {
  std::set<std::string_view> names;
  std::string_view section;
  std::set<std::string_view> sections;
  for (const Setting& setting : Settings()) {
    EXPECT_TRUE(names.insert(setting.name).second) << setting.name;
    if (setting.section != section) {
      section = setting.section;
      EXPECT_TRUE(sections.insert(section).second) << "in two parts";
    }
    EXPECT_FALSE(setting.expected.empty());
    ASSERT_FALSE(setting.meaning.empty());
    EXPECT_EQ(setting.meaning.back(), '.') << setting.name;
    EXPECT_EQ(setting.meaning.find('\n'), std::string_view::npos);
    for (const char c : setting.variable()) {
      EXPECT_TRUE(std::isupper(static_cast<unsigned char>(c)) || c == '_');
    }
  }
}

}  // namespace
}  // namespace gradientflow
