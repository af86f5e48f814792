#include "tests/device/fake_queue.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "gradientflow/base/mutex.h"

namespace gradientflow::testing {
namespace {

struct DefaultQueues {
  Mutex mutex;
  std::vector<FakeQueue*> queues GF_GUARDED_BY(mutex);
};

DefaultQueues& AllDefaultQueues() {
  static DefaultQueues all;
  return all;
}

}  // namespace

FakeQueue::FakeQueue(std::shared_ptr<FakeState> state)
    : state_(std::move(state)),
      gate_(state_->scheduler.NewGate()),
      last_(new Node),
      first_(last_.load()),
      turn_(state_->scheduler.NewTurn(
          state_->options.seed * 1000 +
          state_->streams.fetch_add(1, std::memory_order_relaxed))),
      work_seconds_(state_->options.work_seconds) {
  thread_ = std::thread([this] { Run(); });
}

FakeQueue::~FakeQueue() { delete first_; }

void FakeQueue::Append(std::unique_ptr<Node> node) {
  Node* added = node.release();
  Node* before = last_.exchange(added, std::memory_order_acq_rel);
  before->next.store(added, std::memory_order_release);
  gate_->Post();
}

Status FakeQueue::Push(FakeTask task) {
  if (stopped_.load()) {
    return Status(StatusCode::kFailedPrecondition,
                  "fake device: the stream is destroyed");
  }
  if (task.wait_for != nullptr) task.wait_for->WakeWhenDone(gate_);
  task.not_before = state_->host_seconds;
  if (task.run) task.seconds = work_seconds_;
  auto node = std::make_unique<Node>();
  node->task = std::move(task);
  Append(std::move(node));
  return Status();
}

Status FakeQueue::Drain() {
  Point* point = state_->NewPoint();
  GF_RETURN_IF_ERROR(Push(FakeTask{nullptr, nullptr, point}));
  state_->scheduler.BeginBlocking();
  point->Await();
  state_->scheduler.EndBlocking();
  return state_->error();
}

void FakeQueue::Stop() {
  {
    DefaultQueues& all = AllDefaultQueues();
    const MutexLock lock(all.mutex);
    std::erase(all.queues, this);
  }
  stopped_.store(true);
  auto node = std::make_unique<Node>();
  node->stop = true;
  Append(std::move(node));
  state_->scheduler.BeginBlocking();
  thread_.join();
  state_->scheduler.EndBlocking();
}

FakeQueue* FakeQueue::Of(void* native) {
  if (native != nullptr) return static_cast<FakeQueue*>(native);
  DefaultQueues& all = AllDefaultQueues();
  const MutexLock lock(all.mutex);
  return all.queues.size() == 1 ? all.queues.front() : nullptr;
}

void FakeQueue::BecomeDefault() {
  DefaultQueues& all = AllDefaultQueues();
  const MutexLock lock(all.mutex);
  all.queues.push_back(this);
}

FakeQueue::Node* FakeQueue::Next() {
  for (;;) {
    if (Node* next = first_->next.load(std::memory_order_acquire)) {
      delete std::exchange(first_, next);
      return next;
    }
    gate_->Wait();
  }
}

void FakeQueue::Run() {
  for (;;) {
    Node* node = Next();
    if (node->stop) return;
    state_->scheduler.AwaitTurn(gate_, &turn_);
    Do(&node->task);
  }
}

void FakeQueue::Do(FakeTask* task) {
  if (task->wait_for != nullptr) {
    while (!task->wait_for->done()) gate_->Wait();
    now_ = std::max(now_, task->wait_for->seconds());
  }
  now_ = std::max(now_, task->not_before) + task->seconds;
  if (task->run && state_->error().ok()) {
    Status status = state_->NextWork();
    if (status.ok()) status = task->run();
    if (!status.ok()) state_->Fail(status);
  }
  task->run = nullptr;
  if (task->finish != nullptr) task->finish->Finish(now_);
}

}  // namespace gradientflow::testing
