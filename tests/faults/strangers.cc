#include "tests/faults/strangers.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

namespace gradientflow::faults {
namespace {

namespace fs = std::filesystem;

std::set<std::string> SocketsOfChildren(pid_t parent) {
  std::set<std::string> inodes;
  const std::string tasks = "/proc/" + std::to_string(parent) + "/task/" +
                            std::to_string(parent) + "/children";
  std::ifstream children(tasks);
  for (std::string pid; children >> pid;) {
    std::error_code error;
    for (const auto& fd :
         fs::directory_iterator("/proc/" + pid + "/fd", error)) {
      const std::string target = fs::read_symlink(fd, error).string();
      if (target.starts_with("socket:[")) {
        inodes.insert(target.substr(8, target.size() - 9));
      }
    }
  }
  return inodes;
}

std::set<std::uint16_t> ListeningPorts(const char* table,
                                       const std::set<std::string>& inodes) {
  std::set<std::uint16_t> ports;
  std::ifstream lines(table);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::array<std::string, 10> word;
    for (std::string& w : word) words >> w;
    const std::size_t colon = word[1].rfind(':');
    if (word[3] != "0A" || colon == std::string::npos) continue;
    if (!inodes.contains(word[9])) continue;
    ports.insert(static_cast<std::uint16_t>(
        std::stoul(word[1].substr(colon + 1), nullptr, 16)));
  }
  return ports;
}

bool Connect(int fd, std::uint16_t port, bool ipv6) {
  sockaddr_in6 six = {};
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(port);
  six.sin6_addr = in6addr_loopback;
  sockaddr_in four = {};
  four.sin_family = AF_INET;
  four.sin_port = htons(port);
  four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return ipv6 ? connect(fd, reinterpret_cast<sockaddr*>(&six), sizeof(six)) == 0
              : connect(fd, reinterpret_cast<sockaddr*>(&four), sizeof(four)) ==
                    0;
}

}  // namespace

Scanner::~Scanner() {
  for (int fd : open_) close(fd);
}

std::size_t Scanner::KnockAtAllPorts() {
  const std::set<std::string> inodes = SocketsOfChildren(parent_);
  std::size_t opened = 0;
  for (std::uint16_t port : ListeningPorts("/proc/net/tcp", inodes)) {
    opened += Knock(port, false) ? 1 : 0;
  }
  for (std::uint16_t port : ListeningPorts("/proc/net/tcp6", inodes)) {
    opened += Knock(port, true) ? 1 : 0;
  }
  return opened;
}

std::size_t Scanner::StandAtAllPorts(int times) {
  const std::set<std::string> inodes = SocketsOfChildren(parent_);
  // Read once: the tables grow with what this opens.
  const auto four = ListeningPorts("/proc/net/tcp", inodes);
  const auto six = ListeningPorts("/proc/net/tcp6", inodes);
  const std::size_t before = open_.size();
  for (int i = 0; i < times; ++i) {
    for (std::uint16_t port : four) Stand(port, false);
    for (std::uint16_t port : six) Stand(port, true);
  }
  return open_.size() - before;
}

void Scanner::Stand(std::uint16_t port, bool ipv6) {
  const int fd =
      socket(ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  if (Connect(fd, port, ipv6)) {
    open_.push_back(fd);
  } else {
    close(fd);
  }
}

bool Scanner::Knock(std::uint16_t port, bool ipv6) {
  const int fd =
      socket(ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const bool there = Connect(fd, port, ipv6);
  std::array<unsigned char, 200> noise;
  for (unsigned char& byte : noise) {
    byte = static_cast<unsigned char>(random_());
  }
  // Nothing, a part of a greeting, or more than one.
  const std::size_t bytes = random_() % noise.size();
  if (there && bytes > 20) send(fd, noise.data(), bytes, MSG_NOSIGNAL);
  if (there && random_() % 2 == 0 && open_.size() < 50) {
    open_.push_back(fd);
  } else {
    close(fd);
  }
  return there;
}

int BabbleOnAllConnections() {
  std::mt19937 random(9);
  std::array<unsigned char, 4096> noise;
  for (unsigned char& byte : noise) byte = static_cast<unsigned char>(random());
  int connections = 0;
  for (int fd = 3; fd < 1024; ++fd) {
    sockaddr_storage peer;
    socklen_t bytes = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &bytes) != 0) {
      continue;
    }
    if (peer.ss_family != AF_INET && peer.ss_family != AF_INET6) continue;
    send(fd, noise.data(), noise.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    ++connections;
  }
  return connections;
}

int BreakPeersFifos(const void* mine, std::size_t heap_offset) {
  const auto own = reinterpret_cast<std::uintptr_t>(mine);
  std::ifstream maps("/proc/self/maps");
  int broken = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("rw-s") == std::string::npos ||
        line.find("memfd:") == std::string::npos) {
      continue;
    }
    unsigned long begin = 0;
    unsigned long end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) != 2) continue;
    if ((own >= begin && own < end) || end - begin <= heap_offset) continue;
    // The first word of a FIFO is the number of bytes that its writer has
    // written.
    reinterpret_cast<std::atomic<std::uint64_t>*>(begin + heap_offset)
        ->store(~std::uint64_t{0} / 3);
    ++broken;
  }
  return broken;
}

}  // namespace gradientflow::faults
