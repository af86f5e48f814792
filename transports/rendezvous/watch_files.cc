#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "transports/rendezvous/frames.h"
#include "transports/rendezvous/meeting.h"
#include "transports/rendezvous/watch.h"

// What ranks that have met in files do while they connect.
namespace gradientflow::rendezvous {
namespace {

class FileWatch final : public RendezvousWatch {
 public:
  explicit FileWatch(std::unique_ptr<Meeting> meeting)
      : meeting_(std::move(meeting)) {
    meeting_->BeginWatch();
  }
  ~FileWatch() override {
    if (meeting_ == nullptr) return;
    FileWatch::Leave(
        Status(StatusCode::kUnavailable,
               meeting_->Who() + " gave up while ranks connected"));
  }
  FileWatch(const FileWatch&) = delete;
  FileWatch& operator=(const FileWatch&) = delete;

  Status Look() override {
    if (ended_.ok()) ended_ = meeting_->Watch();
    return ended_;
  }
  bool Over() const override { return meeting_->WatchIsOver(); }
  void Leave(const Status& how) override {
    if (!how.ok() && ended_.ok()) meeting_->TellFailure(how);
    meeting_ = nullptr;
  }

 private:
  std::unique_ptr<Meeting> meeting_;  // Null after Leave().
  Status ended_;
};

}  // namespace

std::unique_ptr<RendezvousWatch> MakeWatch(std::unique_ptr<Meeting> meeting) {
  return std::make_unique<FileWatch>(std::move(meeting));
}

void Meeting::BeginWatch() {
  met_ = verdict_->id;
  left_.assign(count(), rank() != 0);
  left_[0] = rank() == 0;
}

bool Meeting::WatchIsOver() const {
  return std::find(left_.begin(), left_.end(), false) == left_.end();
}

Status Meeting::Watch() {
  Renew(clock_.Now());
  for (int r = 0; r < size(); ++r) {
    if (left_[static_cast<std::size_t>(r)]) continue;
    GF_RETURN_IF_ERROR(WatchOver(r));
  }
  return Status();
}

bool Meeting::HasLeft(int rank) {
  const auto at = static_cast<std::size_t>(rank);
  const std::optional<Entry>& entry = joined(rank).entry;
  return !entry || entry->nonce != verdict_->nonces[at];
}

// A rank writes its last word before it removes its join.r. So this looks at
// join.r first, and then finds that word if join.r is gone.
Status Meeting::WatchOver(int rank) {
  SeeJoin(rank);
  const bool left = HasLeft(rank);
  Status why;
  if (this->rank() != 0) {
    SeeVerdict();
    if (verdict_->failed) return DecodeStatus(verdict_->rest);
  } else if (left) {
    why = FailureOf(rank).value_or(Status());
  }
  if (left) {
    left_[static_cast<std::size_t>(rank)] = true;
  } else if (joined(rank).ended) {
    why = EndedWhileConnecting(
        rank, joined(rank).entry->claimant,
        StrCat("as its file in ", directory_.path(), " shows"));
  }
  return why.ok() || this->rank() != 0 ? why : Fail(why);
}

std::optional<Status> Meeting::FailureOf(int rank) {
  const auto failed = directory_.Read(Named("ack", rank), FrameType::kFailed);
  if (!failed) return std::nullopt;
  BodyReader reader(*failed);
  const std::string id = reader.Text();
  const std::string why = reader.Text();
  if (!reader.Complete() || id != met_) return std::nullopt;
  return DecodeStatus(why, rank);
}

void Meeting::TellFailure(const Status& why) {
  if (rank() == 0) {
    static_cast<void>(Fail(why));
    return;
  }
  if (left_[0]) return;
  std::string body;
  PutText(met_, &body);
  PutText(EncodeStatus(why), &body);
  // If it cannot be written, the others find out by themselves.
  static_cast<void>(
      directory_.Write(Named("ack", rank()), FrameType::kFailed, body));
}

}  // namespace gradientflow::rendezvous
