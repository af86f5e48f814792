#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "transports/rendezvous/frames.h"
#include "transports/rendezvous/listen.h"
#include "transports/rendezvous/misfits.h"
#include "transports/rendezvous/watch.h"
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
// Connections that may be open without having proven anything, in addition to
// one for each rank.
constexpr std::size_t kPatienceForStrangers = 256;
// The most bytes that an error tells about ranks that were left out.
constexpr std::size_t kMostComplaintBytes = 1000;

struct Client {
  Client(Socket socket, std::string from, const Bits256& bits, Clock::Time now)
      : stream(std::move(socket), kMostStrangerBytes),
        address(std::move(from)),
        challenge(bits),
        since(now) {}
  FrameStream stream;
  const std::string address;
  const Bits256 challenge;
  const Clock::Time since;
  std::uint32_t claim = 0;   // The rank that it says it is.
  bool proven = false;       // It knows the secret.
  int rank = -1;             // -1 until it has a seat.
  std::uint32_t acked = 0;   // The round.
  bool turned_away = false;  // Dropped once flushed.
};

class Server final : private Door::Guests {
 public:
  Server(const Call& call, Listeners listeners)
      : call_(call),
        listeners_(std::move(listeners.sockets)),
        by_rank_(static_cast<std::size_t>(call.options.size)),
        misfits_(call.options.size),
        complaints_(std::move(listeners.note)) {}

  Result<std::string> Run();

 private:
  enum class Stage { kJoining, kAcknowledging, kLeaving };
  using Clients = std::list<Client>;

  int size() const { return call_.options.size; }
  // Waits for the next event and handles what is ready.
  Status Round(milliseconds patience);
  bool full() const override;
  bool DropOldestStranger() override;
  void Admit(Socket socket) override;
  void DropTheSilent(Clock::Time now);
  // Returns whether to keep the client.
  Result<bool> Serve(Client& client);
  bool OnFrame(Client& client, const Frame& frame);
  bool OnJoin(Client& client, const Join& join);
  bool OnCard(Client& client, const std::string& card);
  bool TurnAway(Client& client, const Status& why);
  bool LeaveOut(Client& client, const Status& why);
  bool LeaveOutIfAMember(Client& client, const std::string& why);
  Status OnGone(Client& client, bool welcomed);
  bool LeaveOutAsDifferent(Client& client, const Status& why);
  void Complain(const Status& why);
  Status Advance(Clock::Time now);
  Status IntroduceAll();
  void QueueToAll(FrameType type, const std::string& body);
  std::vector<int> Awaited() const;
  Status TooLate() const;
  Status Fail(const Status& why);
  void HandOver();
  // All are told to go on. What they say from here on is for the watch.
  bool watching() const {
    return stage_ == Stage::kLeaving && failed_.ok() &&
           call_.options.watch != nullptr;
  }

  const Call& call_;
  const std::vector<Socket> listeners_;
  Door door_;
  Clients clients_;               // Oldest first.
  std::vector<Client*> by_rank_;  // Who has the seat.
  Misfits misfits_;
  std::vector<std::string> cards_;
  std::string introduction_;  // Rank 0's own.
  Stage stage_ = Stage::kJoining;
  std::uint32_t round_ = 0;  // How often all seats were taken.
  Clock::Time asked_at_{};   // When this round began.
  std::string complaints_;   // What may explain why a rank is missing.
  Status failed_;            // Why no one can join.
  Status ended_;             // The first rank that ended after that.
};

bool Server::full() const {
  const auto strangers =
      std::count_if(clients_.begin(), clients_.end(),
                    [](const Client& c) { return !c.proven; });
  return static_cast<std::size_t>(strangers) >=
         kPatienceForStrangers + by_rank_.size();
}

bool Server::DropOldestStranger() {
  const auto stranger = std::find_if(clients_.begin(), clients_.end(),
                                     [](const Client& c) { return !c.proven; });
  if (stranger == clients_.end()) return false;
  clients_.erase(stranger);
  return true;
}

