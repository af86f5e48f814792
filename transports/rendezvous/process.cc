#include "transports/rendezvous/process.h"

#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string_view>

#include "gradientflow/base/str_cat.h"

// A line is "<boot> <PID namespace> <pid> <start>": a kernel that runs has an
// id, and two processes with the same pid start at different times.
namespace gradientflow::rendezvous {
namespace {

// When the process started, in ticks of its kernel. Empty if there is none, or
// if nobody has asked yet how it ended.
std::string StartOf(std::string_view pid) {
  std::ifstream file(StrCat("/proc/", pid, "/stat"));
  std::string line;
  std::getline(file, line);
  // The second field is the program's name in brackets, which may contain
  // anything; the third is the state, and the 22nd the start.
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return "";
  std::istringstream fields(line.substr(name_end + 1));
  std::string state;
  fields >> state;
  if (state == "Z" || state == "X") return "";
  std::string field;
  for (int i = 4; i <= 22; ++i) fields >> field;
  return fields ? field : "";
}

// The part of the line that the processes that see each other have in common.
std::string Home() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  struct stat space = {};
  if (boot.empty() || ::stat("/proc/self/ns/pid", &space) != 0) return "";
  return StrCat(boot, " ", static_cast<std::uint64_t>(space.st_ino), " ");
}

// Returns where the pid begins in a line; 0 if it is no such line.
std::size_t PidIn(const std::string& process) {
  const std::size_t start = process.rfind(' ');
  if (start == std::string::npos || start == 0) return 0;
  return process.rfind(' ', start - 1) + 1;
}

}  // namespace

std::string ThisProcess() {
  const std::string home = Home();
  const std::string pid = std::to_string(::getpid());
  const std::string start = StartOf(pid);
  if (home.empty() || start.empty()) return "";
  return StrCat(home, pid, " ", start);
}

// Ticks count from the boot of the kernel, as CLOCK_BOOTTIME does.
std::optional<double> AgeOfThisProcess() {
  const std::string start = StartOf("self");
  timespec now = {};
  if (start.empty() || ::clock_gettime(CLOCK_BOOTTIME, &now) != 0) {
    return std::nullopt;
  }
  return static_cast<double>(now.tv_sec) +
         static_cast<double>(now.tv_nsec) * 1e-9 -
         std::stod(start) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

bool SeeEachOther(const std::string& process, const std::string& mine) {
  const std::size_t pid = PidIn(process);
  return pid != 0 && mine.compare(0, pid, process, 0, pid) == 0;
}

bool HasEnded(const std::string& process, const std::string& mine) {
  if (!SeeEachOther(process, mine)) return false;
  const std::size_t pid = PidIn(process);
  const std::size_t start = process.rfind(' ');
  const std::string number = process.substr(pid, start - pid);
  // The line comes from a file, and becomes a part of a path.
  if (number.empty() ||
      number.find_first_not_of("0123456789") != std::string::npos) {
    return false;
  }
  return StartOf(number) != process.substr(start + 1);
}

}  // namespace gradientflow::rendezvous
