#pragma once

#include <poll.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/secret.h"
#include "gradientflow/base/status.h"
#include "transports/rendezvous/frames.h"
#include "transports/rendezvous/rendezvous.h"
#include "transports/tcp/addresses.h"
#include "transports/tcp/socket.h"

// Ranks as threads that meet.
namespace gradientflow::rendezvous_test {

using Cards = Result<std::vector<std::string>>;

// Everyone is told everything.
inline Cards ExchangeCards(const RendezvousOptions& options,
                           const std::string& my_card, const Clock& clock) {
  const Introduce all = [](const std::vector<std::string>& cards,
                           const std::vector<int>& ranks) {
    return std::vector<std::string>(ranks.size(),
                                    rendezvous::EncodeTexts(cards));
  };
  const Result<std::string> text = Meet(options, my_card, all, clock);
  if (!text.ok()) return text.status();
  auto cards = rendezvous::DecodeTexts(text.value(),
                                       static_cast<std::size_t>(options.size));
  if (!cards) return Status(StatusCode::kDataLoss, "these are not all cards");
  return *std::move(cards);
}

inline std::string CardOf(int rank) {
  return "card of " + std::to_string(rank) +
         std::string(static_cast<std::size_t>(rank) * 1000, 'x');
}

inline std::vector<std::string> AllCards(int size) {
  std::vector<std::string> cards;
  cards.reserve(static_cast<std::size_t>(size));
  for (int r = 0; r < size; ++r) cards.push_back(CardOf(r));
  return cards;
}

// "127.0.0.1:port" with a port that was free a moment ago.
inline std::string FreeAddress(const char* at = "127.0.0.1:0") {
  const Result<Socket> socket = ListenOn(*SocketAddress::Parse(at), 0);
  return socket.ok() ? LocalAddress(socket.value()).ToString() : "";
}

inline RendezvousOptions OptionsFor(const std::string& address, int rank,
                                    int size,
                                    std::chrono::milliseconds patience) {
  RendezvousOptions options;
  options.address = address;
  options.secret = JobSecret("secret", "");
  options.rank = rank;
  options.size = size;
  options.deadline = SteadyClock().Now() + patience;
  return options;
}

// Connects to a rendezvous that may not listen yet.
inline Socket ConnectWithPatience(const std::string& address) {
  const SteadyClock clock;
  const Clock::Time give_up = clock.Now() + std::chrono::seconds(5);
  while (clock.Now() < give_up) {
    Result<Socket> socket = StartConnect(*SocketAddress::Parse(address), 0);
    if (!socket.ok()) continue;
    pollfd ready = {socket.value().fd(), POLLOUT, 0};
    ::poll(&ready, 1, 1000);
    if (ConnectError(socket.value()) == 0 &&
        PeerAddress(socket.value()).ToString() == address &&
        LocalAddress(socket.value()).ToString() != address) {
      return std::move(socket).value();
    }
    ::poll(nullptr, 0, 1);
  }
  return Socket();
}

// Runs each participant in a thread of its own; results are in the same order.
inline std::vector<Cards> Meet(const std::vector<RendezvousOptions>& all) {
  std::vector<std::optional<Cards>> results(all.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < all.size(); ++i) {
    threads.emplace_back([&, i] {
      static const SteadyClock clock;  // A watch needs it later.
      results[i] = ExchangeCards(all[i], CardOf(all[i].rank), clock);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<Cards> plain;
  plain.reserve(results.size());
  for (auto& result : results) plain.push_back(*std::move(result));
  return plain;
}

inline bool Says(const Cards& result, const std::string& text) {
  return result.status().message().find(text) != std::string::npos;
}

}  // namespace gradientflow::rendezvous_test
