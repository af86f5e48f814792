#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <list>
#include <memory>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "transports/rendezvous/frames.h"
#include "transports/rendezvous/listen.h"
#include "transports/rendezvous/ways.h"
#include "transports/tcp/addresses.h"
#include "transports/tcp/door.h"
#include "transports/tcp/socket.h"

namespace gradientflow::rendezvous {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kLongestWait(100);
// How long the last messages may take to reach the clients.
constexpr seconds kFarewell(2);
// Connections that may be open without having joined, in addition to one for
// each rank.
constexpr std::size_t kPatienceForStrangers = 64;

struct Client {
  Client(Socket socket, std::string from)
      : stream(std::move(socket), kMostJoinBytes), address(std::move(from)) {}
  FrameStream stream;
  const std::string address;
  int rank = -1;  // -1 until it has joined.
  bool acked = false;
  bool turned_away = false;  // Dropped once flushed.
};

class Server final : private Door::Guests {
 public:
  Server(const Call& call, std::vector<Socket> listeners)
      : call_(call),
        listeners_(std::move(listeners)),
        by_rank_(static_cast<std::size_t>(call.options.size)) {}

  Result<std::vector<std::string>> Run();

 private:
  enum class Stage { kJoining, kAcknowledging, kLeaving };
  using Clients = std::list<Client>;

  int size() const { return call_.options.size; }
  // Waits for the next event and handles what is ready.
  Status Round(milliseconds patience);
  bool full() const override;
  bool DropOldestStranger() override;
  void Admit(Socket socket) override;
  // Returns whether to keep the client.
  Result<bool> Serve(Client& client);
  Result<bool> OnFrame(Client& client, const Frame& frame);
  Result<bool> OnJoin(Client& client, const Join& join);
  bool TurnAway(Client& client, const Status& why);
  Status OnGone(Client& client);
  Status Advance();
  void QueueToAll(FrameType type, const std::string& body);
  std::vector<int> Awaited() const;
  Status Fail(const Status& why);

  const Call& call_;
  const std::vector<Socket> listeners_;
  Door door_;
  Clients clients_;  // Oldest first.
  std::vector<Client*> by_rank_;
  std::vector<std::string> cards_;
  Stage stage_ = Stage::kJoining;
};

// Strangers are connections that have not joined.
bool Server::full() const {
  const auto strangers =
      std::count_if(clients_.begin(), clients_.end(),
                    [](const Client& c) { return c.rank < 0; });
  return static_cast<std::size_t>(strangers) >=
         kPatienceForStrangers + by_rank_.size();
}

bool Server::DropOldestStranger() {
  const auto stranger =
      std::find_if(clients_.begin(), clients_.end(),
                   [](const Client& c) { return c.rank < 0; });
  if (stranger == clients_.end()) return false;
  clients_.erase(stranger);
  return true;
}

void Server::Admit(Socket socket) {
  std::string from = PeerAddress(socket).ToString();
  clients_.emplace_back(std::move(socket), std::move(from));
}

// Keeps the client only until it has the refusal.
bool Server::TurnAway(Client& client, const Status& why) {
  client.turned_away = true;
  client.stream.Queue(MakeFrame(FrameType::kRefused, EncodeStatus(why)));
  return client.stream.Flush() && !client.stream.flushed();
}

// A wrong token concerns only this client. A wrong size, or a rank that is
// claimed twice, is an error of the whole job.
Result<bool> Server::OnJoin(Client& client, const Join& join) {
  const RendezvousOptions& mine = call_.options;
  if (!EqualSecrets(join.token, mine.job_token)) {
    return TurnAway(
        client,
        Status(StatusCode::kFailedPrecondition,
               StrCat("rank 0 at ", mine.address, " refused ", client.address,
                      " as rank ", join.rank, ": its job token differs")));
  }
  if (join.size != static_cast<std::uint32_t>(size()) ||
      join.rank >= join.size) {
    client.rank = -1;
    const Status why(StatusCode::kInvalidArgument,
                     StrCat("rank ", join.rank, " (", client.address,
                            ") expects ", join.size, " ranks, rank 0 (",
                            mine.address, ") expects ", size()));
    TurnAway(client, why);
    return why;
  }
  const auto rank = static_cast<std::size_t>(join.rank);
  if (rank != 0 && by_rank_[rank] != nullptr) {
    // The first client may have closed its connection and come back.
    Client& first = *by_rank_[rank];
    Frame ignored;
    if (first.stream.Read(&ignored) == FrameStream::State::kClosed) {
      GF_RETURN_IF_ERROR(OnGone(first));
    }
  }
  if (rank == 0 || by_rank_[rank] != nullptr) {
    const Status why(StatusCode::kInvalidArgument,
                     StrCat("rank ", rank, " is claimed twice: by ",
                            rank == 0 ? "rank 0 at " + mine.address
                                      : by_rank_[rank]->address,
                            " and by ", client.address));
    TurnAway(client, why);
    return why;
  }
  client.rank = static_cast<int>(rank);
  by_rank_[rank] = &client;
  cards_[rank] = join.card;
  client.stream.Queue(MakeFrame(FrameType::kWelcome, ""));
  return true;
}

Result<bool> Server::OnFrame(Client& client, const Frame& frame) {
  if (stage_ == Stage::kLeaving) return true;  // Too late to matter.
  if (frame.type == FrameType::kJoin && client.rank < 0 &&
      stage_ == Stage::kJoining) {
    const std::optional<Join> join = DecodeJoin(frame.body);
    if (!join || join->card.size() > kMaxCardBytes) return false;
    return OnJoin(client, *join);
  }
  if (frame.type == FrameType::kAck && stage_ == Stage::kAcknowledging &&
      client.rank >= 0) {
    client.acked = true;
    return true;
  }
  return false;
}

Status Server::OnGone(Client& client) {
  if (client.rank < 0) return Status();
  const int rank = std::exchange(client.rank, -1);
  by_rank_[static_cast<std::size_t>(rank)] = nullptr;
  if (stage_ != Stage::kAcknowledging) return Status();  // It may come again.
  return Status(
      StatusCode::kUnavailable,
      StrCat("rank ", rank, " (", client.address, ") left the rendezvous: ",
             client.stream.trouble().empty() ? "sent what was not expected now"
                                             : client.stream.trouble()));
}

Result<bool> Server::Serve(Client& client) {
  if (!client.stream.Flush()) {
    GF_RETURN_IF_ERROR(OnGone(client));
    return false;
  }
  if (client.turned_away) return !client.stream.flushed();
  for (;;) {
    Frame frame;
    switch (client.stream.Read(&frame)) {
      case FrameStream::State::kWaiting:
        return client.stream.Flush();
      case FrameStream::State::kClosed:
      case FrameStream::State::kGarbage:
        GF_RETURN_IF_ERROR(OnGone(client));
        return false;
      case FrameStream::State::kFrame: {
        const Result<bool> keep = OnFrame(client, frame);
        if (!keep.ok()) return keep.status();
        if (!keep.value()) {
          GF_RETURN_IF_ERROR(OnGone(client));
          return false;
        }
        if (client.turned_away) return true;
      }
    }
  }
}

Status Server::Round(milliseconds patience) {
  const Clock::Time now = call_.clock.Now();
  std::vector<pollfd> ready;
  for (const Socket& listener : listeners_) {
    ready.push_back({door_.DescriptorOf(listener, now), POLLIN, 0});
  }
  for (const Client& client : clients_) {
    ready.push_back(
        {client.stream.fd(),
         static_cast<short>((client.turned_away ? 0 : POLLIN) |
                            (client.stream.flushed() ? 0 : POLLOUT)),
         0});
  }
  if (::poll(ready.data(), ready.size(), static_cast<int>(patience.count())) <
      0) {
    if (errno == EINTR) return Status();
    return SocketError(StatusCode::kInternal, "poll", errno);
  }
  auto client = clients_.begin();
  for (std::size_t i = listeners_.size(); i < ready.size(); ++i) {
    const auto at = client++;
    if (ready[i].revents == 0) continue;
    const Result<bool> keep = Serve(*at);
    if (!keep.ok()) return keep.status();
    if (!keep.value()) clients_.erase(at);
  }
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    if (ready[i].revents != 0) door_.AcceptSome(listeners_[i], now, this);
  }
  return Status();
}

