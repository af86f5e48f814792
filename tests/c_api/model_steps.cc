#include <cmath>
#include <numeric>
#include <thread>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "tests/c_api/model_rank.h"

// Opening, steps and state.
namespace gradientflow::testing {
namespace {

constexpr float kLr = 0.125F;

}  // namespace

void Rank::Run(const std::string& meeting_place) {
  if (!Open(meeting_place)) return;
  std::thread beside([this] { AskBeside(); });
  for (const Op& op : script_.ops) {
    if (verdict_.wrong()) break;
    Note(StrCat(Name(op.act), " ", op.number));
    Do(op);
  }
  beside.join();
  if (!verdict_.wrong()) End();
  gf_session_close(session_);
  gf_comm_close(comm_);
}

void Rank::Expect(bool right, const std::string& what) {
  if (right) return;
  verdict_.Wrong(StrCat("rank ", rank_, ": ", what));
  if (session_ != nullptr) gf_comm_abort(comm_, "the model was wrong");
}

bool Rank::Returns(gf_status expected, gf_status seen, const char* call) {
  Note(StrCat("  ", call, " -> ", gf_status_name(seen)));
  Expect(expected == seen,
         StrCat(call, ": expected ", gf_status_name(expected), ", seen ",
                gf_status_name(seen), ": ", gf_last_error()));
  return expected == seen;
}
bool Rank::Open(const std::string& meeting_place) {
  gf_options* options = nullptr;
  OK(gf_options_default(&options));
  std::vector<std::pair<std::string, std::string>> settings = job_.settings;
  settings.insert(settings.end(), {{"rank", StrCat(rank_)},
                                   {"size", StrCat(job_.ranks)},
                                   {"rendezvous", meeting_place}});
  for (const auto& [name, value] : settings) {
    OK(gf_options_set(options, name.c_str(), value.c_str()));
  }
  std::vector<gf_tensor> given(tensors());
  for (std::size_t i = 0; i < tensors(); ++i) {
    gf_tensor_init(&given[i]);
    given[i].elements = job_.elements[i];
  }
  const bool open = OK(gf_comm_open(options, &comm_)) &&
                    OK(gf_session_open(comm_, 0, options, given.data(),
                                       given.size(), &session_));
  gf_options_free(options);
  marked_.assign(tensors(), false);
  const std::size_t all = std::accumulate(job_.elements.begin(),
                                          job_.elements.end(), std::size_t{0});
  weights_.assign(all, 1.0F);
  real_weights_ = weights_;
  return open;
}

// Calls that any thread may make at any time.
void Rank::AskBeside() const {
  for (int i = 0; i < 50 && !verdict_.wrong(); ++i) {
    void* data = nullptr;
    std::size_t bytes = 0;
    if (gf_session_pool(session_, &data, &bytes) != GF_OK ||
        gf_comm_check(comm_) != GF_OK || gf_comm_rank(comm_) != rank_ ||
        gf_comm_wait(comm_, kNoTicket, 0) != GF_INVALID_ARGUMENT ||
        gf_comm_wait(comm_, kNoTicket, -1) != GF_INVALID_ARGUMENT) {
      verdict_.Wrong(StrCat("rank ", rank_, " beside: ", gf_last_error()));
    }
    std::this_thread::yield();
  }
}

void Rank::Do(const Op& op) {
  // Illegal calls are local: the other ranks do not notice them.
  if (Local(3) == 0) Illegal();
  switch (op.act) {
    case Act::kMark:
      return MarkSome(op.number % 4);
    case Act::kFinish:
      return Finish(op.number);
    case Act::kApply:
      return ApplyStep();
    case Act::kScale:
      return Scale(op.number);
    case Act::kSave:
      return Save();
    case Act::kRestore:
      return Restore();
    case Act::kGarbage:
      return RestoreGarbage();
    case Act::kCollective:
      return Collective(op.number);
    case Act::kStart:
      return Start(op.number);
    case Act::kWait:
      return WaitOldest();
    case Act::kGroup:
      return Group(op.number);
    case Act::kMessages:
      return Messages(op.number);
    case Act::kShared:
      return Shared(op.number);
    case Act::kRead:
      return Read();
  }
}

void Rank::Mark(std::size_t tensor) {
  void* data = nullptr;
  std::size_t bytes = 0;
  OK(gf_session_gradient(session_, tensor, &data, &bytes));
  Expect(bytes == job_.elements[tensor] * sizeof(float), "gradient's size");
  auto* gradient = static_cast<float*>(data);
  for (std::size_t i = 0; i < bytes / sizeof(float); ++i) {
    gradient[i] = scale_ * script_.Gradient(rank_, tensor, i, round_);
  }
  marked_[tensor] = true;
  if (script_.Present(rank_, tensor, round_)) {
    OK(gf_session_ready(session_, tensor));
  } else {
    OK(gf_session_absent(session_, tensor));
  }
}

// Marks about a quarter, a half or another share of the remaining tensors.
void Rank::MarkSome(std::uint32_t share) {
  std::vector<std::size_t> order(tensors());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), random_);
  for (const std::size_t tensor : order) {
    if (!marked_[tensor] && Local(4) <= share) Mark(tensor);
  }
}

