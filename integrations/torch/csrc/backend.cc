#include "backend.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "exchange.h"

namespace gft {
namespace {

// The store of the whole job, which lies below the prefixes of its groups.
c10::intrusive_ptr<c10d::Store> JobStore(
    const c10::intrusive_ptr<c10d::Store>& store) {
  const auto prefixed =
      c10::dynamic_intrusive_pointer_cast<c10d::PrefixStore>(store);
  return prefixed ? prefixed->getUnderlyingNonPrefixStore() : store;
}

// Returns a number that no other group of the job has.
uint32_t AgreeOnNumber(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                       std::chrono::milliseconds timeout) {
  const std::string key = NextRound(*store, "gradientflow/group", rank);
  if (rank == 0) {
    const int64_t number = JobStore(store)->add("gradientflow/groups", 1);
    TORCH_CHECK_WITH(DistBackendError,
                     number > 0 && number < std::numeric_limits<int32_t>::max(),
                     "GradientFlow: the job has opened ", number, " groups");
    store->set(key, std::to_string(number));
    return static_cast<uint32_t>(number);
  }
  store->wait({key}, timeout);
  return static_cast<uint32_t>(std::stoul(store->get_to_str(key)));
}

}  // namespace

Backend::Options::Options(Milliseconds timeout)
    : Base::Options("gradientflow", timeout) {}

Backend::Backend(std::shared_ptr<Lease> lease, std::shared_ptr<Group> group,
                 OptionsPtr options)
    : Base(group->rank(), group->size()),
      group_(std::move(group)),
      options_(std::move(options)),
      operations_(group_, options_->timeout),
      lease_(std::move(lease)) {}

Backend::~Backend() { group_->Close(); }

c10::intrusive_ptr<Backend> Backend::Open(const StorePtr& store, int rank,
                                          int size, const OptionsPtr& options) {
  TORCH_CHECK_VALUE(size > 0 && rank >= 0 && rank < size, "GradientFlow: rank ",
                    rank, " of ", size,
                    " ranks: expected a rank from 0 to the size less one");
  Joining joining;
  joining.store = store;
  joining.prefix = "gradientflow";
  joining.rank = rank;
  joining.size = size;
  joining.timeout =
      std::clamp(options->timeout, Milliseconds(1), kLongestTimeout);
  // A peer may take as long to come to a collective as to join.
  auto settings = gft::Options::FromEnv();
  settings.Set("timeout_seconds", joining.timeout);
  auto session = OpenOverStore(std::move(settings), joining, nullptr);
  auto group = std::make_shared<Group>(session);
  auto lease = std::make_shared<Lease>(std::move(session));
  return c10::intrusive_ptr<Backend>::unsafe_steal_from_new(
      new Backend(std::move(lease), std::move(group), options));
}

c10::intrusive_ptr<Backend> Backend::Subgroup(const StorePtr& store,
                                              const std::vector<int>& ranks,
                                              const OptionsPtr& options) {
  // This comes first, since the store's connection belongs to the parent
  // process.
  group_->session().CheckProcess();
  std::shared_ptr<Lease> lease;
  {
    const std::lock_guard lock(mutex_);
    lease = lease_;
  }
  TORCH_CHECK_WITH(DistBackendError, lease != nullptr,
                   "GradientFlow: a group of a process group that was shut "
                   "down");
  std::vector<int32_t> of_session;
  for (const int rank : ranks) {
    TORCH_CHECK_VALUE(rank >= 0 && rank < size_, "GradientFlow: rank ", rank,
                      " in a group of ", size_, " ranks");
    of_session.push_back(group_->ranks()[rank]);
  }
  const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  TORCH_CHECK_VALUE(mine != ranks.end(), "GradientFlow: rank ", rank_,
                    " opens a group that it is not in");
  const auto timeout =
      std::clamp(options->timeout, Milliseconds(1), kLongestTimeout);
  const uint32_t number =
      AgreeOnNumber(store, static_cast<int>(mine - ranks.begin()), timeout);
  auto group =
      std::make_shared<Group>(lease->shared_session(), number, of_session);
  return c10::intrusive_ptr<Backend>::unsafe_steal_from_new(
      new Backend(std::move(lease), std::move(group), options));
}

c10::intrusive_ptr<c10d::Backend> Backend::split(
    const StorePtr& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<Base::Options>& options) {
  auto ours = c10::make_intrusive<Options>(options ? options->timeout
                                                   : operations_.timeout());
  if (options) {
    ours->group_name = options->group_name;
    ours->global_ranks_in_group = options->global_ranks_in_group;
  }
  return Subgroup(store, ranks, ours);
}

void Backend::setTimeout(Milliseconds timeout) {
  options_->timeout = timeout;
  operations_.SetTimeout(timeout);
}

void Backend::shutdown() {
  if (!operations_.Close() || group_->session().forked()) return;
  group_->WaitUntilIdle(operations_.timeout());
  group_->Close();
  std::shared_ptr<Lease> lease;
  const std::lock_guard lock(mutex_);
  lease.swap(lease_);
}

void Backend::abort() {
  try {
    const Session::Use session(group_->session());
    gf_comm_abort(session,
                  ("aborted by rank " + std::to_string(rank_) + " of " +
                   (group_->id() == 0 ? "the job" : group_->Description()))
                      .c_str());
  } catch (const c10::Error&) {
    // The session is closed, or belongs to another process: there is nothing to
    // end.
  }
}

c10d::ErrorType Backend::getError() {
  try {
    const Session::Use session(group_->session());
    switch (gf_comm_check(session)) {
      case GF_OK:
        return c10d::ErrorType::SUCCESS;
      case GF_DEADLINE_EXCEEDED:
        return c10d::ErrorType::TIMEOUT;
      case GF_UNAVAILABLE:
        return c10d::ErrorType::REMOTE_ERROR;
      default:
        return c10d::ErrorType::COMM_ERROR;
    }
  } catch (const c10::Error&) {
    return c10d::ErrorType::SUCCESS;  // Closed, as requested.
  }
}

}  // namespace gft