std::vector<int> Server::Awaited() const {
  std::vector<int> awaited;
  for (int r = 1; r < size(); ++r) {
    const Client* const client = by_rank_[static_cast<std::size_t>(r)];
    const bool there =
        client != nullptr && (stage_ != Stage::kAcknowledging || client->acked);
    if (!there) awaited.push_back(r);
  }
  return awaited;
}

void Server::QueueToAll(FrameType type, const std::string& body) {
  const auto frame = MakeFrame(type, body);
  for (Client& client : clients_) {
    if (client.rank >= 0) client.stream.Queue(frame);
  }
  for (Client& client : clients_) client.stream.Flush();
}

Status Server::Advance() {
  if (!Awaited().empty()) return Status();
  if (stage_ == Stage::kJoining) {
    stage_ = Stage::kAcknowledging;
    QueueToAll(FrameType::kCards, EncodeTexts(cards_));
  } else if (stage_ == Stage::kAcknowledging) {
    stage_ = Stage::kLeaving;
    QueueToAll(FrameType::kGo, "");
  }
  return Status();
}

// Tells all clients that have joined.
Status Server::Fail(const Status& why) {
  stage_ = Stage::kLeaving;
  QueueToAll(FrameType::kFailed, EncodeStatus(why));
  return why;
}

// kJoining -> kAcknowledging when all ranks have joined: they get the cards. ->
// kLeaving when all have confirmed them: they get kGo. A failure, too, leads to
// kLeaving, with kFailed instead.
Result<std::vector<std::string>> Server::Run() {
  cards_.resize(static_cast<std::size_t>(size()));
  cards_[0] = call_.my_card;
  Status failed;
  while (stage_ != Stage::kLeaving) {
    const Clock::Time now = call_.clock.Now();
    Status status;
    if (now >= call_.options.deadline) {
      status =
          Status(StatusCode::kDeadlineExceeded,
                 StrCat("rendezvous at ", call_.options.address, ": ranks ",
                        NameRanks(Awaited(), size()),
                        stage_ == Stage::kJoining ? " did not join in time"
                                                  : " did not confirm in time",
                        door_.Trouble()));
    } else {
      status = Round(std::chrono::ceil<milliseconds>(
          std::min<Clock::Time>(call_.options.deadline - now, kLongestWait)));
    }
    if (status.ok()) status = Advance();
    if (!status.ok()) failed = Fail(status);
  }
  const Clock::Time give_up = call_.clock.Now() + kFarewell;
  const auto unflushed = [](const Client& c) { return !c.stream.flushed(); };
  while (std::any_of(clients_.begin(), clients_.end(), unflushed) &&
         call_.clock.Now() < give_up) {
    if (!Round(kLongestWait).ok()) break;
  }
  if (!failed.ok()) return failed;
  return std::move(cards_);
}

}  // namespace

Result<std::vector<std::string>> ServeTcp(const Call& call) {
  Result<std::vector<Socket>> listeners = ListenForRanks(call.options.address);
  if (!listeners.ok()) return listeners.status();
  return Server(call, std::move(listeners).value()).Run();
}

}  // namespace gradientflow::rendezvous
