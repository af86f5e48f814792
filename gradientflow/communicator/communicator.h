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
// of that process every call returns kFailedPrecondition, destroying it does
// nothing, and the job does not notice.
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  // Joins the job. Blocks until every rank has joined with the same settings:
  // size, algorithm, segments, connect and connections. If they differ, every
  // rank gets kInvalidArgument, which names a rank that differs and the first
  // difference. kDeadlineExceeded names the ranks that did not join. If
  // `exchange` is not empty, it replaces options.rendezvous.
  static Result<std::shared_ptr<Communicator>> Open(
      const Options& options, const Exchange& exchange = {});

  // Leaves the job; blocks for a short time. Sessions share the communicator,
  // so it lives until the last of them is gone.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const;
  int size() const;
  // The rank and the number of ranks within this host, in rank order.
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

  // Starts a collective and returns its ticket. The call's buffers are lent
  // until the call ends. All ranks of a group start the same calls in the same
  // order; groups, and the steps of sessions, do not wait for each other. With
  // a device (options().device) buffers may be in its memory: the call then
  // reads them after all work that the stream (SetStream()) has been given so
  // far, and the result is complete when the call ends.
  // Returns kInvalidArgument, and starts nothing, if the call is not valid.
  //
  // `completion`, if there is one, runs once with the status of the call, on
  // whichever thread drives, with no lock held. It may start calls, but must
  // not wait for any. It does not run if Start() fails.
  using Completion = std::function<void(const Status&)>;
  Result<std::uint64_t> Start(const CollectiveCall& call,
                              Completion completion = {});

  // One message to or from rank `peer` of `group`: bytes of host memory that
  // are lent until the call ends. Messages match by (group, peer, tag), in
  // order. If the length differs from that of the receive, the receiver gets
  // kInvalidArgument, and nothing else ends. A send may last until the peer
  // receives; see design.md, 20.
  struct Message {
    GroupId group = 0;
    int peer = 0;  // StartRecv(): kAnyRank takes the first that arrives.
    std::uint32_t tag = 0;
    int* source = nullptr;  // StartRecv(): set as it ends; may be null.
  };
  Result<std::uint64_t> StartSend(const Message& message, const void* data,
                                  std::size_t bytes,
                                  Completion completion = {});
  Result<std::uint64_t> StartRecv(const Message& message, void* data,
                                  std::size_t bytes,
                                  Completion completion = {});

  // Waits until the call of `ticket` has ended, for at most `seconds` (to 0.1
  // s; negative means without limit), and drives the job meanwhile. Returns the
  // status of the call. The ticket is spent then: to wait for it again is
  // kInvalidArgument. The ticket of a call with a completion returns OK once
  // the completion has returned, as often as it is asked.
  // Errors of the wait itself: kDeadlineExceeded, while Check() is OK, means
  // that the call is still under way; kInvalidArgument that no such ticket was
  // given out.
  static constexpr double kForever = std::numeric_limits<double>::infinity();
  Status Wait(std::uint64_t ticket, double seconds = kForever);

  // Start() and Wait() in one. A blocking call has no ticket, and costs no
  // switch of threads.
  Status Run(const CollectiveCall& call);
  Status Send(int peer, std::uint32_t tag, const void* data, std::size_t bytes);
  Status Recv(int peer, std::uint32_t tag, void* data, std::size_t bytes);

  // Opens a group of some of the ranks, with collectives of its own
  // (CollectiveCall::group) on the same links and thread. Rank i of the group
  // is ranks[i]. All members open it with the same arguments. `id` is from 1 to
  // 2^31 - 1, and none of the members has another group of that id open. The
  // call is local: nothing is sent. Groups take buffers in host memory only.
  Status OpenGroup(GroupId id, const std::vector<int>& ranks);
  // Closes a group. If calls of the group are still in flight, the job ends.
  // Returns kInvalidArgument if the group is not open.
  Status CloseGroup(GroupId id);

  // With a device: sets the stream (a cudaStream_t) that the buffers of plain
  // calls are computed on. Until this is called, it is the legacy default
  // stream. The caller owns the stream, which outlives the communicator. Has no
  // effect without a device.
  Status SetStream(void* native);

  // Returns `bytes` of zeroed memory that shared-memory collectives read
  // without a copy, valid until FreeShared() or the end of the communicator. It
  // is ordinary memory if no peer shares memory.
  Result<BufferView> AllocateShared(std::size_t bytes);
  void FreeShared(BufferView view);

  // Ends the job on every rank with `why`.
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