void Server::Admit(Socket socket) {
  const Result<Bits256> challenge = RandomBits();
  if (!challenge.ok() || !PrepareConnection(socket).ok()) return;
  std::string from = PeerAddress(socket).ToString();
  clients_.emplace_back(std::move(socket), std::move(from), challenge.value(),
                        call_.clock.Now());
  FrameStream& stream = clients_.back().stream;
  stream.Queue(MakeFrame(FrameType::kChallenge, View(challenge.value())));
  // If the connection is broken, reading from it will show that.
  static_cast<void>(stream.Flush());
}

// Ranks that have a seat are asked for an answer by Advance().
void Server::DropTheSilent(Clock::Time now) {
  for (auto client = clients_.begin(); client != clients_.end();) {
    const auto at = client++;
    if (at->rank >= 0) continue;
    const bool told = at->turned_away && at->stream.flushed();
    if (!told && now - at->since < kAnswerPatience) continue;
    if (!at->turned_away) LeaveOutIfAMember(*at, "sent no card");
    clients_.erase(at);
  }
}

// Keeps the client only until it has the refusal.
bool Server::TurnAway(Client& client, const Status& why) {
  client.turned_away = true;
  client.stream.Queue(MakeFrame(FrameType::kRefused, EncodeStatus(why)));
  return client.stream.Flush() && !client.stream.flushed();
}

void Server::Complain(const Status& why) {
  if (complaints_.size() >= kMostComplaintBytes) return;
  complaints_ += StrCat("; left out: ", why.message());
  if (call_.options.on_left_out) call_.options.on_left_out(why);
}

// Leaves out a client that knows the secret. The right one for its seat may
// still come, and then all are introduced again.
bool Server::LeaveOut(Client& client, const Status& why) {
  if (client.rank >= 0) {
    by_rank_[static_cast<std::size_t>(client.rank)] = nullptr;
    client.rank = -1;
    stage_ = Stage::kJoining;
  }
  Complain(why);
  return TurnAway(client, why);
}

// Leaves out a client whose size or settings are not this job's. That is
// nobody's fault if the right rank has come already.
bool Server::LeaveOutAsDifferent(Client& client, const Status& why) {
  const auto claim = static_cast<std::size_t>(client.claim);
  const bool taken = claim < by_rank_.size() && by_rank_[claim] != nullptr &&
                     by_rank_[claim] != &client;
  if (!taken) misfits_.Note(client.claim, why);
  return LeaveOut(client, why);
}

// Strangers are dropped without a word.
bool Server::LeaveOutIfAMember(Client& client, const std::string& why) {
  if (!client.proven || stage_ == Stage::kLeaving) return false;
  return LeaveOut(
      client, Status(StatusCode::kDataLoss, StrCat("rank ", client.claim, " (",
                                                   client.address, ") ", why)));
}

bool Server::OnJoin(Client& client, const Join& join) {
  const RendezvousOptions& mine = call_.options;
  const Bits256 proof =
      ProofOf(FrameType::kJoin, mine.secret, client.challenge, join);
  if (!EqualBits(join.proof, proof)) {
    return TurnAway(
        client,
        Status(StatusCode::kFailedPrecondition,
               StrCat("rank 0 at ", mine.address, " refused ", client.address,
                      " as rank ", join.rank, ": its job token differs")));
  }
  client.proven = true;
  client.claim = join.rank;
  if (join.size != static_cast<std::uint32_t>(size()) ||
      join.rank >= join.size) {
    return LeaveOutAsDifferent(
        client, Status(StatusCode::kInvalidArgument,
                       StrCat("rank ", join.rank, " (", client.address,
                              ") expects ", join.size, " ranks, rank 0 (",
                              mine.address, ") expects ", size())));
  }
  if (join.rank == 0) {
    return LeaveOut(client,
                    Status(StatusCode::kInvalidArgument,
                           StrCat("rank 0 is claimed twice: by rank 0 at ",
                                  mine.address, " and by ", client.address)));
  }
  const Bits256 answer =
      ProofOf(FrameType::kWelcome, mine.secret, client.challenge, join);
  client.stream.AllowBodies(kMaxCardBytes);
  client.stream.Queue(MakeFrame(FrameType::kWelcome, View(answer)));
  return true;
}

