#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "gradientflow/base/status.h"
#include "transports/poller.h"
#include "transports/tcp/io_threads.h"
#include "transports/tcp/lane_reader.h"
#include "transports/tcp/lane_writer.h"
#include "transports/tcp/socket.h"

namespace gradientflow {

// One connection of a TcpLink: the bytes that come and go over it, the events
// that the poller watches, and the loans to io threads. The thread that drives
// moves the bytes of each direction. While a direction is lent, an io thread
// does, and the thread that drives neither uses nor polls it. Messages are
// queued behind what is lent.
// NOT thread-safe.
class TcpLane final : public LaneReader::Source {
 public:
  // How the owner of a lane learns of its events; all outlive the lane.
  struct Owner {
    LaneReader::Sink* sink = nullptr;
    Poller* poller = nullptr;
    Poller::Target* target = nullptr;  // Its cookie is the lane's index.
    Loan::Lender* lender = nullptr;
    IoThreads* io = nullptr;  // Null: nothing is lent.
  };

  TcpLane(int index, Socket connected, const Owner& owner);

  std::uint64_t bit() const { return std::uint64_t{1} << index; }

  // -- The poller.
  // Makes the poller watch for the events that the lane now waits for.
  Status Register();
  void Deregister();

  // -- Io threads.
  bool reading_lent() const { return in_ != nullptr && in_->lent; }
  bool writing_lent() const { return out_ != nullptr && out_->lent; }
  // Lends from here on, if there are io threads.
  void MayLend();
  // Lends the missing part of the payload that is arriving. REQUIRES
  // LaneReader::Outcome::kLarge.
  void LendRead();
  // Lends what the writer has gathered, if that is large. Returns whether it
  // has.
  bool LendWrite(const LaneWriter::Gathered& next);
  // Gives the bytes that the io thread has read to the reader.
  void TakeRead();
  // Tells the writer what the io thread has written. Returns whether the
  // connection takes more, and if not the reason in `error`, an errno.
  bool TakeWritten(int* error);
  // Takes back all loans: no io thread touches the connection or a buffer any
  // more. The writer is told what has been written.
  void TakeBack();

  // From LaneReader::Source.
  std::int64_t Read(const iovec* pieces, int count) override;

  const int index;
  Socket socket;
  LaneReader reader;
  LaneWriter writer;
  bool watched = true;   // For input, by the poller: unwatched_lanes.h.
  bool blocked = false;  // The connection is full.
  bool ended = false;    // Nothing more will be read.
  bool broken = false;   // Nothing more will be written.
  // Why it is broken, if it has yet to be ended for that.
  int break_error = 0;

 private:
  Loan& LoanOf(std::unique_ptr<Loan>* loan, bool reads);

  const Owner owner_;
  std::uint32_t registered_ = 0;  // Events asked of the poller; 0 if none.
  // What io threads move. Made when they are first lent.
  std::unique_ptr<Loan> in_;
  std::unique_ptr<Loan> out_;
};

}  // namespace gradientflow
