// Runs one command per host on shaped links, to look at such a network with
// other tools:
//   links --gbps 1 'iperf3 -s -1' 'sleep 1; iperf3 -c 10.77.0.1'
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "benchmarks/netns.h"
#include "benchmarks/ranks.h"

namespace gradientflow::benchmarks {
namespace {

int Main(int argc, char** argv) {
  CLI::App app(
      "Runs each COMMAND in a network namespace of its own; host i is "
      "10.77.0.<i + 1>. Needs root.");
  LinkSettings settings;
  std::vector<std::string> commands;
  app.add_option("--gbps", settings.gbps, "rate of each link, each direction")
      ->capture_default_str();
  app.add_option("--mtu", settings.mtu)->capture_default_str();
  app.add_option("command", commands, "shell commands, one per host")
      ->required();
  CLI11_PARSE(app, argc, argv);
  const auto hosts =
      LinkedHosts::Create(static_cast<int>(commands.size()), settings);
  if (!hosts.ok()) {
    std::fprintf(stderr, "%s\n", hosts.status().ToString().c_str());
    return 1;
  }
  const auto done = RunRanks(
      static_cast<int>(commands.size()), [&](int host) -> Result<std::string> {
        GF_RETURN_IF_ERROR(hosts.value().Enter(host));
        const std::string& command = commands[static_cast<std::size_t>(host)];
        const int code = std::system(command.c_str());
        if (code == 0) return std::string();
        return Status(StatusCode::kInternal, "\"" + command + "\" failed");
      });
  if (done.ok()) return 0;
  std::fprintf(stderr, "%s\n", done.status().ToString().c_str());
  return 1;
}

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) try {
  return gradientflow::benchmarks::Main(argc, argv);
} catch (const std::exception& error) {
  std::fprintf(stderr, "links: %s\n", error.what());
  return 1;
}