void Rank::Finish(std::uint32_t number) {
  MarkSome(number % 4);
  if (!all_marked()) WRONG_MOMENT(gf_session_finish_step(session_, nullptr));
  MarkSome(4);
  gf_step_stats stats;
  gf_step_stats_init(&stats);
  if (!OK(gf_session_finish_step(session_, &stats))) return;
  marked_.assign(tensors(), false);
  nonfinite_ = script_.Nonfinite(round_);
  Expect(stats.step == step_, StrCat("step ", stats.step, ", not ", step_));
  Expect((stats.nonfinite != 0) == nonfinite_,
         StrCat("step ", step_, ": nonfinite is ", stats.nonfinite));
  if (!job_.sparse && !nonfinite_) CheckSums();
  may_apply_ = true;
  ++step_;
  ++round_;
}

void Rank::CheckSums() {
  mean_.clear();
  for (std::size_t t = 0; t < tensors(); ++t) {
    void* data = nullptr;
    std::size_t bytes = 0;
    OK(gf_session_gradient(session_, t, &data, &bytes));
    const auto* seen = static_cast<const float*>(data);
    for (std::size_t i = 0; i < job_.elements[t]; ++i) {
      double sum = 0;
      for (int r = 0; r < job_.ranks; ++r) {
        if (!script_.Present(r, t, round_)) continue;
        sum += double{script_.Gradient(r, t, i, round_)};
      }
      mean_.push_back(static_cast<float>(sum / job_.ranks));
      if (std::fabs(seen[i] - mean_.back()) <= 1e-5F) continue;
      return Expect(false, StrCat("step ", step_, " tensor ", t, " element ", i,
                                  " is ", seen[i], ", not ", mean_.back()));
    }
  }
}

gf_status Rank::Apply(float momentum, std::size_t count, float** weights) {
  gf_optimizer sgd;
  gf_optimizer_init(&sgd);
  sgd.lr = kLr;
  sgd.momentum = momentum;
  return gf_session_optimizer_step(session_, &sgd, weights, count);
}

void Rank::ApplyStep() {
  std::vector<float*> pointers;
  float* at = real_weights_.data();
  for (const std::size_t n : job_.elements) {
    pointers.push_back(at);
    at += n;
  }
  const std::vector<float> before = real_weights_;
  const bool legal = may_apply_ && !touched();
  const gf_status expected = legal ? GF_OK : GF_FAILED_PRECONDITION;
  RETURNS(expected, Apply(kModelMomentum, pointers.size(), pointers.data()));
  if (!legal || nonfinite_) {
    Expect(real_weights_ == before, "weights moved");
  }
  if (!legal) return;
  may_apply_ = false;
  if (nonfinite_ || job_.sparse) return;
  momentum_.resize(weights_.size(), 0.0F);
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    momentum_[i] = kModelMomentum * momentum_[i] + kLr * mean_[i];
    weights_[i] -= momentum_[i];
    if (std::fabs(weights_[i] - real_weights_[i]) <= 1e-3F) continue;
    return Expect(false, StrCat("weight ", i, " is ", real_weights_[i],
                                ", not ", weights_[i]));
  }
}

void Rank::Scale(std::uint32_t number) {
  const float scale = static_cast<float>(1U << (number % 5));
  if (!OK(gf_session_set_loss_scale(session_, scale))) return;
  // A step that has begun keeps the old scale, on this rank or others, so
  // scripts set it between steps.
  scale_ = scale;
}

void Rank::Save() {
  std::size_t bytes = 0;
  OK(gf_session_save_state(session_, nullptr, 0, &bytes));
  auto saved = std::make_unique<Saved>();
  saved->bytes.resize(bytes);
  INVALID(
      gf_session_save_state(session_, saved->bytes.data(), bytes - 1, &bytes));
  OK(gf_session_save_state(session_, saved->bytes.data(), bytes, &bytes));
  Expect(bytes == saved->bytes.size(), "the state's size");
  saved->step = step_;
  saved->momentum = momentum_;
  saved_ = std::move(saved);
}

void Rank::Restore() {
  if (saved_ == nullptr) return;
  if (!OK(gf_session_restore_state(session_, saved_->bytes.data(),
                                   saved_->bytes.size()))) {
    return;
  }
  step_ = saved_->step;
  momentum_ = saved_->momentum;
  may_apply_ = false;
  OK(gf_session_set_loss_scale(session_, scale_));
}

void Rank::RestoreGarbage() {
  const std::string garbage(300, 'x');
  RETURNS(GF_DATA_LOSS,
          gf_session_restore_state(session_, garbage.data(), garbage.size()));
}

void Rank::Read() {
  std::size_t chunks = 0;
  OK(gf_session_selection(session_, nullptr, 0, &chunks));
  std::size_t elements = 0;
  for (std::size_t i = 0; i < tensors(); ++i) {
    OK(gf_session_pool_offset(session_, i, &elements));
  }
  std::int32_t kind = -1;
  OK(gf_session_pool_device(session_, &kind, nullptr));
  Expect(kind == GF_CPU && gf_comm_size(comm_) == job_.ranks, "who this is");
  OK(gf_comm_check(comm_));
}

}  // namespace gradientflow::testing
