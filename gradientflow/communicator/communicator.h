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
// messages over them, and the thread that drives both. Training steps are made
// by sessions on it (gradientflow/session.h).
//
//   auto comm = Communicator::Open(options).value();
//   CollectiveCall call;
//   call.output = data;
//   call.count = n;
//   Status summed = comm->Run(call);  // data is the sum over all ranks.
//
// Thread-safe. Belongs to the process that opened it: in a fork of that process
// every call is kFailedPrecondition and destroying it does nothing; the job
// does not notice.
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  // Joins the job. Blocks until every rank has joined with the same settings
  // (those of size, algorithm, segments and connections). kInvalidArgument on
  // every rank names the rank that differs and the first difference;
  // kDeadlineExceeded names who did not come.
  // `exchange`, if not empty, takes the place of options.rendezvous.
  static Result<std::shared_ptr<Communicator>> Open(
      const Options& options, const Exchange& exchange = {});

  // Leaves the job. Blocks shortly. Sessions share the communicator, so it
  // stays until the last of them is gone.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const;
  int size() const;
  // The same among the ranks of this host, in the order of their ranks.
  int local_rank() const;
  int local_size() const;
  const Options& options() const;  // As in force.

  // This process is a fork of the one that opened the communicator. Costs a
  // load.
  bool forked() const { return process_.forked(); }
  // OK, or kFailedPrecondition in a fork.
  Status CheckProcess() const;
  // OK, or why the job has ended.
  Status Check() const;

  // Starts a collective and returns its ticket; the call's buffers are lent
  // until it ends. All ranks of a group start the same calls in the same order;
  // groups, and the steps of sessions, do not wait for each other.
  // With a device (options().device) buffers may be in its memory: what the
  // stream (SetStream) has been given so far comes before, and the result is
  // complete when the call ends.
  // kInvalidArgument: the call is not valid; nothing was started.
  //
  // `completion`, if there is one, is told once how the call ended, by the
  // thread that drives, whichever it is, with no lock held. It may start calls
  // and must not wait for any. It does not run if Start() fails.
  using Completion = std::function<void(const Status&)>;
  Result<std::uint64_t> Start(const CollectiveCall& call,
                              Completion completion = {});

  // One message to or from rank `peer` of `group`, in bytes of host memory that
  // are lent until it ends; matched by (group, peer, tag), in order. A length
  // that differs from the sent one is kInvalidArgument on the receiver, and
  // ends nothing else.
  struct Message {
    GroupId group = 0;
    int peer = 0;  // StartRecv: kAnyRank takes the first that comes.
    std::uint32_t tag = 0;
    int* source = nullptr;  // StartRecv: set as it ends; may be null.
  };
  Result<std::uint64_t> StartSend(const Message& message, const void* data,
                                  std::size_t bytes,
                                  Completion completion = {});
  Result<std::uint64_t> StartRecv(const Message& message, void* data,
                                  std::size_t bytes,
                                  Completion completion = {});

  // Waits until the call of that ticket is over, `seconds` at most (to 0.1 s;
  // negative: without limit), and drives the job meanwhile. Returns how the
  // call ended; the ticket is spent, and waiting for it again is
  // kInvalidArgument. For a call with a completion: OK once the completion has
  // returned, however often it is asked.
  // kDeadlineExceeded while the job is in order (Check()): still under way.
  // kInvalidArgument: no such ticket was given out.
  static constexpr double kForever = std::numeric_limits<double>::infinity();
  Status Wait(std::uint64_t ticket, double seconds = kForever);

  // Start() and Wait() in one; a blocking call has no ticket, and costs no
  // switch of threads.
  Status Run(const CollectiveCall& call);
  Status Send(int peer, std::uint32_t tag, const void* data, std::size_t bytes);
  Status Recv(int peer, std::uint32_t tag, void* data, std::size_t bytes);

  // Some of the ranks, with collectives of their own (CollectiveCall::group) on
  // the same links and thread: rank i of the group is ranks[i]. All members
  // open it alike, with an `id` of no other group that one of them has open, 1
  // to 2^31 - 1. Local: nothing is sent. Host memory only.
  Status OpenGroup(GroupId id, const std::vector<int>& ranks);
  // Calls of the group that are still in flight end the job; kInvalidArgument
  // if it is not open.
  Status CloseGroup(GroupId id);

  // With a device: the stream (cudaStream_t) that plain calls' buffers are
  // computed on; the legacy default stream until this is called. The caller's;
  // outlives the communicator. Without effect with no device.
  Status SetStream(void* native);

  // `bytes` of zeroed memory that shared-memory collectives read without a
  // copy, until FreeShared() or the communicator is gone. Ordinary memory where
  // no peer shares memory.
  Result<BufferView> AllocateShared(std::size_t bytes);
  void FreeShared(BufferView view);

  // Ends the job on every rank with `why`.
  void Abort(const Status& why);

  // What the communicator is made of: for sessions.
  CommunicatorCore& core() const { return *core_; }

  // Of ranks that are joined already; for core.h's callers.
  explicit Communicator(std::unique_ptr<CommunicatorCore> core);

 private:
  const ProcessMark process_;
  std::unique_ptr<CommunicatorCore> core_;
};

}  // namespace gradientflow
