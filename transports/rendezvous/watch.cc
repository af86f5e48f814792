#include "transports/rendezvous/watch.h"

#include <algorithm>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow::rendezvous {
namespace {

class TcpWatch final : public RendezvousWatch {
 public:
  TcpWatch(std::vector<Watched> watched, Status ended)
      : watched_(std::move(watched)), ended_(std::move(ended)) {
    if (!ended_.ok()) TellAll(ended_);
  }

  Status Look() override;
  bool Over() const override {
    return std::all_of(watched_.begin(), watched_.end(),
                       [](const Watched& rank) { return rank.linked; });
  }
  void Leave(const Status& how) override;

 private:
  // Takes what has come from one rank.
  Status Hear(Watched& from);
  void TellAll(const Status& why);

  std::vector<Watched> watched_;
  Status ended_;
};

Status TcpWatch::Look() {
  for (Watched& from : watched_) {
    if (!ended_.ok()) break;
    if (from.linked) continue;
    ended_ = Hear(from);
    if (!ended_.ok()) TellAll(ended_);
  }
  return ended_;
}

Status TcpWatch::Hear(Watched& from) {
  Frame frame;
  switch (from.stream.Read(&frame)) {
    case FrameStream::State::kWaiting:
      return Status();
    case FrameStream::State::kClosed:
      return EndedWhileConnecting(from.rank, from.address,
                                  from.stream.trouble());
    case FrameStream::State::kGarbage:
      break;
    case FrameStream::State::kFrame:
      if (frame.type == FrameType::kFailed) {
        return DecodeStatus(frame.body, from.rank);
      }
      break;
  }
  // A member that says something else can do no harm: it is not listened to any
  // more, as if it had all its links.
  from.linked = true;
  return Status();
}

void TcpWatch::TellAll(const Status& why) {
  const auto frame = MakeFrame(FrameType::kFailed, EncodeStatus(why));
  for (Watched& to : watched_) {
    to.stream.Queue(frame);
    to.stream.Flush();
  }
}

// This sends a few bytes, for which a connection has room.
void TcpWatch::Leave(const Status& how) {
  if (!how.ok()) {
    if (ended_.ok()) TellAll(how);
  } else {
    for (Watched& to : watched_) {
      to.stream.Queue(MakeFrame(FrameType::kLinked, ""));
      to.stream.Flush();
    }
  }
  watched_.clear();
}

}  // namespace

std::unique_ptr<RendezvousWatch> MakeWatch(std::vector<Watched> watched,
                                           Status ended) {
  return std::make_unique<TcpWatch>(std::move(watched), std::move(ended));
}

Status EndedWhileConnecting(int rank, const std::string& address,
                            const std::string& trouble) {
  return Status(StatusCode::kUnavailable,
                StrCat("rank ", rank, " (", address,
                       ") ended while ranks connected: ", trouble));
}

}  // namespace gradientflow::rendezvous
