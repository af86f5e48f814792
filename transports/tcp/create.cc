#include "transports/tcp/create.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "transports/tcp/addresses.h"
#include "transports/tcp/interfaces.h"
#include "transports/tcp/io_threads.h"
#include "transports/tcp/routes.h"
#include "transports/tcp/set_up.h"
#include "transports/tcp/settings.h"
#include "transports/tcp/socket.h"
#include "transports/tcp/tcp_link.h"
#include "transports/tcp/tcp_link_source.h"

namespace gradientflow {
namespace {

Status CheckOptions(const TransportOptions& options) {
  if (options.connections < 0 || options.connections >= kMaxTcpLanes) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("connections per peer: expected 0 to ",
                         kMaxTcpLanes - 1, ", seen ", options.connections));
  }
  if (options.ip_version != 0 && options.ip_version != 4 &&
      options.ip_version != 6) {
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("IP version: expected 0, 4 or 6, seen ", options.ip_version));
  }
  if (options.io_threads < -1 || options.io_threads > kMostIoThreads) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("io threads: expected -1 to ", kMostIoThreads,
                         ", seen ", options.io_threads));
  }
  if (options.first_port > options.last_port) {
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("range of ports: expected the lower number first, seen ",
               options.first_port, "-", options.last_port));
  }
  return Status();
}

class TcpEndpoint final : public Endpoint {
 public:
  static Result<std::unique_ptr<Endpoint>> Listen(
      const TransportOptions& options);

  std::string address() const override { return JoinRated(addresses_); }
  Result<std::vector<std::unique_ptr<Link>>> Connect(
      const ConnectArgs& args) override;
  Result<std::unique_ptr<LinkSource>> TakeLinkSource(
      const ConnectArgs& args, LinkSource::Sink* sink) override;
  std::string Choices() const override { return choices_; }
  std::size_t OwnDescriptors() const override;

 private:
  explicit TcpEndpoint(const TransportOptions& options) : options_(options) {}
  Result<std::shared_ptr<IoThreads>> StartIoThreads(const ConnectArgs& args);

  const TransportOptions options_;
  std::vector<Socket> listeners_;  // Empty if nobody can connect any more.
  std::vector<RatedAddress> addresses_;  // Not empty.
  std::shared_ptr<IoThreads> io_;        // For links that come later.
  std::string choices_;
};

// Listens at a port of the range, if there is one. Only a port that is taken is
// a reason to try the next.
Result<Socket> ListenInRange(SocketAddress at,
                             const TransportOptions& options) {
  Status taken;
  for (int port = options.first_port; port <= options.last_port; ++port) {
    at.SetPort(static_cast<std::uint16_t>(port));
    Result<Socket> listener = ListenOn(at, options.socket_buffer_bytes);
    if (listener.ok() ||
        listener.status().code() != StatusCode::kFailedPrecondition) {
      return listener;
    }
    taken = listener.status();
  }
  return Status(taken.code(),
                StrCat("expected a free port from ", options.first_port, " to ",
                       options.last_port, ": ", taken.message()));
}

// Where this rank can be reached if its interfaces do not tell.
Result<std::vector<RatedAddress>> AdvertisedAddresses(
    const TransportOptions& options) {
  const Result<std::vector<SocketAddress>> resolved =
      Resolve({options.advertise_address, 0});
  if (!resolved.ok()) return resolved.status();
  std::vector<RatedAddress> advertised;
  for (const SocketAddress& address : resolved.value()) {
    const int version = address.family() == AF_INET6 ? 6 : 4;
    if (options.ip_version == 0 || options.ip_version == version) {
      advertised.push_back({address, kUnknownRate});
    }
  }
  if (!advertised.empty()) return advertised;
  return Status(StatusCode::kInvalidArgument,
                StrCat("expected an IPv", options.ip_version,
                       " address to advertise, seen \"",
                       options.advertise_address, "\""));
}

