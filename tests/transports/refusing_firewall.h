#pragma once

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/ip_icmp.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/fd.h"
#include "tests/transports/silent_port.h"

namespace gradientflow::tcp_test {

// A port of this host, at an address that is no rank's, as behind a firewall
// that answers what it does not let in with a message of the network: port
// unreachable. It sees all packets of the loopback, and needs root.
class RefusingFirewall {
 public:
  // Returns null if this process may not do it.
  static std::unique_ptr<RefusingFirewall> Build() {
    Fd sees(::socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, htons(ETH_P_IP)));
    Fd says(::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_ICMP));
    sockaddr_ll loopback = {};
    loopback.sll_family = AF_PACKET;
    loopback.sll_protocol = htons(ETH_P_IP);
    loopback.sll_ifindex = static_cast<int>(::if_nametoindex("lo"));
    if (!sees.valid() || !says.valid() ||
        ::bind(sees.get(), reinterpret_cast<sockaddr*>(&loopback),
               sizeof(loopback)) != 0) {
      return nullptr;
    }
    return std::unique_ptr<RefusingFirewall>(
        new RefusingFirewall(std::move(sees), std::move(says)));
  }
  ~RefusingFirewall() {
    over_ = true;
    thread_.join();
  }
  RefusingFirewall(const RefusingFirewall&) = delete;
  RefusingFirewall& operator=(const RefusingFirewall&) = delete;

  std::string address() const { return port_.address(); }
  // Waits until it has refused for so long. Returns whether it has.
  bool AwaitRefusals(std::chrono::milliseconds spell) const {
    const SteadyClock clock;
    const Clock::Time give_up = clock.Now() + std::chrono::seconds(5);
    while (refused_for_.load() < Clock::Time(spell).count()) {
      if (clock.Now() > give_up) return false;
      std::this_thread::yield();
    }
    return true;
  }

 private:
  RefusingFirewall(Fd sees, Fd says)
      : sees_(std::move(sees)),
        says_(std::move(says)),
        thread_([this] { Run(); }) {}

  void Run() {
    const SteadyClock clock;
    Clock::Time first{};
    while (!over_) {
      pollfd ready = {sees_.get(), POLLIN, 0};
      if (::poll(&ready, 1, 20) != 1) continue;
      std::array<std::byte, 128> packet = {};
      sockaddr_ll from = {};
      socklen_t bytes = sizeof(from);
      const ssize_t got =
          ::recvfrom(sees_.get(), packet.data(), packet.size(), 0,
                     reinterpret_cast<sockaddr*>(&from), &bytes);
      if (from.sll_pkttype == PACKET_OUTGOING ||
          got < static_cast<ssize_t>(sizeof(iphdr) + sizeof(tcphdr)) ||
          !Refuse(packet)) {
        continue;
      }
      if (first == Clock::Time{}) first = clock.Now();
      refused_for_ = (clock.Now() - first).count();
    }
  }

  // Answers the packet if it asks for a connection to this port.
  bool Refuse(const std::array<std::byte, 128>& packet) {
    iphdr ip = {};
    tcphdr tcp = {};
    std::memcpy(&ip, packet.data(), sizeof(ip));
    const std::size_t head = std::size_t{ip.ihl} * 4;
    if (ip.protocol != IPPROTO_TCP || head + sizeof(tcp) > packet.size()) {
      return false;
    }
    std::memcpy(&tcp, packet.data() + head, sizeof(tcp));
    sockaddr_in to = {};
    std::memcpy(&to, own_.data(), sizeof(to));
    if (ip.daddr != to.sin_addr.s_addr || tcp.dest != to.sin_port ||
        tcp.syn == 0 || tcp.ack != 0) {
      return false;
    }
    icmphdr unreachable = {};
    unreachable.type = ICMP_DEST_UNREACH;
    unreachable.code = ICMP_PORT_UNREACH;
    std::array<std::byte, sizeof(icmphdr) + 28> message;  // 8 bytes of TCP.
    std::memcpy(message.data(), &unreachable, sizeof(unreachable));
    std::memcpy(message.data() + sizeof(unreachable), packet.data(), 28);
    unreachable.checksum = Checksum(message);
    std::memcpy(message.data(), &unreachable, sizeof(unreachable));
    sockaddr_in back = {};
    back.sin_family = AF_INET;
    back.sin_addr.s_addr = ip.saddr;
    return ::sendto(says_.get(), message.data(), message.size(), 0,
                    reinterpret_cast<sockaddr*>(&back), sizeof(back)) > 0;
  }

  template <std::size_t kBytes>
  static std::uint16_t Checksum(const std::array<std::byte, kBytes>& bytes) {
    std::uint32_t sum = 0;
    for (std::size_t i = 0; i + 1 < kBytes; i += 2) {
      std::uint16_t word = 0;
      std::memcpy(&word, &bytes[i], sizeof(word));
      sum += word;
    }
    sum = (sum & 0xffff) + (sum >> 16);
    return static_cast<std::uint16_t>(~(sum + (sum >> 16)));
  }

  const SilentPort port_{"127.0.0.2"};
  const SocketAddress own_ = *SocketAddress::Parse(port_.address());
  Fd sees_;
  Fd says_;
  std::atomic<bool> over_ = false;
  std::atomic<std::int64_t> refused_for_ = 0;
  std::thread thread_;
};

}  // namespace gradientflow::tcp_test
