#include <infiniband/verbs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>

#include "gradientflow/base/str_cat.h"
#include "tests/rdma/fake_calls.h"
#include "tests/rdma/fake_fabric.h"

// How a rank hears of what has happened:
//
//   Complete -> completion queue -> poll_cq
//                    | if it is armed
//                    v
//              channel (an eventfd) -> get_cq_event -> ack_cq_events
//
//   Raise -> context (an eventfd) -> get_async_event -> ack_async_event
namespace gradientflow::fake_verbs {
namespace {

// An eventfd that counts events one by one.
void Count(int fd) {
  const std::uint64_t one = 1;
  if (::write(fd, &one, sizeof(one)) != sizeof(one)) std::abort();
}

// Blocks, or fails with EAGAIN, as the descriptor was set to. Called without
// the lock. The sanitizer learns nothing from it.
bool TakeOne(int fd) {
  std::uint64_t one = 0;
  HideBegin();
  const bool taken = ::read(fd, &one, sizeof(one)) == sizeof(one);
  HideEnd();
  return taken;
}

// Fields that mean nothing are no zeros that somebody could rely upon.
void Spoil(ibv_wc* wc) {
  wc->opcode = IBV_WC_TM_NO_TAG;
  wc->byte_len = 0xDEADBEEF;
  wc->imm_data = 0xDEADBEEF;
  wc->wc_flags = IBV_WC_WITH_IMM | IBV_WC_GRH;
  wc->vendor_err = 0x5A;
}

ibv_wc_opcode OpcodeOf(const Send& send) {
  return send.wr.opcode == IBV_WR_RDMA_WRITE ||
                 send.wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM
             ? IBV_WC_RDMA_WRITE
             : IBV_WC_SEND;
}

}  // namespace

void Fabric::Complete(Pair* pair, const Send& send, ibv_wc_status status) {
  Completion completion;
  ibv_wc& wc = completion.wc;
  wc.opcode = OpcodeOf(send);
  wc.byte_len = 0xDEADBEEF;  // It tells what was received.
  if (status != IBV_WC_SUCCESS) Spoil(&wc);
  wc.wr_id = send.wr.wr_id;
  wc.status = status;
  completion.of_send = true;
  completion.sequence = send.sequence;
  Push(pair->sends_to, pair, completion, false);
}

void Fabric::Complete(Pair* pair, const Receive& receive, ibv_wc wc,
                      bool solicited) {
  const ibv_wc_status status = wc.status;
  if (status != IBV_WC_SUCCESS) Spoil(&wc);
  wc.wr_id = receive.wr_id;
  wc.status = status;
  Completion completion;
  completion.wc = wc;
  Push(pair->receives_to, pair, completion, solicited);
  if (status != IBV_WC_SUCCESS) Break(pair);
}

void Fabric::Push(Queue* queue, Pair* by, Completion completion,
                  bool solicited) {
  if (queue->broken) return;
  if (queue->entries.size() == queue->places.size()) return Overflow(queue);
  completion.wc.qp_num = by->qp_num;
  completion.pair = by->identity;
  completion.place = &queue->places[queue->pushed++ % queue->places.size()];
  by->order.Release(completion.place);
  const ibv_wc_status status = completion.wc.status;
  FakeVerbsStats& stats = by->on->host->stats;
  ++stats.completions;
  if (status == IBV_WC_WR_FLUSH_ERR) ++stats.flushes;
  if (status != IBV_WC_SUCCESS && status != IBV_WC_WR_FLUSH_ERR) ++stats.errors;
  queue->entries.push_back(completion);
  const bool wanted =
      !queue->solicited_only || solicited || status != IBV_WC_SUCCESS;
  if (!queue->armed || !wanted) return;
  queue->armed = false;
  if (queue->to == nullptr) return;
  ++stats.completion_events;
  queue->to->events.push_back(queue);
  Count(queue->to->fd);
}

void Fabric::Overflow(Queue* queue) {
  queue->broken = true;
  ibv_async_event event = {};
  event.event_type = IBV_EVENT_CQ_ERR;
  event.element.cq = queue;
  Raise(queue->on, event);
  for (Pair* const pair : queue->on->on->host->pairs) {
    if (pair->sends_to != queue && pair->receives_to != queue) continue;
    event.event_type = IBV_EVENT_QP_FATAL;
    event.element.qp = pair;
    Raise(queue->on, event);
    Break(pair);
  }
}

void Fabric::Raise(Context* context, const ibv_async_event& event) {
  ++context->on->host->stats.async_events;
  context->events.push_back(event);
  Count(context->async_fd);
}

void Fabric::Raise(Device* device, ibv_event_type type, int port) {
  ibv_async_event event = {};
  event.event_type = type;
  event.element.port_num = port;
  for (Context* const context : device->host->contexts) {
    if (context->on == device) Raise(context, event);
  }
}

int PollCq(ibv_cq* cq, int room, ibv_wc* out) {
  auto* const queue = static_cast<Queue*>(cq);
  Fabric* const fabric = queue->on->on->host->fabric;
  const HiddenLock lock(fabric->mutex);
  if (const int error = FaultOf(queue->on->on, "poll_cq")) return -error;
  fabric->Pump();
  int taken = 0;
  for (; taken < room && !queue->entries.empty(); ++taken) {
    const Completion& completion = queue->entries.front();
    Acquire(completion.place);
    if (Pair* const pair = fabric->Find(completion.pair); pair != nullptr) {
      if (completion.of_send) {
        pair->freed = std::max(pair->freed, completion.sequence + 1);
      } else {
        --pair->places_taken;
      }
    }
    out[taken] = completion.wc;
    queue->entries.pop_front();
  }
  return taken;
}

int ReqNotifyCq(ibv_cq* cq, int solicited_only) {
  auto* const queue = static_cast<Queue*>(cq);
  const HiddenLock lock(queue->on->on->host->fabric->mutex);
  if (const int error = FaultOf(queue->on->on, "req_notify_cq")) return error;
  // Armed for all completions stays so.
  const bool all = queue->armed && !queue->solicited_only;
  queue->armed = true;
  queue->solicited_only = solicited_only != 0 && !all;
  return 0;
}

int GetCqEvent(ibv_comp_channel* from, ibv_cq** cq, void** owner) {
  auto* const channel = static_cast<Channel*>(from);
  if (!TakeOne(channel->fd)) return -1;
  const HiddenLock lock(channel->on->on->host->fabric->mutex);
  Queue* const queue = channel->events.front();
  channel->events.pop_front();
  ++queue->unacknowledged;
  *cq = queue;
  *owner = queue->cq_context;
  return 0;
}

void AckCqEvents(ibv_cq* cq, unsigned count) {
  auto* const queue = static_cast<Queue*>(cq);
  Fabric* const fabric = queue->on->on->host->fabric;
  const HiddenLock lock(fabric->mutex);
  queue->unacknowledged -= static_cast<int>(count);
  if (queue->unacknowledged >= 0) return;
  fabric->Problem("more completion events are acknowledged than there were");
}

ibv_comp_channel* CreateCompChannel(ibv_context* on) {
  auto* const context = static_cast<Context*>(on);
  Host* const host = context->on->host;
  const HiddenLock lock(host->fabric->mutex);
  errno = FaultOf(context->on, "create_comp_channel");
  if (errno != 0) return nullptr;
  auto* const channel = new Channel();
  channel->ibv_comp_channel::context = context;
  channel->fd = NewCount();
  channel->on = context;
  ++context->children;
  host->channels.insert(channel);
  return channel;
}

int DestroyCompChannel(ibv_comp_channel* old) {
  auto* const channel = static_cast<Channel*>(old);
  Host* const host = channel->on->on->host;
  const HiddenLock lock(host->fabric->mutex);
  if (const int error = FaultOf(channel->on->on, "destroy_comp_channel")) {
    return error;
  }
  if (channel->children > 0) return EBUSY;
  --channel->on->children;
  host->channels.erase(channel);
  ::close(channel->fd);
  delete channel;
  return 0;
}

ibv_cq* CreateCq(ibv_context* on, int entries, void* owner,
                 ibv_comp_channel* channel, int vector) {
  auto* const context = static_cast<Context*>(on);
  Host* const host = context->on->host;
  const HiddenLock lock(host->fabric->mutex);
  errno = FaultOf(context->on, "create_cq");
  if (errno == 0 && (entries < 1 || entries > context->on->is.max_completions ||
                     vector < 0 || vector >= context->num_comp_vectors)) {
    errno = EINVAL;
  }
  if (errno != 0) return nullptr;
  auto* const queue = new Queue();
  queue->ibv_cq::context = context;
  queue->ibv_cq::channel = channel;
  queue->cq_context = owner;
  queue->cqe = entries;
  queue->on = context;
  queue->to = static_cast<Channel*>(channel);
  queue->places.resize(static_cast<std::size_t>(entries));
  if (queue->to != nullptr) ++queue->to->children;
  ++context->children;
  host->queues.insert(queue);
  return queue;
}

int DestroyCq(ibv_cq* old) {
  auto* const queue = static_cast<Queue*>(old);
  Host* const host = queue->on->on->host;
  const HiddenLock lock(host->fabric->mutex);
  if (const int error = FaultOf(queue->on->on, "destroy_cq")) return error;
  if (queue->children > 0) return EBUSY;
  if (queue->unacknowledged != 0) {
    host->fabric->Problem(
        StrCat("host ", host->index, ": destroy_cq would wait for ever for ",
               queue->unacknowledged, " events that were not acknowledged"));
  }
  if (Channel* const channel = queue->to; channel != nullptr) {
    // Events that nobody took go with it.
    const auto left = std::erase(channel->events, queue);
    for (std::size_t i = 0; i < left; ++i) TakeOne(channel->fd);
    --channel->children;
  }
  --queue->on->children;
  host->queues.erase(queue);
  delete queue;
  return 0;
}

int GetAsyncEvent(ibv_context* from, ibv_async_event* out) {
  auto* const context = static_cast<Context*>(from);
  if (!TakeOne(context->async_fd)) return -1;
  const HiddenLock lock(context->on->host->fabric->mutex);
  *out = context->events.front();
  context->events.pop_front();
  ++context->on->host->events_taken;
  return 0;
}

}  // namespace gradientflow::fake_verbs