Result<std::unique_ptr<Endpoint>> TcpEndpoint::Listen(
    const TransportOptions& options) {
  GF_RETURN_IF_ERROR(CheckOptions(options));
  GF_RETURN_IF_ERROR(options.CheckOwn(kTcpCongestion));
  const bool elsewhere = !options.advertise_address.empty();
  const auto interfaces = ListInterfaces();
  if (!interfaces.ok()) return interfaces.status();
  const auto published =
      elsewhere ? AdvertisedAddresses(options)
                : ChooseAddresses(interfaces.value(), options.socket_ifname,
                                  options.ip_version);
  if (!published.ok()) return published.status();
  std::unique_ptr<TcpEndpoint> endpoint(new TcpEndpoint(options));
  Status trouble;
  for (RatedAddress rated : published.value()) {
    const SocketAddress at =
        elsewhere ? AnyAddress(rated.address.family()) : rated.address;
    Result<Socket> listener = ListenInRange(at, options);
    // An address that has just come up or gone is no reason to give up.
    if (!listener.ok()) {
      trouble = listener.status();
      continue;
    }
    GF_RETURN_IF_ERROR(
        SetCongestion(listener.value(), options.Own(kTcpCongestion)));
    rated.address.SetPort(LocalAddress(listener.value()).port());
    endpoint->addresses_.push_back(rated);
    endpoint->listeners_.push_back(std::move(listener).value());
  }
  if (endpoint->listeners_.empty()) return trouble;
  return std::unique_ptr<Endpoint>(std::move(endpoint));
}

// The ranks of the host are not known yet, so this rank may get fewer.
std::size_t TcpEndpoint::OwnDescriptors() const {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const int line = LineRateOf(addresses_);
  const int most =
      ChooseIoThreads(options_.io_threads, line > 0 ? line : kAnyLine, cores);
  return IoThreads::DescriptorsOf(most);
}

Result<std::shared_ptr<IoThreads>> TcpEndpoint::StartIoThreads(
    const ConnectArgs& args) {
  bool links = args.more_later;
  for (int r = 0; r < args.size; ++r) {
    links |=
        r != args.rank && !args.addresses[static_cast<std::size_t>(r)].empty();
  }
  if (!links) return std::shared_ptr<IoThreads>();
  const int line = LineRateOf(addresses_);
  const int threads = ChooseIoThreads(options_.io_threads, line, args.cores);
  const bool later = options_.io_threads < 0 && line == 0;
  auto io = later ? IoThreads::StartWhenMeasured(args.cores, args.poller)
                  : IoThreads::Start(threads, args.poller);
  if (options_.io_threads < 0 && io.ok()) {
    const bool more = later && io.value() != nullptr;
    choices_ = StrCat("io_threads=", threads, " for ",
                      more ? "a line whose rate has yet to be measured"
                           : StrCat("a line of ", line, " Mb/s, 0 if unknown,"),
                      " and ", args.cores, " core(s) of this rank");
  }
  return io;
}

Result<std::vector<std::unique_ptr<Link>>> TcpEndpoint::Connect(
    const ConnectArgs& args) {
  GF_RETURN_IF_ERROR(ValidateConnect(args));
  if (listeners_.empty()) {
    return Status(StatusCode::kFailedPrecondition,
                  "this TCP endpoint has connected already");
  }
  const auto io = StartIoThreads(args);
  if (!io.ok()) return io.status();
  std::vector<Socket> listeners = std::exchange(listeners_, {});
  auto links = SetUpLanes(
      {options_, args, listeners, address(), RailsIn(addresses_), io.value()});
  if (links.ok() && args.more_later) {
    listeners_ = std::move(listeners);
    io_ = io.value();
  }
  return links;
}

Result<std::unique_ptr<LinkSource>> TcpEndpoint::TakeLinkSource(
    const ConnectArgs& args, LinkSource::Sink* sink) {
  if (listeners_.empty()) {
    return Status(StatusCode::kFailedPrecondition,
                  "expected a TCP endpoint that has connected to be linked to "
                  "more ranks later");
  }
  TcpLinkSource::Args source;
  source.options = options_;
  source.job = args;
  // These belong to Connect() alone.
  source.job.unlinked = nullptr;
  source.job.links_of_failure = nullptr;
  source.job.look = nullptr;
  source.sink = sink;
  source.listeners = std::exchange(listeners_, {});
  source.rails = RailsIn(addresses_);
  source.io = std::exchange(io_, nullptr);
  return TcpLinkSource::Create(std::move(source));
}

}  // namespace

constinit const TransportKind kTcpTransport = {
    .name = "tcp",
    .open = &TcpEndpoint::Listen,
    .settings = &TcpSettingRows,
};

}  // namespace gradientflow
