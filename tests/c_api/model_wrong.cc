#include <limits>

#include "gradientflow/base/str_cat.h"
#include "tests/c_api/model_rank.h"

// Illegal calls, and how jobs end.
namespace gradientflow::testing {
namespace {

void SetDone(void* user, gf_status status, const char* /*message*/) {
  static_cast<std::atomic<int>*>(user)->store(status);
}

}  // namespace

void Rank::Illegal() {
  const std::uint32_t which = Local(24);
  if (which < 16) return IllegalNow(which);
  IllegalStep(which - 16);
}

// Calls that are wrong at any time.
void Rank::IllegalNow(std::uint32_t which) {
  std::vector<std::int64_t> data(4, 0);
  float* const p = nullptr;
  constexpr float kNoScales[] = {0, -2, std::numeric_limits<float>::infinity(),
                                 std::numeric_limits<float>::quiet_NaN()};
  gf_session* const s = session_;
  gf_comm* const c = comm_;
  switch (which) {
    case 0:
      INVALID(gf_session_ready(s, tensors()));
      break;
    case 1:
      INVALID(gf_session_absent(s, tensors()));
      break;
    case 2:
      INVALID(gf_session_gradient(s, tensors(), nullptr, nullptr));
      break;
    case 7:
      INVALID(gf_session_set_loss_scale(s, kNoScales[Local(4)]));
      break;
    case 8:
      INVALID(gf_comm_wait(c, kNoTicket, -1));
      break;
    case 9:
      INVALID(gf_comm_wait(c, kNoTicket, -1));
      break;
    case 10:
      INVALID(gf_comm_open_group(c, 0, &rank_, 1));
      break;
    case 11:
      INVALID(gf_comm_close_group(c, 999'999));
      break;
    case 13:
      INVALID(gf_comm_send(c, data.data(), 4, job_.ranks, 1));
      break;
    case 14:
      INVALID(gf_comm_recv(c, data.data(), 4, -5, 1));
      break;
    case 15:
      INVALID(gf_session_optimizer_step(s, nullptr, &p, 1));
      break;
    default:
      IllegalCollective(which);
      break;
  }
}

void Rank::IllegalCollective(std::uint32_t which) {
  std::vector<std::int64_t> data(4, 0);
  std::atomic<int> told{-1};
  std::uint64_t ticket = 0;
  gf_call call;
  gf_call_init(&call);
  call.group = 999'999;
  gf_comm* const c = comm_;
  switch (which) {
    case 3:
      INVALID(gf_comm_allreduce(c, data.data(), 4, 99, GF_SUM));
      break;
    case 4:
      INVALID(gf_comm_allreduce(c, data.data(), 4, GF_INT64, GF_MEAN));
      break;
    case 5:
      INVALID(gf_comm_broadcast(c, data.data(), 4, GF_INT64, job_.ranks));
      break;
    case 6:
      INVALID(
          gf_comm_reduce(c, data.data(), data.data(), 4, GF_INT64, GF_SUM, -1));
      break;
    case 12:
      INVALID(gf_comm_start(c, &call, SetDone, &told, &ticket));
      break;
    default:
      break;
  }
}

// Calls that are wrong only now.
void Rank::IllegalStep(std::uint32_t which) {
  std::size_t bytes = 0;
  const bool may_apply = may_apply_ && !touched();
  switch (which) {
    case 0:
    case 1:
      if (!may_apply) ApplyStep();
      break;
    case 2:
      if (may_apply && job_.momentum_residual) {
        INVALID(Apply(0.75F, 0, nullptr));
      }
      break;
    case 3:
      if (may_apply && !nonfinite_) {
        std::vector<float*> pointers(tensors() + 1, nullptr);
        INVALID(Apply(kModelMomentum, pointers.size(), pointers.data()));
      }
      break;
    case 4:
      RETURNS(touched() ? GF_FAILED_PRECONDITION : GF_OK,
              gf_session_save_state(session_, nullptr, 0, &bytes));
      break;
    case 5:
      RETURNS(touched() ? GF_FAILED_PRECONDITION : GF_OK,
              gf_session_set_stream(session_, nullptr));
      break;
    default:
      if (!all_marked())
        WRONG_MOMENT(gf_session_finish_step(session_, nullptr));
  }
}

// `rank` continues once all others have come here; the others continue at once.
void Rank::GatherAt(int rank) {
  char token = 0;
  if (rank_ != rank) {
    OK(gf_comm_send(comm_, &token, 1, rank, 4'000'000));
    return;
  }
  for (int r = 0; r < job_.ranks; ++r) {
    if (r != rank) OK(gf_comm_recv(comm_, &token, 1, r, 4'000'000));
  }
}

void Rank::End() {
  while (!started_.empty() && !verdict_.wrong()) WaitOldest();
  if (script_.end == JobEnding::kClose) {
    if (touched() || script_.in_step) Finish(0);
    OK(gf_comm_barrier(comm_));
    return;
  }
  GatherAt(script_.culprit);
  const bool culprit = rank_ == script_.culprit;
  if (script_.end == JobEnding::kAbort) {
    if (culprit) OK(gf_comm_abort(comm_, "the script says so"));
    RETURNS(GF_ABORTED, gf_comm_barrier(comm_));
    // The results of earlier steps are certain.
    std::size_t bytes = 0;
    const gf_status within = touched() ? GF_ABORTED : GF_OK;
    RETURNS(within, gf_session_save_state(session_, nullptr, 0, &bytes));
    MarkSome(4);
    RETURNS(GF_ABORTED, gf_session_finish_step(session_, nullptr));
    return ExpectFailed(GF_ABORTED);
  }
  // One tensor is held back until another has been marked twice.
  for (std::size_t t = 0; t < tensors(); ++t) {
    if (!marked_[t] && !(culprit && t == script_.held_back)) Mark(t);
  }
  if (culprit) {
    const std::size_t twice = script_.held_back == 0 ? 1 : 0;
    OK(rank_ % 2 == 0 ? gf_session_ready(session_, twice)
                      : gf_session_absent(session_, twice));
    if (!marked_[script_.held_back]) Mark(script_.held_back);
  }
  RETURNS(GF_INVALID_ARGUMENT, gf_session_finish_step(session_, nullptr));
  ExpectFailed(GF_INVALID_ARGUMENT);
}

void Rank::ExpectFailed(gf_status why) {
  std::size_t bytes = 0;
  const std::vector<float> before = real_weights_;
  std::vector<float*> pointers(tensors(), real_weights_.data());
  RETURNS(why, Apply(kModelMomentum, pointers.size(), pointers.data()));
  Expect(real_weights_ == before, "weights moved after a failure");
  RETURNS(why, gf_session_save_state(session_, nullptr, 0, &bytes));
  if (saved_ != nullptr) {
    RETURNS(why, gf_session_restore_state(session_, saved_->bytes.data(),
                                          saved_->bytes.size()));
  }
  RETURNS(why, gf_session_set_loss_scale(session_, 2.0F));
  RETURNS(why, gf_session_set_stream(session_, nullptr));
  RETURNS(why, gf_session_zero_gradients(session_));
  RETURNS(why, gf_session_finish_step(session_, nullptr));
  RETURNS(why, gf_comm_barrier(comm_));
  RETURNS(why, gf_comm_check(comm_));
}

}  // namespace gradientflow::testing
