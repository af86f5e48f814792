#pragma once

#include <integrations/c/gradientflow.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "forks.h"
#include "library.h"
#include "testimony.h"

namespace gft {

// This rank's part in a job, shared by all groups on it, by works under way and
// by models. Thread-safe. It belongs to one process: in a fork of that process
// using it throws, and closing it does nothing.
class Session {
 public:
  // Joins the job. Blocks until all ranks have joined, so it must be called
  // without the GIL. With `tensors` the session takes training steps on them;
  // null means collectives only. Throws.
  static std::shared_ptr<Session> Open(
      const Options& options, const std::vector<gf_tensor>* tensors,
      std::unique_ptr<Testimony> testimony = nullptr);
  ~Session() = default;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Whether this process is a fork of the session's process. Costs a load.
  bool forked() const { return forks_ != Forks(); }
  // Throws in a fork. Code that would take a lock or talk to other ranks calls
  // this before it uses the session.
  void CheckProcess() const;

  // Keeps the session from closing while calls are made. Never blocks. Throws
  // if the session is closed, or in a fork.
  class Use {
   public:
    explicit Use(const Session& session);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    operator gf_comm*() const { return session_.comm_; }
    operator gf_session*() const { return session_.session_; }

   private:
    const Session& session_;
  };

  // Leaves the job; later calls fail. Operations under way end with an error,
  // here and on other ranks. To be called without the GIL, which callbacks may
  // need, and not from a callback.
  void Close();
  // The same from anywhere: releases the GIL, and closes on another thread if
  // this one drives the session.
  static void CloseFromAnywhere(std::shared_ptr<Session> session);
  // Closes all open sessions, before the interpreter ends.
  static void CloseAll();

  int rank() const { return rank_; }
  int size() const { return size_; }
  // How long a peer may take to come to an operation before the job ends.
  std::chrono::milliseconds timeout() const { return timeout_; }
  // Where the ranks report what they called, if their calls did not match.
  Testimony& testimony() const { return *testimony_; }

 private:
  Session(gf_comm* comm, std::chrono::milliseconds timeout,
          std::unique_ptr<Testimony> testimony);
  static void Drop(Session* session);

  gf_comm* comm_;
  gf_session* session_ = nullptr;  // Null without tensors.
  const uint32_t forks_;
  const int rank_;
  const int size_;
  const std::chrono::milliseconds timeout_;
  const std::unique_ptr<Testimony> testimony_;
  // The number of calls inside, and this bit if the session is closing.
  static constexpr uint32_t kClosing = 1U << 31;
  mutable std::atomic<uint32_t> users_{0};
};

// Closes the session when its last holder releases it. Works hold the session
// only, so that a work that is kept for its result does not keep the job open.
class Lease {
 public:
  explicit Lease(std::shared_ptr<Session> session)
      : session_(std::move(session)) {}
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  const std::shared_ptr<Session>& shared_session() const { return session_; }

 private:
  std::shared_ptr<Session> session_;
};

// Marks a thread that runs a `done` callback, and so may be a session's own.
class InCallback {
 public:
  InCallback();
  ~InCallback();
  InCallback(const InCallback&) = delete;
  InCallback& operator=(const InCallback&) = delete;
  static bool Here();
};

}  // namespace gft
