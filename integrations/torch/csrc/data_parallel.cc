#include "data_parallel.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "data_parallel_used.h"

namespace gft {
namespace {

// The text without the stack trace that torch's errors carry.
std::string TextOf(const std::exception& error) {
  const auto* torchs = dynamic_cast<const c10::Error*>(&error);
  return torchs != nullptr ? torchs->what_without_backtrace() : error.what();
}

}  // namespace

using torch::autograd::variable_list;

// AccumulateGrad keeps a gradient that nobody else holds, and clones any other;
// either would then be copied into the pool. This hook takes it into the pool
// before that, so that it is copied once.
class DataParallel::TakeHook final : public torch::autograd::FunctionPreHook {
 public:
  TakeHook(DataParallel& owner, size_t i) : owner_(owner), i_(i) {}

  variable_list operator()(const variable_list& gradients) override {
    // An undefined gradient: the node has nothing left to accumulate.
    if (!gradients.empty() && owner_.Take(i_, gradients[0])) {
      return {at::Tensor()};
    }
    return gradients;
  }

 private:
  DataParallel& owner_;
  const size_t i_;
};

// DDP hooks into the node in the same way. A tensor's own post-accumulate hook
// exists only once, and a user's hook would replace it.
class DataParallel::ReadyHook final : public torch::autograd::FunctionPostHook {
 public:
  ReadyHook(DataParallel& owner, size_t i) : owner_(owner), i_(i) {}

  variable_list operator()(const variable_list& outputs,
                           const variable_list& inputs) override {
    // Undefined: backward reached the parameter, but nothing depends on it.
    if (std::exchange(owner_.taken_[i_], 0) != 0 ||
        (!inputs.empty() && inputs[0].defined())) {
      owner_.OnGradient(i_);
    }
    return outputs;
  }

