#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "benchmarks/allreduce/workers.h"
#include "gradientflow/base/str_cat.h"

// Other libraries' allreduce, in programs of their own that speak the protocol
// of batch.h: gloo_peer.py, openmpi_peer.c.
namespace gradientflow::benchmarks {
namespace {

Program Command(const std::vector<std::string>& words) {
  return {[words] {
            std::vector<char*> arguments;
            for (const std::string& word : words) {
              arguments.push_back(const_cast<char*>(word.c_str()));
            }
            arguments.push_back(nullptr);
            execvp(arguments[0], arguments.data());
            std::perror(arguments[0]);
            return EXIT_FAILURE;
          },
          {}};
}

}  // namespace

Result<std::unique_ptr<Group>> StartGloo(const GroupSettings& settings) {
  const std::string name = "gloo";
  std::vector<Program> programs;
  for (int rank = 0; rank < settings.ranks; ++rank) {
    programs.push_back(
        Command({"env", "GLOO_SOCKET_IFNAME=lo", settings.gloo_python,
                 settings.gloo_script, SocketPath(settings.folder, name),
                 settings.folder + "/gloo_store", StrCat(rank),
                 StrCat(settings.ranks), StrCat(settings.most_bytes)}));
  }
  return Group::Start(settings.folder, name, settings.ranks, programs);
}

Result<std::unique_ptr<Group>> StartOpenMpi(const GroupSettings& settings) {
  const std::string name = "openmpi";
  std::vector<std::string> words = {"mpirun",
                                    "--allow-run-as-root",
                                    "--oversubscribe",
                                    "--mca",
                                    "pml",
                                    "ob1",
                                    "--mca",
                                    "btl"};
  if (settings.fabric == "tcp") {
    words.insert(words.end(),
                 {"self,tcp", "--mca", "btl_tcp_if_include", "lo"});
  } else {
    words.emplace_back("self,vader");
  }
  words.insert(
      words.end(),
      {"-np", StrCat(settings.ranks), settings.openmpi_program,
       SocketPath(settings.folder, name), StrCat(settings.most_bytes)});
  return Group::Start(settings.folder, name, settings.ranks, {Command(words)});
}

}  // namespace gradientflow::benchmarks
