// gradientflow_info prints what this build and this machine can do, and how the
// current environment would configure a session, without starting one.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "gradientflow/base/status.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/config/load_options.h"
#include "gradientflow/config/settings_table.h"
#include "gradientflow/config/settings_text.h"
#include "gradientflow/config/version.h"
#include "gradientflow/device/cuda_facts.h"
#include "gradientflow/nccl/create.h"
#include "gradientflow/observe/host_facts.h"
#include "kernels/kernels.h"
#include "transports/endpoint.h"
#include "transports/rdma/devices.h"
#include "transports/rdma/rdma_endpoint.h"
#include "transports/rdma/verbs_api.h"
#include "transports/registry/registry.h"

extern char** environ;

namespace gradientflow {
namespace {

// What lines below the first of an entry begin with.
constexpr const char* kNextLine = "\n                ";
constexpr const char* kIndent = kNextLine + 1;

std::string Version() { return StrCat(kVersionMajor, ".", kVersionMinor); }

// Returns the problems of the variables themselves or, if there are none, those
// of their combination.
Status Verdict(const LoadedOptions& loaded) {
  GF_RETURN_IF_ERROR(loaded.status());
  return loaded.options.Validate();
}

// Returns the facts without the "cuda: " that they begin with.
std::string Cuda(const CudaFacts& facts) {
  const std::string text = facts.ToString();
  return text.substr(text.find(' ') + 1);
}

nlohmann::json CudaJson(const CudaFacts& facts) {
  nlohmann::json devices = nlohmann::json::array();
  for (const CudaFacts::Device& device : facts.devices) {
    devices.push_back(
        {{"name", device.name},
         {"compute_capability", StrCat(device.major, ".", device.minor)},
         {"free_bytes", device.free_bytes},
         {"total_bytes", device.total_bytes},
         {"problem", device.problem}});
  }
  return {{"built_in", facts.built_in},
          {"driver", CudaVersionText(facts.driver_version)},
          {"runtime", CudaVersionText(facts.runtime_version)},
          {"devices", devices},
          {"summary", Cuda(facts)}};
}

// What a rank with these settings would do about RDMA.
std::string RdmaPlan(const Options& options) {
  if (options.fabric != "auto" && options.fabric != "rdma") {
    return StrCat("not used: fabric=", options.fabric);
  }
  const auto verbs = LoadVerbs();
  if (!verbs.ok()) return "not used";
  TransportOptions of;
  of.socket_ifname = options.socket_ifname;
  of.own = options.transport_settings;
  of.rank = std::max(options.rank, 0);
  const auto choices = ChooseRailsFor(of, *verbs.value());
  if (choices.status().code() == StatusCode::kUnimplemented) return "not used";
  if (!choices.ok()) return StrCat("not used: ", choices.status().message());
  std::string plan = "between hosts ";
  for (const RdmaChoice& choice : choices.value()) {
    if (&choice != &choices.value().front()) plan += "; ";
    plan += StrCat(choice.device, ":", choice.port.number, ": ", choice.why);
  }
  return plan;
}

nlohmann::json RdmaJson() {
  const auto verbs = LoadVerbs();
  if (!verbs.ok()) return {{"problem", verbs.status().message()}};
  const auto devices = ListRdmaDevices(*verbs.value());
  if (!devices.ok()) return {{"problem", devices.status().message()}};
  nlohmann::json ports = nlohmann::json::array();
  for (const RdmaDevice& device : devices.value()) {
    for (const RdmaPort& port : device.ports) {
      nlohmann::json gids = nlohmann::json::array();
      for (const RdmaGid& gid : port.gids) {
        gids.push_back({{"index", gid.index},
                        {"type", Name(gid.type)},
                        {"address", gid.ToString()}});
      }
      ports.push_back({{"device", device.name},
                       {"port", port.number},
                       {"state", port.state},
                       {"ethernet", port.ethernet},
                       {"mtu", port.mtu},
                       {"gbps", port.gbps},
                       {"lid", port.lid},
                       {"dma_buf", device.dma_buf},
                       {"gids", gids}});
    }
    if (!device.problem.empty()) {
      ports.push_back({{"device", device.name}, {"problem", device.problem}});
    }
  }
  return {{"library", verbs.value()->path}, {"ports", ports}};
}

// Describes the library that a session with these settings would load.
std::string Nccl(const Options& options) {
  const auto api = LoadNccl(options.nccl_library);
  if (!api.ok()) return api.status().message();
  return StrCat(NcclVersionText(api.value()->version), " (", api.value()->path,
                ")");
}

// For people who wonder why ranks of one machine share no memory, or why ranks
// of two containers do.
std::string HostIdMeaning(const Options& options) {
  return StrCat("ranks with the same id share memory; ",
                options.host_id.empty()
                    ? "found: this start of the machine, network and user "
                      "namespace, user"
                    : "set by host_id");
}

void PrintText(const LoadedOptions& loaded) {
  const Status memory = ProbeSharedMemory();
  std::cout << "GradientFlow " << Version() << "\n"
            << "CPU kernels:    " << kernels::CpuKernels().name << "\n"
            << "CUDA:           " << Cuda(ReadCudaFacts()) << "\n"
            << "NCCL:           " << Nccl(loaded.options) << "\n"
            << "RDMA:           " << RdmaText(kIndent) << kNextLine
            << RdmaPlan(loaded.options) << "\n"
            << "shared memory:  "
            << (memory.ok() ? "available" : memory.message()) << "\n"
            << "host id:        " << HostId(loaded.options.host_id) << kNextLine
            << HostIdMeaning(loaded.options) << "\n"
            << "interfaces:     ";
  const char* separator = "";
  for (const NetworkInterface& interface : ListNetworkInterfaces()) {
    std::cout << separator << interface.name
              << (interface.loopback ? " (loopback)" : "");
    for (const std::string& address : interface.addresses) {
      std::cout << " " << address;
    }
    separator = kNextLine;
  }
  std::cout << (*separator == '\0' ? "none is up" : "") << "\n\n"
            << SettingsReport(loaded);
}

void PrintJson(const LoadedOptions& loaded, const Status& verdict) {
  nlohmann::json settings = nlohmann::json::array();
  for (std::size_t i = 0; i < Settings().size(); ++i) {
    const Setting& setting = Settings()[i];
    settings.push_back({{"name", setting.name},
                        {"variable", setting.variable()},
                        {"value", setting.PrintForLog(loaded.options)},
                        {"default", setting.Print(Options())},
                        {"set_by", loaded.origins[i].ToString()},
                        {"expected", setting.expected},
                        {"meaning", setting.meaning}});
  }
  nlohmann::json interfaces = nlohmann::json::array();
  for (const NetworkInterface& interface : ListNetworkInterfaces()) {
    interfaces.push_back({{"name", interface.name},
                          {"loopback", interface.loopback},
                          {"addresses", interface.addresses}});
  }
  const nlohmann::json document = {{"version", Version()},
                                   {"cpu_kernels", kernels::CpuKernels().name},
                                   {"cuda", CudaJson(ReadCudaFacts())},
                                   {"nccl", Nccl(loaded.options)},
                                   {"rdma", RdmaJson()},
                                   {"rdma_plan", RdmaPlan(loaded.options)},
                                   {"shared_memory", ProbeSharedMemory().ok()},
                                   {"host_id", HostId(loaded.options.host_id)},
                                   {"interfaces", interfaces},
                                   {"settings", settings},
                                   {"error", verdict.message()}};
  // A variable may contain bytes that are not UTF-8.
  std::cout << document.dump(2, ' ', false,
                             nlohmann::json::error_handler_t::replace)
            << "\n";
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Shows what this build and machine can do, every setting with its "
      "value, its default and who set it, and what is wrong with the "
      "environment, if anything (then it exits with 1).",
      "gradientflow_info");
  bool json = false;
  bool markdown = false;
  app.add_flag("--json", json, "One JSON object");
  app.add_flag("--markdown", markdown, "Only the table of docs/settings.md")
      ->excludes("--json");
  app.footer("\n" + SettingsHelp());
  CLI11_PARSE(app, argc, argv);

  if (markdown) {
    std::cout << SettingsMarkdown();
    return 0;
  }
  const LoadedOptions loaded = LoadOptions(environ);
  const Status verdict = Verdict(loaded);
  if (json) {
    PrintJson(loaded, verdict);
  } else {
    PrintText(loaded);
  }
  std::cout.flush();
  if (verdict.ok()) return 0;
  std::cerr << "gradientflow_info: " << verdict.message() << "\n";
  return 1;
}

}  // namespace
}  // namespace gradientflow

int main(int argc, char** argv) { return gradientflow::Main(argc, argv); }