// The latest claim counts, because of two processes with one rank the earlier
// one is more likely to be left over from a run that has ended. A card that
// does not fit claims nothing.
bool Server::OnCard(Client& client, const std::string& card) {
  const RendezvousOptions& mine = call_.options;
  if (mine.check_card) {
    const Status fits = mine.check_card(static_cast<int>(client.claim), card);
    if (!fits.ok()) {
      const Status why(fits.code(),
                       StrCat(fits.message(), " (", client.address, ")"));
      return fits.code() == StatusCode::kInvalidArgument
                 ? LeaveOutAsDifferent(client, why)
                 : LeaveOut(client, why);
    }
  }
  Client* const earlier = by_rank_[client.claim];
  if (earlier != nullptr) {
    LeaveOut(*earlier, Status(StatusCode::kInvalidArgument,
                              StrCat("rank ", client.claim,
                                     " is claimed twice: by ", earlier->address,
                                     " and, later, by ", client.address)));
  }
  client.rank = static_cast<int>(client.claim);
  by_rank_[client.claim] = &client;
  cards_[client.claim] = card;
  misfits_.Forget(client.claim);
  stage_ = Stage::kJoining;  // All are introduced again.
  return true;
}

// Returns whether to keep the client: not if the frame does not fit the state,
// and after a refusal only until that has left.
bool Server::OnFrame(Client& client, const Frame& frame) {
  if (stage_ == Stage::kLeaving) return true;  // Too late to matter.
  if (frame.type == FrameType::kJoin && !client.proven) {
    const std::optional<Join> join = DecodeJoin(frame.body);
    return join && OnJoin(client, *join);
  }
  if (frame.type == FrameType::kCard && client.proven && client.rank < 0) {
    return OnCard(client, frame.body);
  }
  if (frame.type == FrameType::kAck && client.rank >= 0) {
    BodyReader reader(frame.body);
    client.acked = reader.Number();
    return reader.Complete();
  }
  return false;
}

// A rank that had joined and is gone ends the rendezvous for all. But if it
// left before it could be welcomed, it may have run out of patience with a rank
// 0 that was stopped, and may come again.
Status Server::OnGone(Client& client, bool welcomed) {
  if (client.rank >= 0 && watching() && ended_.ok()) {
    ended_ = EndedWhileConnecting(client.rank, client.address,
                                  client.stream.trouble());
  }
  if (client.rank < 0 || stage_ == Stage::kLeaving) return Status();
  const int rank = std::exchange(client.rank, -1);
  by_rank_[static_cast<std::size_t>(rank)] = nullptr;
  const Status why(StatusCode::kUnavailable,
                   StrCat("rank ", rank, " (", client.address,
                          ") left the rendezvous: ", client.stream.trouble()));
  if (welcomed) return why;
  Complain(why);
  return Status();
}

Result<bool> Server::Serve(Client& client) {
  const bool welcomed = client.proven;  // By an earlier call.
  if (!client.stream.Flush()) {
    GF_RETURN_IF_ERROR(OnGone(client, welcomed));
    return false;
  }
  if (client.turned_away) return !client.stream.flushed();
  if (watching()) return true;
  for (;;) {
    Frame frame;
    switch (client.stream.Read(&frame)) {
      case FrameStream::State::kWaiting:
        return client.stream.Flush();
      case FrameStream::State::kClosed:
        GF_RETURN_IF_ERROR(OnGone(client, welcomed));
        return false;
      case FrameStream::State::kGarbage:
        return LeaveOutIfAMember(client,
                                 "sent no frame: " + client.stream.trouble());
      case FrameStream::State::kFrame: {
        const bool fits = OnFrame(client, frame);
        if (client.turned_away) return fits;
        if (fits) continue;
        return LeaveOutIfAMember(client, "sent what was not expected now");
      }
    }
  }
}

