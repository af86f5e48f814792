#include "transports/tcp/io_threads.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/base/without_signals.h"
#include "transports/tcp/socket.h"

namespace gradientflow {
namespace {

constexpr int kMbpsPerThread = 10'000;
constexpr int kCoresPerThread = 4;

Result<Fd> MakeEvent() {
  Fd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (fd.valid()) return fd;
  return Status(StatusCode::kResourceExhausted,
                StrCat("eventfd: ", std::generic_category().message(errno)));
}

// A counter that is full makes the descriptor readable, too.
void Signal(const Fd& event) {
  const std::uint64_t one = 1;
  while (::write(event.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

void Reset(const Fd& event) {
  std::uint64_t count = 0;
  while (::read(event.get(), &count, sizeof(count)) < 0 && errno == EINTR) {
  }
}

// Fills `room` with what the next system call should move; `*bytes` is its
// size. A loan that is taken back is soon back, since that is little.
std::span<const iovec> NextPieces(std::span<const iovec> left,
                                  std::span<iovec> room, std::size_t* bytes) {
  std::size_t count = 0;
  *bytes = 0;
  for (iovec piece : left) {
    if (count == room.size() || *bytes == kMostBytesAtOnce) break;
    if (piece.iov_len == 0) continue;
    piece.iov_len = std::min(piece.iov_len, kMostBytesAtOnce - *bytes);
    *bytes += piece.iov_len;
    room[count++] = piece;
  }
  return room.first(count);
}

// Skips `bytes` of the pieces from `first` on. Returns the first that is left.
std::size_t Skip(std::vector<iovec>* pieces, std::size_t first,
                 std::size_t bytes) {
  while (first < pieces->size() && bytes >= (*pieces)[first].iov_len) {
    bytes -= (*pieces)[first++].iov_len;
  }
  if (bytes == 0) return first;
  iovec& piece = (*pieces)[first];
  piece.iov_base = static_cast<std::byte*>(piece.iov_base) + bytes;
  piece.iov_len -= bytes;
  return first;
}

}  // namespace

int ChooseIoThreads(int wanted, int line_mbps, int cores) {
  if (wanted >= 0) return std::min(wanted, kMostIoThreads);
  return std::min(
      {line_mbps / kMbpsPerThread, cores / kCoresPerThread, kMostIoThreads});
}

struct IoThreads::Threads {
  std::vector<std::thread> all;
};

// ---- On the thread that drives.

Result<std::shared_ptr<IoThreads>> IoThreads::Make(Poller* poller) {
  Result<Fd> returned = MakeEvent();
  if (!returned.ok()) return std::shared_ptr<IoThreads>();
  std::shared_ptr<IoThreads> io(
      new IoThreads(poller, std::move(returned).value()));
  GF_RETURN_IF_ERROR(poller->Add(io->returned_fd_.get(), EPOLLIN, io.get(), 0));
  return io;
}

Result<std::shared_ptr<IoThreads>> IoThreads::Start(int threads,
                                                    Poller* poller) {
  if (threads <= 0) return std::shared_ptr<IoThreads>();
  auto io = Make(poller);
  if (!io.ok() || io.value() == nullptr) return io;
  for (int i = 0; i < threads; ++i) io.value()->Add();
  if (!io.value()->any()) return std::shared_ptr<IoThreads>();
  return io;
}

Result<std::shared_ptr<IoThreads>> IoThreads::StartWhenMeasured(
    int cores, Poller* poller) {
  if (ChooseIoThreads(-1, kAnyLine, cores) == 0) {
    return std::shared_ptr<IoThreads>();
  }
  auto io = Make(poller);
  if (io.ok() && io.value() != nullptr) io.value()->cores_ = cores;
  return io;
}

bool IoThreads::Measured(int line_mbps) {
  const int threads = ChooseIoThreads(-1, line_mbps, std::exchange(cores_, 0));
  for (int i = 0; i < threads; ++i) Add();
  return any();
}

IoThreads::IoThreads(Poller* poller, Fd returned_fd)
    : poller_(poller),
      returned_fd_(std::move(returned_fd)),
      returned_(std::make_unique<Returned>()),
      threads_(std::make_unique<Threads>()) {}

// With fewer threads than wanted everything works; it takes longer.
void IoThreads::Add() {
  Result<Fd> wake = MakeEvent();
  if (!wake.ok()) return;
  borrowers_.push_back(std::make_unique<Borrower>());
  Borrower& borrower = *borrowers_.back();
  borrower.wake_fd = std::move(wake).value();
  const WithoutSignals inherited;
  try {
    threads_->all.emplace_back([this, &borrower] { Run(borrower); });
  } catch (const std::system_error&) {
    borrowers_.pop_back();
    return;
  }
  ::pthread_setname_np(threads_->all.back().native_handle(), "gf-io");
}

IoThreads::~IoThreads() {
  if (process_.forked()) {
    LeaveBehind(threads_.release());
    LeaveBehind(returned_.release());
    for (auto& borrower : borrowers_) LeaveBehind(borrower.release());
    return;
  }
  poller_->Remove(returned_fd_.get());
  for (const auto& borrower : borrowers_) Tell(*borrower, {});
  for (std::thread& thread : threads_->all) thread.join();
}

void IoThreads::Tell(Borrower& borrower, Command command) {
  bool wake = false;
  {
    MutexLock lock(borrower.mutex);
    borrower.inbox.push_back(command);
    if (command.take_back) borrower.called.store(true);
    wake = std::exchange(borrower.asleep, false);
  }
  if (wake) Signal(borrower.wake_fd);
}

void IoThreads::Lend(Loan* loan) {
  assert(!loan->lent && !loan->pieces.empty());
  std::size_t least = 0;
  for (std::size_t i = 1; i < borrowers_.size(); ++i) {
    if (borrowers_[i]->loans < borrowers_[least]->loans) least = i;
  }
  loan->moved_bytes = loan->next_ = 0;
  loan->ended = false;
  loan->error = 0;
  loan->ready_ = loan->lent = true;
  loan->borrower_ = least;
  ++borrowers_[least]->loans;
  Tell(*borrowers_[least], {loan, false});
}

void IoThreads::IsBack(Loan* loan) {
  loan->lent = false;
  --borrowers_[loan->borrower_]->loans;
}

// The io thread may return the loan before it reads the command, but after its
// answer it does not know the loan.
void IoThreads::TakeBack(Loan* loan) {
  if (!loan->lent || process_.forked()) return;
  Borrower& borrower = *borrowers_[loan->borrower_];
  const std::uint32_t awaited = ++borrower.taken_back;
  Tell(borrower, {loan, true});
  for (std::uint32_t seen = borrower.answers.load(); seen != awaited;
       seen = borrower.answers.load()) {
    borrower.answers.wait(seen);
  }
  MutexLock lock(returned_->mutex);
  std::erase(returned_->loans, loan);
  IsBack(loan);
}

Loan* IoThreads::PopReturned() {
  MutexLock lock(returned_->mutex);
  if (returned_->loans.empty()) return nullptr;
  Loan* const loan = returned_->loans.front();
  returned_->loans.pop_front();
  return loan;
}

// One loan at a time, since a lender may take back others that wait here. What
// comes meanwhile makes the descriptor readable again.
bool IoThreads::OnEvents(std::uint64_t cookie, std::uint32_t events) {
  static_cast<void>(cookie);
  static_cast<void>(events);
  std::size_t count = 0;
  {
    MutexLock lock(returned_->mutex);
    Reset(returned_fd_);
    returned_->told = false;
    count = returned_->loans.size();
  }
  bool any = false;
  for (; count > 0; --count) {
    Loan* const loan = PopReturned();
    if (loan == nullptr) break;
    IsBack(loan);
    loan->lender->OnReturned(loan);
    any = true;
  }
  return any;
}

// ---- On an io thread.

void IoThreads::Run(Borrower& borrower) {
  std::vector<Loan*> loans;
  while (Obey(borrower, &loans)) {
    std::erase_if(loans, [&](Loan* loan) {
      if (!loan->ready_ || borrower.called.load()) return false;
      Move(loan);
      if (!loan->ended && loan->moved_bytes < loan->least_bytes) return false;
      Return(loan);
      return true;
    });
    WaitForWork(borrower, loans);
  }
}

// Returns whether the thread is to go on.
bool IoThreads::Obey(Borrower& borrower, std::vector<Loan*>* loans) {
  std::vector<Command> commands;
  {
    MutexLock lock(borrower.mutex);
    borrower.asleep = false;
    borrower.called.store(false);
    commands.swap(borrower.inbox);
  }
  for (const Command& command : commands) {
    if (command.loan == nullptr) return false;
    if (!command.take_back) {
      loans->push_back(command.loan);
      continue;
    }
    std::erase(*loans, command.loan);
    borrower.answers.fetch_add(1);
    borrower.answers.notify_one();
  }
  return true;
}

// Makes one system call.
void IoThreads::Move(Loan* loan) {
  std::array<iovec, kMostPiecesAtOnce> room;
  std::size_t bytes = 0;
  const std::span<const iovec> next = NextPieces(
      std::span<const iovec>(loan->pieces).subspan(loan->next_), room, &bytes);
  const std::int64_t moved =
      loan->reads ? ReceivePieces(loan->fd, next) : SendPieces(loan->fd, next);
  if (moved == -EAGAIN || moved == -EWOULDBLOCK) {
    loan->ready_ = false;
    return;
  }
  if (moved <= 0) {
    loan->ended = true;
    loan->error = static_cast<int>(-moved);
    return;
  }
  const auto taken = static_cast<std::size_t>(moved);
  loan->moved_bytes += taken;
  loan->next_ = Skip(&loan->pieces, loan->next_, taken);
  loan->ready_ = taken == bytes;
}

// Returns at once if there is something to do, else when there is.
void IoThreads::WaitForWork(Borrower& borrower,
                            const std::vector<Loan*>& loans) {
  std::vector<pollfd> polled = {{borrower.wake_fd.get(), POLLIN, 0}};
  for (const Loan* loan : loans) {
    const short wanted = loan->reads ? POLLIN : POLLOUT;
    if (!loan->ready_) polled.push_back({loan->fd, wanted, 0});
  }
  const bool idle = polled.size() == loans.size() + 1;
  if (!idle && polled.size() == 1) return;
  {
    MutexLock lock(borrower.mutex);
    if (!borrower.inbox.empty()) return;
    borrower.asleep = idle;
  }
  if (::poll(polled.data(), polled.size(), idle ? -1 : 0) <= 0) return;
  if (polled[0].revents != 0) Reset(borrower.wake_fd);
  std::size_t next = 1;
  for (Loan* loan : loans) {
    if (!loan->ready_) loan->ready_ = polled[next++].revents != 0;
  }
}

void IoThreads::Return(Loan* loan) {
  MutexLock lock(returned_->mutex);
  returned_->loans.push_back(loan);
  if (!std::exchange(returned_->told, true)) Signal(returned_fd_);
}

}  // namespace gradientflow
