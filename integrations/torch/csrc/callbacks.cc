#include "callbacks.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "forks.h"

namespace gft {
namespace {

class Runner {
 public:
  void Add(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      if (!stopped_) {
        tasks_.push_back(std::move(task));
        if (idle_ < tasks_.size()) {
          ++threads_;
          std::thread([this] { Run(); }).detach();
        }
        changed_.notify_one();
        return;
      }
    }
    task();
  }

  void Stop() {
    std::unique_lock lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
    ended_.wait(lock, [this] { return threads_ == 0; });
  }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      if (tasks_.empty() && (stopped_ || idle_ > 0)) break;
      ++idle_;
      changed_.wait(lock, [this] { return stopped_ || !tasks_.empty(); });
      --idle_;
      if (tasks_.empty()) break;
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      task = nullptr;  // Destroyed here, without the lock.
      lock.lock();
    }
    --threads_;
    ended_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable ended_;
  std::deque<std::function<void()>> tasks_;
  size_t idle_ = 0;
  size_t threads_ = 0;
  bool stopped_ = false;
};

Runner& TheRunner() {
  static OfThisProcess<Runner> runner;
  return runner.Get();
}

}  // namespace

void RunLater(std::function<void()> task) { TheRunner().Add(std::move(task)); }

void StopCallbacks() { TheRunner().Stop(); }

}  // namespace gft
