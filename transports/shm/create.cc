#include "transports/shm/create.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/fd.h"
#include "gradientflow/base/str_cat.h"
#include "transports/shm/fifo.h"
#include "transports/shm/handshake.h"
#include "transports/shm/hello.h"
#include "transports/shm/shm_arena.h"
#include "transports/shm/shm_link.h"

namespace gradientflow {
namespace {

// The id of the running kernel, which is new at every boot. Empty if it cannot
// be read.
std::string BootId() {
  const Fd file(
      ::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  std::array<char, 64> text;
  const ssize_t got =
      file.valid() ? ::read(file.get(), text.data(), text.size()) : -1;
  std::string id(text.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return id;
}

// The number of the namespace; 0 if it cannot be read.
std::uint64_t Namespace(const char* path) {
  struct stat info = {};
  return ::stat(path, &info) == 0 ? info.st_ino : 0;
}

std::string HostId() {
  const std::string boot = BootId();
  const std::uint64_t net = Namespace("/proc/self/ns/net");
  const std::uint64_t user = Namespace("/proc/self/ns/user");
  // If the host cannot be identified, no two processes share memory.
  if (boot.empty() || net == 0) {
    const Result<ShmListener> unique = ListenAbstract();
    return unique.ok() ? unique.value().name
                       : StrCat("unknown host of pid ", ::getpid());
  }
  return StrCat(boot, "/net ", net, "/user ", user, "/", ::geteuid());
}

// This process among the processes of its host that share memory.
class ShmEndpoint final : public Endpoint {
 public:
  static Result<std::unique_ptr<Endpoint>> Open(
      const TransportOptions& options);

  std::string address() const override { return listener_.name; }
  Result<std::vector<std::unique_ptr<Link>>> Connect(
      const ConnectArgs& args) override;
  SharedArena* arena() override { return arena_.get(); }

 private:
  ShmEndpoint() = default;

  ShmListener listener_;
  std::size_t fifo_bytes_ = 0;
  std::shared_ptr<ShmArena> arena_;
};

Result<std::unique_ptr<Endpoint>> ShmEndpoint::Open(
    const TransportOptions& options) {
  Result<std::shared_ptr<ShmArena>> arena =
      ShmArena::Create(options.arena_bytes);
  if (!arena.ok()) return arena.status();
  Result<ShmListener> listener = ListenAbstract();
  if (!listener.ok()) return listener.status();
  std::unique_ptr<ShmEndpoint> endpoint(new ShmEndpoint);
  endpoint->arena_ = std::move(arena).value();
  endpoint->listener_ = std::move(listener).value();
  endpoint->fifo_bytes_ = FifoCapacity(options.fifo_bytes);
  return std::unique_ptr<Endpoint>(std::move(endpoint));
}

Result<std::vector<std::unique_ptr<Link>>> ShmEndpoint::Connect(
    const ConnectArgs& args) {
  GF_RETURN_IF_ERROR(ValidateConnect(args));
  if (!arena_->members().empty()) {
    return Status(StatusCode::kFailedPrecondition,
                  "this shared-memory endpoint has connected already");
  }
  arena_->SetSelf(args.rank);
  ShmHandshake handshake(args, listener_, arena_, fifo_bytes_);
  Result<std::vector<ShmLinkArgs>> ends = handshake.Run();
  if (!ends.ok()) return ends.status();
  listener_.socket.Reset();
  std::vector<std::unique_ptr<Link>> links(static_cast<std::size_t>(args.size));
  for (ShmLinkArgs& end : ends.value()) {
    if (!end.socket.valid()) continue;
    const int peer = end.peer;
    Result<std::unique_ptr<ShmLink>> link = ShmLink::Create(std::move(end));
    if (!link.ok()) return link.status();
    links[static_cast<std::size_t>(peer)] = std::move(link).value();
  }
  return links;
}

}  // namespace

constinit const TransportKind kShmTransport = {
    .name = "shm",
    .open = &ShmEndpoint::Open,
    .host_id = &HostId,
};

}  // namespace gradientflow
