#include "transports/shm/create.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "gradientflow/base/fd.h"
#include "gradientflow/base/str_cat.h"
#include "transports/shm/fifo.h"
#include "transports/shm/handshake.h"
#include "transports/shm/hello.h"
#include "transports/shm/shm_arena.h"
#include "transports/shm/shm_link.h"

namespace gradientflow {
namespace {

// Of the running kernel: new at every boot. Empty if it cannot be read.
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

// The namespace's number, 0 if it cannot be read.
std::uint64_t Namespace(const char* path) {
  struct stat info = {};
  return ::stat(path, &info) == 0 ? info.st_ino : 0;
}

Status Validate(const ShmConnectArgs& args) {
  if (args.size < 1 || args.rank < 0 || args.rank >= args.size ||
      args.addresses.size() != static_cast<std::size_t>(args.size)) {
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("shared memory: rank ", args.rank, " of ", args.size, " with ",
               args.addresses.size(), " addresses: expected one per rank"));
  }
  return Status();
}

}  // namespace

struct ShmHost::State {
  ShmListener listener;
  std::size_t fifo_bytes = 0;
  std::shared_ptr<ShmArena> arena;
};

ShmHost::ShmHost(std::unique_ptr<State> state) : state_(std::move(state)) {}

ShmHost::~ShmHost() = default;

Result<std::unique_ptr<ShmHost>> ShmHost::Create(const ShmOptions& options) {
  auto state = std::make_unique<State>();
  Result<std::shared_ptr<ShmArena>> arena =
      ShmArena::Create(options.arena_bytes);
  if (!arena.ok()) return arena.status();
  Result<ShmListener> listener = ListenAbstract();
  if (!listener.ok()) return listener.status();
  state->arena = std::move(arena).value();
  state->listener = std::move(listener).value();
  state->fifo_bytes = FifoCapacity(options.fifo_bytes);
  return std::unique_ptr<ShmHost>(new ShmHost(std::move(state)));
}

const std::string& ShmHost::address() const { return state_->listener.name; }

std::string ShmHost::HostId() {
  const std::string boot = BootId();
  const std::uint64_t net = Namespace("/proc/self/ns/net");
  const std::uint64_t user = Namespace("/proc/self/ns/user");
  // Where it cannot be known, no two processes share.
  if (boot.empty() || net == 0) {
    const Result<ShmListener> unique = ListenAbstract();
    return unique.ok() ? unique.value().name
                       : StrCat("unknown host of pid ", ::getpid());
  }
  return StrCat(boot, "/net ", net, "/user ", user, "/", ::geteuid());
}

Result<std::vector<std::unique_ptr<Link>>> ShmHost::Connect(
    const ShmConnectArgs& args) {
  GF_RETURN_IF_ERROR(Validate(args));
  if (!state_->arena->members().empty()) {
    return Status(StatusCode::kFailedPrecondition,
                  "ShmHost::Connect() was called before");
  }
  state_->arena->SetSelf(args.rank);
  ShmHandshake handshake(args, state_->listener.socket, state_->arena,
                         state_->fifo_bytes);
  Result<std::vector<ShmLinkArgs>> ends = handshake.Run();
  if (!ends.ok()) return ends.status();
  state_->listener.socket.Reset();
  std::vector<std::unique_ptr<Link>> links(static_cast<std::size_t>(args.size));
  for (ShmLinkArgs& end : ends.value()) {
    if (!end.socket.valid()) continue;
    const int peer = end.peer;
    Result<std::unique_ptr<ShmLink>> link = ShmLink::Create(std::move(end));
    if (!link.ok()) return link.status();
    links[peer] = std::move(link).value();
  }
  return links;
}

SharedArena& ShmHost::arena() { return *state_->arena; }

}  // namespace gradientflow
