#include "transports/tcp/tcp_lane.h"

#include <sys/epoll.h>

#include <cstddef>

namespace gradientflow {

TcpLane::TcpLane(int lane, Socket connected, const Owner& owner)
    : index(lane),
      socket(std::move(connected)),
      reader(lane, this, owner.sink),
      owner_(owner) {
  MayLend();
}

std::int64_t TcpLane::Read(const iovec* pieces, int count) {
  return ReceivePieces(socket.fd(), {pieces, static_cast<std::size_t>(count)});
}

Status TcpLane::Register() {
  if (ended) return Status();
  const std::uint32_t wanted =
      (reader.paused() || reading_lent() || !watched
           ? 0U
           : static_cast<std::uint32_t>(EPOLLIN)) |
      (blocked ? static_cast<std::uint32_t>(EPOLLOUT) : 0U);
  if (wanted == registered_) return Status();
  if (wanted == 0) {
    Deregister();
    return Status();
  }
  const auto cookie = static_cast<std::uint64_t>(index);
  Poller& poller = *owner_.poller;
  Status status =
      registered_ == 0
          ? poller.Add(socket.fd(), wanted, owner_.target, cookie)
          : poller.Modify(socket.fd(), wanted, owner_.target, cookie);
  if (status.ok()) registered_ = wanted;
  return status;
}

void TcpLane::Deregister() {
  if (registered_ != 0) owner_.poller->Remove(socket.fd());
  registered_ = 0;
}

Loan& TcpLane::LoanOf(std::unique_ptr<Loan>* loan, bool reads) {
  if (*loan == nullptr) {
    *loan = std::make_unique<Loan>();
    (*loan)->lender = owner_.lender;
    (*loan)->lane = index;
    (*loan)->fd = socket.fd();
    (*loan)->reads = reads;
  }
  return **loan;
}

void TcpLane::MayLend() {
  if (owner_.io == nullptr || !owner_.io->any()) return;
  reader.LendLargePayloads(kLeastLentBytes);
}

void TcpLane::LendRead() {
  Loan& loan = LoanOf(&in_, true);
  loan.least_bytes = reader.missing_bytes();
  const auto rest = reader.Rest();
  loan.pieces.assign(rest.begin(), rest.end());
  owner_.io->Lend(&loan);
}

bool TcpLane::LendWrite(const LaneWriter::Gathered& next) {
  if (owner_.io == nullptr || !owner_.io->any() ||
      next.bytes < kLeastLentBytes) {
    return false;
  }
  Loan& loan = LoanOf(&out_, false);
  loan.least_bytes = next.bytes;
  loan.pieces.assign(next.pieces.begin(), next.pieces.end());
  owner_.io->Lend(&loan);
  return true;
}

void TcpLane::TakeRead() {
  reader.Landed(in_->moved_bytes);
  if (in_->ended) reader.End(in_->error);
}

bool TcpLane::TakeWritten(int* error) {
  writer.Wrote(out_->moved_bytes);
  *error = out_->error;
  return !out_->ended;
}

void TcpLane::TakeBack() {
  if (in_ != nullptr) owner_.io->TakeBack(in_.get());
  if (!writing_lent()) return;
  owner_.io->TakeBack(out_.get());
  if (!writing_lent()) writer.Wrote(out_->moved_bytes);
}

}  // namespace gradientflow