 private:
  DataParallel& owner_;
  const size_t i_;
};

std::shared_ptr<DataParallel> DataParallel::Make(
    std::shared_ptr<Session> session, std::vector<std::string> names,
    std::vector<at::Tensor> parameters, const DataParallelConfig& config) {
  auto pool = std::make_unique<GradientPool>(
      session, config.pool_type, std::move(names), std::move(parameters));
  std::shared_ptr<DataParallel> made(
      new DataParallel(std::move(session), std::move(pool), config));
  made->AddHooks();
  return made;
}

DataParallel::DataParallel(std::shared_ptr<Session> session,
                           std::unique_ptr<GradientPool> pool,
                           const DataParallelConfig& config)
    : session_(std::move(session)),
      pool_(std::move(pool)),
      config_(config),
      loss_scale_(config.loss_scale),
      marked_(pool_->size(), 0),
      taken_(pool_->size(), 0),
      ever_used_(pool_->size(), 0) {
  gf_step_stats_init(&stats_);
}

DataParallel::~DataParallel() { Close(); }

void DataParallel::AddHooks() {
  for (size_t i = 0; i < pool_->size(); ++i) {
    auto node = torch::autograd::impl::grad_accumulator(pool_->parameter(i));
    auto take = std::make_unique<TakeHook>(*this, i);
    const auto* taking = take.get();
    node->add_pre_hook(std::move(take));
    const uintptr_t ready =
        node->add_post_hook(std::make_unique<ReadyHook>(*this, i));
    hooked_.push_back({std::move(node), taking, ready});
  }
}

void DataParallel::Close() {
  if (session_ == nullptr) return;
  for (Hooked& hooked : hooked_) {
    std::erase_if(hooked.node->pre_hooks(),
                  [&](const auto& hook) { return hook.get() == hooked.take; });
    hooked.node->del_post_hook(hooked.ready);
  }
  hooked_.clear();
  try {
    const Session::Use use(*session_);
    pool_->Detach(/*keep=*/true);
  } catch (const c10::DistBackendError&) {
    // If the session was closed as the interpreter ended, the pool's memory is
    // gone. In a fork it is still there.
    pool_->Detach(/*keep=*/session_->forked());
  }
  pool_.reset();
  session_.reset();
}

const Session& DataParallel::session() const {
  TORCH_CHECK(session_ != nullptr, "gradientflow.torch.DataParallel is closed");
  return *session_;
}

void DataParallel::CheckNotBroken() const {
  TORCH_CHECK_WITH(DistBackendError, broken_.empty(),
                   "GradientFlow: no more steps: ", broken_);
}

void DataParallel::BeginForward() {
  const Session::Use use(session());
  CheckNotBroken();
  // Checkpointing runs forward passes inside of backward.
  if (!open_ || torch::autograd::get_current_graph_task_id() >= 0) return;
  broken_ = c10::str("rank ", session_->rank(), ": backward of step ", steps_,
                     " raised an error midway, when ",
                     std::count(marked_.begin(), marked_.end(), 1), " of ",
                     marked_.size(), " gradients had been handed over");
  gf_comm_abort(use, broken_.c_str());
  CheckNotBroken();
}

void DataParallel::Watch(const at::Tensor& output) {
  if (!output.requires_grad() || output.is_leaf()) return;
  output.register_hook(
      [weak = weak_from_this()](const at::TensorBase& /*gradient*/) {
        const auto self = weak.lock();
        if (self != nullptr && self->session_ != nullptr && self->sync_ &&
            self->ReachesParameters()) {
          self->Begin();
        }
      });
}

void DataParallel::SetLossScale(float scale) {
  if (!config_.sparse) return;
  Check(gf_session_set_loss_scale(Session::Use(session()), scale),
        "the loss scale");
  loss_scale_ = shown_scale_ = scale;
  restored_scale_ = false;
}

std::optional<c10::Stream> DataParallel::CurrentStream() const {
  const at::Device device = pool_->all().device();
  if (!device.is_cuda()) return std::nullopt;
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

void DataParallel::SetStream() {
  stream_ = CurrentStream();
  if (!stream_) return;
  Check(
      gf_session_set_stream(Session::Use(*session_), stream_->native_handle()),
      "the stream of backward");
}

void DataParallel::Follow(const std::optional<c10::Stream>& after,
                          const std::optional<c10::Stream>& before) {
  if (!after || !before || *after == *before) return;
  c10::Event event(before->device_type());
  event.record(*before);
  event.block(*after);
}

// Whether this pass accumulates the gradient of any parameter. autograd.grad()
// of the inputs, for example, does not, and is no step.
bool DataParallel::ReachesParameters() const {
  const auto* nodes = torch::autograd::get_current_graph_task_exec_info();
  if (nodes == nullptr || nodes->empty()) return true;  // All gradients.
  return std::any_of(hooked_.begin(), hooked_.end(), [&](const Hooked& hooked) {
    const auto found = nodes->find(hooked.node.get());
    return found != nodes->end() && found->second.needed_;
  });
}

// Outputs on several devices have backward threads of their own.
void DataParallel::Begin() {
  if (open_) return;
  const std::lock_guard lock(begin_);
  if (open_) return;
  CheckNotBroken();
  if (restored_scale_) {
    Check(gf_session_set_loss_scale(Session::Use(*session_), loss_scale_),
          "the loss scale");
    restored_scale_ = false;
  }
  std::fill(marked_.begin(), marked_.end(), 0);
  step_scale_ = loss_scale_;
  SetStream();
  torch::autograd::Engine::get_default_engine().queue_callback(
      [self = shared_from_this()] { self->Finish(); });
  open_ = true;
}

bool DataParallel::Take(size_t i, const at::Tensor& gradient) {
  const Hooked& hooked = hooked_[i];
  // Somebody else's hook runs on what the node makes, or looks at it.
  if (!gradient.defined() || at::GradMode::is_enabled() ||
      hooked.node->tensor_post_acc_grad_hooks() != nullptr ||
      hooked.node->pre_hooks().size() > 1 ||
      hooked.node->post_hooks().size() > 1) {
    return false;
  }
  if (!pool_->PutIn(i, gradient)) return false;
  taken_[i] = 1;
  return true;
}

void DataParallel::OnGradient(size_t i) {
  if (!pool_->HasGradient(i)) return;
  pool_->TakeIn(i);
  if (!sync_) return;
  Begin();
  TORCH_CHECK(
      marked_[i] == 0, "gradientflow.torch.DataParallel: '", pool_->name(i),
      "' got a second gradient in one step, but the first may be on its way: "
      "it is used in several re-entrant checkpoints (pass use_reentrant=False "
      "to torch.utils.checkpoint), or an earlier backward raised an error");
  marked_[i] = 1;
  // The node runs on the stream on which it was made.
  Follow(stream_, CurrentStream());
  Check(gf_session_ready(Session::Use(*session_), i), "a gradient");
}

std::vector<uint8_t> DataParallel::HandOverTheRest(gf_session* session) {
  std::vector<uint8_t> here(pool_->size(), 1);
  const std::optional<c10::Stream> current = CurrentStream();
  for (size_t i = 0; i < pool_->size(); ++i) {
    if (marked_[i] != 0) continue;
    // A parameter that has a gradient from an earlier pass takes part with it,
    // unless it has been frozen since: then it keeps the gradient.
    const bool trained = pool_->parameter(i).requires_grad();
    if (!trained) pool_->MoveOut(i);
    here[i] = trained && pool_->HasGradient(i) ? 1 : 0;
    if (here[i] != 0) pool_->TakeIn(i);
    Follow(stream_, current);
    Check(here[i] != 0 ? gf_session_ready(session, i)
                       : gf_session_absent(session, i),
          "a gradient");
  }
  return here;
}

void DataParallel::GiveOut(const std::vector<uint8_t>& used) {
  // With CSC, values that were kept back may arrive in a step that does not use
  // the parameter. Only the device knows whether they did.
  std::vector<size_t> perhaps;
  for (size_t i = 0; i < pool_->size(); ++i) {
    if (used[i] != 0) ever_used_[i] = 1;
    if (!pool_->parameter(i).requires_grad()) continue;
    if (used[i] != 0) {
      pool_->GiveOut(i);
    } else if (config_.sparse && ever_used_[i] != 0) {
      perhaps.push_back(i);
    }
  }
  for (const size_t i : pool_->WithValues(perhaps)) pool_->GiveOut(i);
}

// The scaler expects scaled gradients. A 16-bit pool has kept them scaled (see
// gf_step_stats).
void DataParallel::ShowScaled() {
  const at::NoGradGuard no_grad;
  const float in_pool = config_.pool_type == at::kFloat ? 1.0F : step_scale_;
  const float factor = shown_scale_ / in_pool;
  if (factor != 1.0F) pool_->all().mul_(factor);
}

// Gradients speak for themselves: those of a skipped step hold a NaN on all
// ranks; with CSC all of them are NaN (zero_kept). So the host need not know
// whether the step was finite, and a GPU's result comes with the next step.
void DataParallel::EndStep(gf_session* session) {
  int32_t known = 0;
  Check(gf_session_finish_step_async(session, &stats_, &known, nullptr),
        "ending a step");
}

void DataParallel::Finish() {
  const Session::Use use(session());
  try {
    std::vector<uint8_t> used = HandOverTheRest(use);
    if (config_.find_unused) {
      UsedAnywhere asked(use, used);
      EndStep(use);
      used = asked.Get();
    } else {
      EndStep(use);
      used.assign(used.size(), 1);
    }
    Follow(CurrentStream(), stream_);
    ++steps_;
    if (config_.sparse) ShowScaled();
    GiveOut(used);
  } catch (const std::exception& error) {
    broken_ = TextOf(error);
    open_ = false;
    // An error on this rank alone would make the others wait for it, so end the
    // job. If the job has failed already, this changes nothing.
    gf_comm_abort(use, broken_.c_str());
    throw;
  }
  open_ = false;
}

void DataParallel::OptimizerStep(const std::vector<gf_optimizer>& groups,
                                 std::vector<int32_t> group_of) {
  const Session::Use use(session());
  const at::NoGradGuard no_grad;
  CheckNotBroken();
  TORCH_CHECK(group_of.size() == pool_->size(), "expected groups of ",
              pool_->size(), " parameters, seen ", group_of.size());
  std::vector<float*> weights(pool_->size());
  for (size_t i = 0; i < pool_->size(); ++i) {
    if (!pool_->HasGradient(i)) group_of[i] = -1;
    if (group_of[i] < 0) continue;
    const at::Tensor& parameter = pool_->parameter(i);
    TORCH_CHECK_VALUE(parameter.scalar_type() == at::kFloat &&
                          parameter.is_non_overlapping_and_dense(),
                      "'", pool_->name(i), "' is ", parameter.scalar_type(),
                      ", expected dense float32 weights");
    pool_->Settle(i);
    weights[i] = static_cast<float*>(parameter.mutable_data_ptr());
  }
  std::vector<const gf_optimizer*> pointers;
  for (const gf_optimizer& group : groups) pointers.push_back(&group);
  SetStream();
  Check(gf_session_optimizer_step_groups(use, pointers.data(), pointers.size(),
                                         group_of.data(), weights.data(),
                                         weights.size()),
        "the optimiser's step");
  // The weights were written behind autograd's back: graphs made before are
  // stale.
  for (size_t i = 0; i < pool_->size(); ++i) {
    if (group_of[i] < 0) continue;
    pool_->parameter(i).unsafeGetTensorImpl()->bump_version();
  }
}

std::vector<uint8_t> DataParallel::SaveState() const {
  const Session::Use use(session());
  size_t bytes = 0;
  Check(gf_session_save_state(use, nullptr, 0, &bytes), "saving the state");
  std::vector<uint8_t> state(bytes);
  Check(gf_session_save_state(use, state.data(), bytes, &bytes),
        "saving the state");
  return state;
}

void DataParallel::RestoreState(const uint8_t* state, size_t bytes) {
  const Session::Use use(session());
  // An empty state may come with a null pointer, which the library refuses.
  constexpr uint8_t kNothing = 0;
  Check(gf_session_restore_state(use, bytes == 0 ? &kNothing : state, bytes),
        "restoring the state");
  // The residual is in units of the saved scale. It is converted to the scale
  // in force when a step begins, and not earlier: a GradScaler that is restored
  // too has the saved scale, and converting there and back would change bits.
  restored_scale_ = config_.sparse;
  // The state does not say which parameters its residual is of.
  std::fill(ever_used_.begin(), ever_used_.end(), 1);
}

}  // namespace gft
