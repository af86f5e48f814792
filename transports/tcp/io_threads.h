#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "gradientflow/base/fd.h"
#include "gradientflow/base/fork.h"
#include "gradientflow/base/mutex.h"
#include "gradientflow/base/status.h"
#include "transports/poller.h"

// One thread moves some 20 to 30 Gb/s through TCP, and spends most of its time
// on copies between buffers and the kernel. On a faster line, io threads make
// these copies for the thread that drives, which keeps everything else:
// headers, matching, completions, errors.
//
//   driver                                  io thread
//   a lane has many bytes to move
//     Lend(loan)           -> inbox ->      sendmsg() or recvmsg(), and poll()
//                                           while the connection is full or
//                                           empty
//     Lender::OnReturned() <- returned <-   all are moved, or the stream ended
//
//   a lane is closed
//     TakeBack(loan)       -> inbox ->      drops the loan
//     returns              <- answers_ <-
//
// So each loan is touched by one thread at a time. It passes from one to the
// other through a mutex, and neither waits for the other except in TakeBack().
namespace gradientflow {

// Bytes of one lane, in one direction, that an io thread moves.
struct Loan {
  class Lender {
   public:
    virtual ~Lender() = default;
    // The io thread has moved all bytes, or cannot go on. Called from
    // Poller::Poll(), on the thread that drives. May lend again, and may take
    // back other loans.
    virtual void OnReturned(Loan* loan) = 0;
  };

  // Set by the lender, which touches neither them nor the buffers until it has
  // the loan back.
  Lender* lender = nullptr;
  int lane = 0;  // For the lender.
  int fd = -1;   // A connected socket.
  bool reads = false;
  // The buffers. They need not be filled beyond the first `least_bytes`.
  std::vector<iovec> pieces;
  std::size_t least_bytes = 0;

  // Set by the io thread.
  std::size_t moved_bytes = 0;
  bool ended = false;  // Nothing more can be moved,
  int error = 0;       // because of this errno; 0: the peer has closed.

  bool lent = false;  // For the thread that drives: not back yet.

 private:
  friend class IoThreads;
  bool ready_ = true;         // Not known to be full or empty.
  std::size_t next_ = 0;      // The first piece that is not done.
  std::size_t borrower_ = 0;  // Index of the io thread.
};

// Payloads of this length or more are lent. A loan costs two changes of thread.
// With payloads of this length they add a tenth to the processor time of all
// threads, and with half of it four fifths (gradientflow/docs/threads.md).
inline constexpr std::size_t kLeastLentBytes = std::size_t{256} << 10;
inline constexpr int kMostIoThreads = 64;

// Returns how many io threads a rank gets: `wanted`, or if that is negative,
// one per 10 Gb/s of its line, but at most a quarter of its `cores`, because
// the others compute. `line_mbps` is the sum over its rails, or kAnyLine for
// the most that a line can get.
int ChooseIoThreads(int wanted, int line_mbps, int cores);
inline constexpr int kAnyLine = 1'000'000;

// The io threads of one rank. All calls come from the thread that drives.
class IoThreads final : private Poller::Target {
 public:
  // Starts `threads` threads, or as many as the system allows. Returns null if
  // that is none. `poller` outlives the object.
  static Result<std::shared_ptr<IoThreads>> Start(int threads, Poller* poller);
  // For a line whose rate has yet to be measured. `cores` are this rank's.
  // Returns null if they are too few for any thread.
  static Result<std::shared_ptr<IoThreads>> StartWhenMeasured(int cores,
                                                              Poller* poller);
  // Starts the threads that such a line is worth; only the first measurement
  // counts. Returns whether there are any threads.
  bool Measured(int line_mbps);
  bool any() const { return !borrowers_.empty(); }
  // How many file descriptors Start() opens.
  static constexpr std::size_t DescriptorsOf(int threads) {
    return threads > 0 ? static_cast<std::size_t>(threads) + 1 : 0;
  }
  // REQUIRES that every loan is back. In a forked child, where these threads do
  // not exist, nothing is waited for.
  ~IoThreads() override;
  IoThreads(const IoThreads&) = delete;
  IoThreads& operator=(const IoThreads&) = delete;

  // Hands the loan to the io thread with the fewest loans. REQUIRES any(), and
  // that it is not lent.
  void Lend(Loan* loan);
  // Does nothing if the loan is not lent. Otherwise it is back on return,
  // without OnReturned(). Takes at most as long as one system call of the io
  // thread, which does not block.
  void TakeBack(Loan* loan);

 private:
  struct Command {
    Loan* loan = nullptr;  // Null: the thread has to end.
    bool take_back = false;
  };
  // One io thread.
  struct Borrower {
    Fd wake_fd;
    Mutex mutex;
    std::vector<Command> inbox GF_GUARDED_BY(mutex);
    bool asleep GF_GUARDED_BY(mutex) = false;
    // A loan is to be taken back: the thread begins no other system call.
    std::atomic<bool> called{false};
    // Counts the loans that were taken back.
    std::atomic<std::uint32_t> answers{0};
    // For the thread that drives.
    std::uint32_t taken_back = 0;
    int loans = 0;
  };

  IoThreads(Poller* poller, Fd returned_fd);
  static Result<std::shared_ptr<IoThreads>> Make(Poller* poller);
  void Add();

  // On the thread that drives.
  bool OnEvents(std::uint64_t cookie, std::uint32_t events) override;
  void Tell(Borrower& borrower, Command command);
  void IsBack(Loan* loan);
  Loan* PopReturned();

  // On an io thread.
  void Run(Borrower& borrower);
  bool Obey(Borrower& borrower, std::vector<Loan*>* loans);
  void WaitForWork(Borrower& borrower, const std::vector<Loan*>& loans);
  static void Move(Loan* loan);
  void Return(Loan* loan);

  Poller* const poller_;
  const Fd returned_fd_;  // Readable if there may be returned loans.
  const ProcessMark process_;
  int cores_ = 0;  // For threads that start when the line has been measured.
  std::vector<std::unique_ptr<Borrower>> borrowers_;
  // What io threads share, and the threads. A forked child must neither join
  // them nor destroy what they were changing.
  struct Returned {
    Mutex mutex;
    std::deque<Loan*> loans GF_GUARDED_BY(mutex);
    bool told GF_GUARDED_BY(mutex) = false;  // returned_fd_ is readable.
  };
  struct Threads;
  std::unique_ptr<Returned> returned_;
  std::unique_ptr<Threads> threads_;
};

}  // namespace gradientflow
