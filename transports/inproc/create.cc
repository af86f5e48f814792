#include "transports/inproc/create.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "gradientflow/base/fd.h"
#include "gradientflow/base/str_cat.h"
#include "transports/shm/fifo.h"
#include "transports/shm/shm_arena.h"
#include "transports/shm/shm_link.h"

namespace gradientflow {

struct InprocGroup::State {
  // The ends of rank r's links, by peer, until Connect(r) takes them.
  struct Rank {
    std::shared_ptr<ShmArena> arena;
    std::vector<ShmLinkArgs> ends;
    bool connected = false;
  };
  std::vector<Rank> ranks;
};

namespace {

// Connects ranks a and b by a socket pair and two FIFOs. Each FIFO is in the
// arena of the rank that reads it.
Status Join(int a, int b, std::size_t fifo_bytes, ShmLinkArgs* at_a,
            ShmLinkArgs* at_b) {
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0,
                   sockets) != 0) {
    return Status(StatusCode::kResourceExhausted,
                  StrCat("ranks ", a, " and ", b,
                         ": socketpair: ", std::strerror(errno)));
  }
  at_a->socket = Fd(sockets[0]);
  at_b->socket = Fd(sockets[1]);
  const auto make = [&](ShmArena& arena, int rank) -> Result<FifoMemory> {
    const Result<BufferView> fifo = arena.AllocateFifo(fifo_bytes);
    if (!fifo.ok()) return fifo.status();
    return arena.FifoAt(rank, arena.OffsetOf(fifo.value().data), fifo_bytes);
  };
  const Result<FifoMemory> to_a = make(*at_a->arena, a);
  const Result<FifoMemory> to_b = make(*at_b->arena, b);
  if (!to_a.ok()) return to_a.status();
  if (!to_b.ok()) return to_b.status();
  at_a->in = at_b->out = to_a.value();
  at_b->in = at_a->out = to_b.value();
  at_a->peer = b;
  at_b->peer = a;
  return Status();
}

}  // namespace

InprocGroup::InprocGroup(std::unique_ptr<State> state)
    : state_(std::move(state)) {}

InprocGroup::~InprocGroup() = default;

// Every rank gets an arena that all others map, and both ends of each pair are
// made at once.
Result<std::shared_ptr<InprocGroup>> InprocGroup::Create(
    int size, const ShmOptions& options) {
  if (size < 1) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("in-process group: expected a size of at least 1, ",
                         "seen ", size));
  }
  auto state = std::make_unique<State>();
  state->ranks.resize(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    Result<std::shared_ptr<ShmArena>> arena =
        ShmArena::Create(options.arena_bytes);
    if (!arena.ok()) return arena.status();
    arena.value()->SetSelf(rank);
    state->ranks[rank].arena = std::move(arena).value();
    state->ranks[rank].ends.resize(static_cast<std::size_t>(size));
  }
  const std::size_t fifo_bytes = FifoCapacity(options.fifo_bytes);
  for (int a = 0; a < size; ++a) {
    State::Rank& mine = state->ranks[a];
    for (int b = 0; b < size; ++b) {
      if (b == a) continue;
      State::Rank& other = state->ranks[b];
      // All members use the same mapping, so addresses are equal on every rank.
      GF_RETURN_IF_ERROR(mine.arena->AddMember(b, other.arena->mapping()));
      ShmLinkArgs& end = mine.ends[b];
      end.kind = "inproc";
      end.address = StrCat("pid ", ::getpid());
      end.arena = mine.arena;
      if (b < a) {
        GF_RETURN_IF_ERROR(Join(a, b, fifo_bytes, &end, &other.ends[a]));
      }
    }
  }
  return std::shared_ptr<InprocGroup>(new InprocGroup(std::move(state)));
}

int InprocGroup::size() const { return static_cast<int>(state_->ranks.size()); }

Result<std::vector<std::unique_ptr<Link>>> InprocGroup::Connect(
    int rank, Poller* poller, LinkEvents* events) {
  if (rank < 0 || rank >= size()) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("in-process group: expected a rank in [0, ", size(),
                         "), seen ", rank));
  }
  State::Rank& mine = state_->ranks[rank];
  if (std::exchange(mine.connected, true)) {
    return Status(
        StatusCode::kFailedPrecondition,
        StrCat("in-process group: rank ", rank, " was connected before"));
  }
  std::vector<std::unique_ptr<Link>> links(state_->ranks.size());
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank) continue;
    ShmLinkArgs args = std::move(mine.ends[peer]);
    args.poller = poller;
    args.events = events;
    Result<std::unique_ptr<ShmLink>> link = ShmLink::Create(std::move(args));
    if (!link.ok()) return link.status();
    links[peer] = std::move(link).value();
  }
  mine.ends.clear();
  return links;
}

SharedArena& InprocGroup::arena(int rank) {
  return *state_->ranks[static_cast<std::size_t>(rank)].arena;
}

}  // namespace gradientflow
