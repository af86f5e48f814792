#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/fork.h"
#include "gradientflow/base/status.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/communicator/exchange.h"
#include "gradientflow/config/options.h"

namespace gradientflow {

class CommunicatorCore;

// One rank's part in a job: the links to the other ranks, collectives and
// messages over them, and the thread that drives both. Sessions on a
// communicator make training steps (gradientflow/session.h).
//
//   auto comm = Communicator::Open(options).value();
//   CollectiveCall call;
//   call.output = data;
//   call.count = n;
//   Status summed = comm->Run(call);  // data is the sum over all ranks.
//
// Thread-safe. A communicator belongs to the process that opened it. In a fork
// of that process every call that returns a Status or Result returns
// kFailedPrecondition; FreeShared(), Abort() and the destructor do nothing; and
// the job does not notice.
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  // Joins the job. Blocks until every rank has joined. If settings differ that
  // must be equal on all ranks (settings.md lists them), every rank gets
  // kInvalidArgument, which names a rank that differs and the first difference.
  // kDeadlineExceeded names the ranks that did not join within
  // join_timeout_seconds. If `exchange` is not empty, it replaces
  // options.rendezvous. The options are copied.
  static Result<std::shared_ptr<Communicator>> Open(
      const Options& options, const Exchange& exchange = {});

  // Leaves the job: blocks until the peers have said good-bye too, for at most
  // 2 seconds. If calls are in flight, the job ends; their completions run on
  // this thread. Sessions share the communicator, so it lives until the last of
  // them is gone. REQUIRES that no call is running on another thread; Abort()
  // ends those that wait.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const;
  int size() const;
  // This rank's number among the ranks of its host, in rank order from 0, and
  // how many these are.
  int local_rank() const;
  int local_size() const;
  const Options& options() const;  // As in force.

  // True if this process is a fork of the one that opened the communicator.
  // Costs a load.
  bool forked() const { return process_.forked(); }
  // Returns OK, or kFailedPrecondition in a fork.
  Status CheckProcess() const;
  // Returns OK, or why the job has ended.
  Status Check() const;

  // Starts a collective and returns its ticket; does not block. The call's
  // buffers are lent until the call ends. All ranks of a group start the same
  // calls in the same order; groups, and the steps of sessions, do not wait for
  // each other. With a device (options().device) buffers may be in its memory:
  // the call then reads them after all work that the stream of SetStream() has
  // been given so far, and the result is complete when the call ends.
  // Returns kInvalidArgument, and starts nothing, if the call is not valid.
  //
  // `completion`, if it is not empty, runs once with the status of the call, on
  // whichever thread drives, with no lock held. It may start calls, but must
  // not wait for any. It does not run if Start() fails. A call without one
  // must be waited for once: its result is kept until then.
  using Completion = std::function<void(const Status&)>;
  Result<std::uint64_t> Start(const CollectiveCall& call,
                              Completion completion = {});

  // Starts to send or receive one message: `bytes` bytes of host memory, lent
  // until the call ends. Messages match by (group, peer, tag), in the order of
  // their starts. If the length differs from that of the receive, the receiver
  // gets kInvalidArgument, and neither the send nor the job is affected. A send
  // of more than 2^40 bytes returns kInvalidArgument. A send may last until the
  // peer receives (see design.md, 20), and ends with OK, too, if the peer will
  // not: it closes the group, or leaves the job. Tickets, completions and
  // errors are as those of Start().
  struct Message {
    GroupId group = 0;
    int peer = 0;  // StartRecv(): kAnyRank takes the first that arrives.
    std::uint32_t tag = 0;
    // StartRecv(): set to the sender's rank when the receive ends, until when
    // it is lent; may be null.
    int* source = nullptr;
  };
  Result<std::uint64_t> StartSend(const Message& message, const void* data,
                                  std::size_t bytes,
                                  Completion completion = {});
  Result<std::uint64_t> StartRecv(const Message& message, void* data,
                                  std::size_t bytes,
                                  Completion completion = {});

  // Waits until the call of `ticket` has ended, for at most `seconds` (with a
  // resolution of 0.1 s; negative means without limit), and drives the job
  // meanwhile. Returns the status of the call, and the ticket is then spent:
  // waiting for it again returns kInvalidArgument. For a call with a
  // completion, Wait() returns OK once the completion has returned, however
  // often it is called.
  // Errors of the wait itself: kDeadlineExceeded, while Check() is OK, means
  // that the call is still under way, and the ticket stays valid;
  // kInvalidArgument means that no such ticket was given out. Must not be
  // called in a completion.
  static constexpr double kForever = std::numeric_limits<double>::infinity();
  Status Wait(std::uint64_t ticket, double seconds = kForever);

  // Start() and Wait() in one. Blocks, and costs no switch of threads. Send()
  // and Recv() are for the group of all ranks.
  Status Run(const CollectiveCall& call);
  Status Send(int peer, std::uint32_t tag, const void* data, std::size_t bytes);
  Status Recv(int peer, std::uint32_t tag, void* data, std::size_t bytes);

  // Opens a group of some of the ranks, with collectives of its own
  // (CollectiveCall::group) on the same links and thread. Rank i of the group
  // is ranks[i]. All members open it with the same arguments. `id` is from 1 to
  // 2^31 - 1, and none of the members has another group of that id open. The
  // call is local: nothing is sent. Groups take buffers in host memory only.
  // Returns kInvalidArgument if these rules are broken on this rank.
  Status OpenGroup(GroupId id, const std::vector<int>& ranks);
  // Closes a group. If calls of the group are still in flight, the job ends.
  // Returns kInvalidArgument if the group is not open, and kFailedPrecondition
  // if a session has it.
  Status CloseGroup(GroupId id);

  // With a device: sets the stream (a cudaStream_t) that the buffers of plain
  // calls are computed on. Until this is called, it is the legacy default
  // stream. The caller owns the stream, which outlives the communicator. A
  // stream of another device, or one that is being captured into a graph, is
  // refused, and the stream stays as it was. Has no effect without a device.
  Status SetStream(void* native);

  // Returns `bytes` bytes of zeroed host memory that collectives use without a
  // copy, by shared memory and by RDMA; it is ordinary memory if no peer is
  // linked by these. The communicator owns it. It is valid until FreeShared()
  // or the end of the communicator. kResourceExhausted if there is not enough.
  Result<BufferView> AllocateShared(std::size_t bytes);
  // Frees what AllocateShared() returned; other views are ignored. REQUIRES
  // that no call uses the memory.
  void FreeShared(BufferView view);

  // Ends the job on every rank, with the code and the text of `why`. REQUIRES
  // !why.ok().
  void Abort(const Status& why);

  // The parts of the communicator, for sessions.
  CommunicatorCore& core() const { return *core_; }

  // Takes a core whose ranks have joined already, for callers of core.h.
  explicit Communicator(std::unique_ptr<CommunicatorCore> core);

 private:
  const ProcessMark process_;
  std::unique_ptr<CommunicatorCore> core_;
};

}  // namespace gradientflow
