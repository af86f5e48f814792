#include "session.h"

#include <c10/util/Exception.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>

namespace gft {
namespace {

thread_local int callbacks_here = 0;

// The open sessions, which are closed when the interpreter ends.
struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<Session>> sessions;
};

Registry& TheRegistry() {
  static OfThisProcess<Registry> registry;
  return registry.Get();
}

void Register(const std::shared_ptr<Session>& session) {
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  auto& all = registry.sessions;
  all.erase(std::remove_if(all.begin(), all.end(),
                           [](const auto& weak) { return weak.expired(); }),
            all.end());
  all.push_back(session);
}

}  // namespace

InCallback::InCallback() { ++callbacks_here; }
InCallback::~InCallback() { --callbacks_here; }
bool InCallback::Here() { return callbacks_here > 0; }

Session::Session(gf_comm* comm, std::chrono::milliseconds timeout,
                 std::unique_ptr<Testimony> testimony)
    : comm_(comm),
      forks_(Forks()),
      rank_(gf_comm_rank(comm)),
      size_(gf_comm_size(comm)),
      timeout_(timeout),
      testimony_(testimony ? std::move(testimony)
                           : std::make_unique<Testimony>(nullptr, "", rank_)) {}

std::shared_ptr<Session> Session::Open(const Options& options,
                                       const std::vector<gf_tensor>* tensors,
                                       std::unique_ptr<Testimony> testimony) {
  gf_comm* comm = nullptr;
  Check(gf_comm_open(options.get(), &comm), "joining the job");
  const auto timeout = options.GetTime("timeout_seconds");
  std::shared_ptr<Session> session(
      new Session(comm, timeout, std::move(testimony)), Drop);
  if (tensors != nullptr) {
    Check(gf_session_open(comm, 0, options.get(), tensors->data(),
                          tensors->size(), &session->session_),
          "opening a session");
  }
  Register(session);
  return session;
}

void Session::Drop(Session* session) {
  CloseFromAnywhere(std::shared_ptr<Session>(session));
}

void Session::CloseFromAnywhere(std::shared_ptr<Session> session) {
  if (session->forked() || (session->users_.load() & kClosing)) return;
  // The library's thread cannot wait for its own end.
  if (InCallback::Here()) {
    std::thread([session = std::move(session)] { session->Close(); }).detach();
  } else if (Py_IsInitialized() && PyGILState_Check()) {
    const pybind11::gil_scoped_release released;
    session->Close();
  } else {
    session->Close();
  }
}

Lease::~Lease() { Session::CloseFromAnywhere(std::move(session_)); }

void Session::CheckProcess() const {
  TORCH_CHECK_WITH(
      DistBackendError, !forked(),
      "GradientFlow: this process is a fork of the one that opened the session "
      "of rank ",
      rank_,
      ", which alone can use it: a DataLoader's worker, say. A fork may open "
      "a process group of its own");
}

Session::Use::Use(const Session& session) : session_(session) {
  session.CheckProcess();
  if (session.users_.fetch_add(1, std::memory_order_acquire) & kClosing) {
    Use::~Use();
    TORCH_CHECK_WITH(DistBackendError, false,
                     "GradientFlow: the session of rank ", session.rank_,
                     " is closed: its process group was shut down, or the "
                     "interpreter is ending");
  }
}

Session::Use::~Use() {
  if (session_.users_.fetch_sub(1, std::memory_order_release) & kClosing) {
    session_.users_.notify_all();
  }
}

void Session::Close() {
  if (forked()) return;
  if (users_.fetch_or(kClosing, std::memory_order_acq_rel) & kClosing) return;
  // The abort makes all calls inside end soon, including those that wait for
  // other ranks.
  if (users_.load() != kClosing) {
    gf_comm_abort(comm_, "the process group was shut down");
  }
  for (uint32_t now; (now = users_.load()) != kClosing;) users_.wait(now);
  gf_session_close(std::exchange(session_, nullptr));
  gf_comm_close(std::exchange(comm_, nullptr));
}

void Session::CloseAll() {
  std::vector<std::weak_ptr<Session>> all;
  {
    Registry& registry = TheRegistry();
    const std::lock_guard lock(registry.mutex);
    all.swap(registry.sessions);
  }
  for (const auto& weak : all) {
    if (const auto session = weak.lock()) session->Close();
  }
}

}  // namespace gft
