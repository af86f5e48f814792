#include <utility>

#include "transports/tcp/tcp_link.h"

// How io threads move large payloads for a link:
//
//   Read()        comes to a large payload: LendRead()
//   Write()       has gathered many bytes: LendWrite()
//   OnReturned()  they have been moved: OnRead() or OnWritten() goes on where
//                 Read() or Write() has stopped
//
// While a direction of a lane is lent, this thread neither reads (or writes)
// nor polls it. Everything else goes on, and messages are queued behind what is
// lent. The link has everything back before it closes a connection or gives
// back a buffer.
namespace gradientflow {

Loan& TcpLink::LoanOf(const Lane& lane, std::unique_ptr<Loan>* loan,
                      bool reads) {
  if (*loan == nullptr) {
    *loan = std::make_unique<Loan>();
    (*loan)->lender = this;
    (*loan)->lane = lane.index;
    (*loan)->fd = lane.socket.fd();
    (*loan)->reads = reads;
  }
  return **loan;
}

void TcpLink::LendRead(Lane& lane) {
  Loan& loan = LoanOf(lane, &lane.in, true);
  loan.least_bytes = lane.reader.missing_bytes();
  const auto rest = lane.reader.Rest();
  loan.pieces.assign(rest.begin(), rest.end());
  io_->Lend(&loan);
}

bool TcpLink::LendWrite(Lane& lane, std::span<const iovec> pieces,
                        std::size_t bytes) {
  if (io_ == nullptr || bytes < kLeastLentBytes) return false;
  Loan& loan = LoanOf(lane, &lane.out, false);
  loan.least_bytes = bytes;
  loan.pieces.assign(pieces.begin(), pieces.end());
  io_->Lend(&loan);
  return true;
}

void TcpLink::OnReturned(Loan* loan) {
  Lane& lane = *lanes_[static_cast<std::size_t>(loan->lane)];
  if (loan->reads) {
    OnRead(lane);
  } else {
    OnWritten(lane);
  }
}

void TcpLink::OnRead(Lane& lane) {
  lane.reader.Landed(lane.in->moved_bytes);
  if (lane.in->ended) lane.reader.End(lane.in->error);
  Read(lane);
  EndBroken(lane);
}

// Once the link has stopped writing, it does not matter why the io thread has.
void TcpLink::OnWritten(Lane& lane) {
  lane.writer.Wrote(lane.out->moved_bytes);
  CompleteWritten(lane);
  if (gone() || !writing_ || lane.broken) return;
  if (lane.out->ended) {
    BreakLane(lane, lane.out->error);
  } else {
    Write(lane);
  }
}

void TcpLink::TakeBackAll() {
  if (io_ == nullptr) return;
  for (const auto& lane : lanes_) {
    if (lane->in != nullptr) io_->TakeBack(lane->in.get());
    if (lane->out != nullptr) io_->TakeBack(lane->out.get());
  }
}

}  // namespace gradientflow
