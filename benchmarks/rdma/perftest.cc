#include "benchmarks/rdma/perftest.h"

#include <array>
#include <cstdio>
#include <future>
#include <sstream>

#include "gradientflow/base/str_cat.h"

namespace gradientflow::benchmarks {
namespace {

// Its "MB" are these.
constexpr double kMib = 1048576;
// How often the client looks for the server, which takes some time to start.
constexpr int kTries = 50;

// Returns what the command writes.
std::string OutputOf(const std::string& command) {
  std::string output;
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return output;
  std::array<char, 256> part;
  while (std::fgets(part.data(), part.size(), pipe) != nullptr) {
    output += part.data();
  }
  ::pclose(pipe);
  return output;
}

// The client's last line has bytes, writes, the highest and the average rate.
Result<double> SecondsIn(const std::string& output, std::size_t bytes) {
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::size_t size = 0;
    double writes = 0;
    double most = 0;
    double average = 0;
    if (words >> size >> writes >> most >> average && size == bytes &&
        average > 0) {
      return static_cast<double>(bytes) / (average * kMib);
    }
  }
  return Status(StatusCode::kUnavailable, StrCat("ib_write_bw: ", output));
}

}  // namespace

Result<double> Run(const IbWriteBw& stream) {
  if (OutputOf("command -v ib_write_bw").empty()) {
    return Status(StatusCode::kUnimplemented, "there is no ib_write_bw");
  }
  // Whichever of the two is left alone gives up.
  const std::string program = "timeout 60 ib_write_bw";
  const std::string arguments =
      StrCat(" -F -s ", stream.bytes, " -n ", stream.writes, " -t ",
             stream.most_writes, " 2>&1");
  auto server = std::async(std::launch::async, [&] {
    return OutputOf(StrCat(program, " -d ", stream.to, arguments));
  });
  const std::string client =
      StrCat("for i in $(seq ", kTries, "); do ", program, " 127.0.0.1 -d ",
             stream.from, arguments, " && exit; sleep 0.1; done");
  const std::string output = OutputOf(client);
  server.wait();
  return SecondsIn(output, stream.bytes);
}

}  // namespace gradientflow::benchmarks