Status Server::Round(milliseconds patience) {
  const Clock::Time now = call_.clock.Now();
  DropTheSilent(now);
  std::vector<pollfd> ready;
  for (const Socket& listener : listeners_) {
    ready.push_back({door_.DescriptorOf(listener, now), POLLIN, 0});
  }
  for (const Client& client : clients_) {
    const bool reads = !client.turned_away && !watching();
    const bool writes = !client.stream.flushed();
    ready.push_back(
        {reads || writes ? client.stream.fd() : -1,
         static_cast<short>((reads ? POLLIN : 0) | (writes ? POLLOUT : 0)), 0});
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
    const bool there = client != nullptr && (stage_ != Stage::kAcknowledging ||
                                             client->acked == round_);
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

Status Server::IntroduceAll() {
  std::vector<int> ranks(by_rank_.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  Result<std::vector<std::string>> texts = call_.introduce(cards_, ranks);
  if (!texts.ok()) return texts.status();
  introduction_ = std::move(texts.value().front());
  ++round_;
  for (Client& client : clients_) {
    if (client.rank < 0) continue;
    std::string body;
    PutNumber(round_, &body);
    body += texts.value()[static_cast<std::size_t>(client.rank)];
    client.stream.Queue(MakeFrame(FrameType::kIntroduction, body));
    client.stream.Flush();
  }
  return Status();
}

// Ranks are introduced again if a seat has changed hands meanwhile.
Status Server::Advance(Clock::Time now) {
  const std::vector<int> awaited = Awaited();
  // Those that have yet to acknowledge fit.
  GF_RETURN_IF_ERROR(misfits_.Check(awaited, now));
  if (stage_ == Stage::kJoining && awaited.empty()) {
    stage_ = Stage::kAcknowledging;
    asked_at_ = now;
    GF_RETURN_IF_ERROR(IntroduceAll());
  } else if (stage_ == Stage::kAcknowledging && awaited.empty()) {
    stage_ = Stage::kLeaving;
    std::string round;
    PutNumber(round_, &round);
    QueueToAll(FrameType::kGo, round);
  } else if (stage_ == Stage::kAcknowledging &&
             now - asked_at_ >= kAnswerPatience) {
    for (const int rank : awaited) {
      Client& silent = *by_rank_[static_cast<std::size_t>(rank)];
      LeaveOut(silent, Status(StatusCode::kDeadlineExceeded,
                              StrCat("rank ", rank, " (", silent.address,
                                     ") fell silent after its card")));
    }
  }
  return Status();
}

Status Server::TooLate() const {
  return Status(StatusCode::kDeadlineExceeded,
                StrCat("rendezvous at ", call_.options.address, ": ranks ",
                       NameRanks(Awaited(), size()),
                       stage_ == Stage::kJoining ? " did not join in time"
                                                 : " did not confirm in time",
                       complaints_, door_.Trouble()));
}

// Tells all clients that have joined.
Status Server::Fail(const Status& why) {
  stage_ = Stage::kLeaving;
  QueueToAll(FrameType::kFailed, EncodeStatus(why));
  return why;
}

void Server::HandOver() {
  if (!watching()) return;
  std::vector<Watched> ranks;
  for (Client& client : clients_) {
    if (client.rank < 0) continue;
    ranks.push_back({client.rank, client.address, std::move(client.stream)});
  }
  *call_.options.watch = MakeWatch(std::move(ranks), ended_);
}

// kJoining -> kAcknowledging when all ranks have joined: they are introduced.
// -> kLeaving when all have confirmed that: they get kGo. A failure, too, leads
// to kLeaving, with kFailed instead.
Result<std::string> Server::Run() {
  cards_.resize(static_cast<std::size_t>(size()));
  cards_[0] = call_.my_card;
  while (stage_ != Stage::kLeaving) {
    const Clock::Time now = call_.clock.Now();
    const Clock::Time deadline = call_.options.deadline;
    Status status =
        now >= deadline
            ? TooLate()
            : Round(std::chrono::ceil<milliseconds>(
                  std::min<Clock::Time>(deadline - now, kLongestWait)));
    if (status.ok()) status = Advance(call_.clock.Now());
    if (!status.ok()) failed_ = Fail(status);
  }
  const Clock::Time give_up = call_.clock.Now() + kFarewell;
  const auto unflushed = [](const Client& c) { return !c.stream.flushed(); };
  while (std::any_of(clients_.begin(), clients_.end(), unflushed) &&
         call_.clock.Now() < give_up) {
    if (!Round(kLongestWait).ok()) break;
  }
  if (!failed_.ok()) return failed_;
  HandOver();
  return std::move(introduction_);
}

}  // namespace

Result<std::string> ServeTcp(const Call& call) {
  Result<Listeners> listeners = ListenForRanks(call.options.address);
  if (!listeners.ok()) return listeners.status();
  return Server(call, std::move(listeners).value()).Run();
}

}  // namespace gradientflow::rendezvous
