#include "tests/cuda_shim/block.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/cuda_shim/sanitizers.h"

__thread uint3 threadIdx;
__thread uint3 blockIdx;
__thread uint3 blockDim;
__thread uint3 gridDim;

namespace gradientflow::cuda_shim {

thread_local BlockRunner* running_block = nullptr;

namespace {

constexpr unsigned kWarp = 32;

bool SameText(const char* a, const char* b) {
  return a == b || std::strcmp(a, b) == 0;  // Mostly one literal.
}

bool SameSite(const Site& a, const Site& b) {
  return a.line == b.line && SameText(a.what, b.what) &&
         SameText(a.file, b.file);
}

// The thread sanitizer orders events by their addresses. Barriers use two in
// turn, so that a thread that leaves one barrier does not see what happened
// before the next.
struct Tokens {
  char launch, end, fence;
  char barriers[2];
  char warps[32][2];
};
Tokens tokens;

}  // namespace

std::uint64_t Random::Next() {
  state_ += 0x9E3779B97F4A7C15U;
  std::uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

void ReadyList::Reset(std::size_t capacity) {
  threads_.resize(capacity);
  first_ = 0;
  size_ = 0;
}

unsigned ReadyList::Take(std::size_t place) {
  const unsigned taken = At(place);
  At(place) = At(0);
  first_ = (first_ + 1) % threads_.size();
  --size_;
  return taken;
}

void BlockRunner::Run(const LaunchFacts& launch, const Kernel& kernel,
                      unsigned block, std::uint64_t seed) {
  launch_ = &launch;
  kernel_ = &kernel;
  random_ = Random(seed);
  order_ = static_cast<Order>(random_.Below(3));
  blockIdx = {block, 0, 0};
  done_ = 0;
  arrived_.assign((launch.threads + kWarp - 1) / kWarp, 0);
  exchanges_.assign(arrived_.size(), 0);
  ready_.Reset(launch.threads);
  PoisonShared();
  for (unsigned t = 0; t < launch.threads; ++t) {
    if (t == threads_.size()) threads_.push_back(std::make_unique<Thread>());
    Thread& thread = *threads_[t];
    thread.runner = this;
    thread.index = t;
    thread.state = State::kReady;
    thread.fiber.Start(RunThread, &thread);
    ready_.PushBack(t);
  }
  HappensBefore(&tokens.launch);
  running_block = this;
  RunReady();
  while (done_ < launch.threads) {
    OpenBarrier();
    RunReady();
  }
  running_block = nullptr;
  HappensAfter(&tokens.end);
  CheckShared();
}

void BlockRunner::RunThread(void* argument) {
  auto* thread = static_cast<Thread*>(argument);
  HappensAfter(&tokens.launch);
  const Kernel* kernel = thread->runner->kernel_;
  kernel->run(kernel->body);
  HappensBefore(&tokens.end);
}

unsigned BlockRunner::Next() {
  if (order_ == Order::kDescending) return ready_.PopBack();
  const bool any = order_ == Order::kRandom;
  return ready_.Take(any ? random_.Below(ready_.size()) : 0);
}

void BlockRunner::RunReady() {
  while (!ready_.empty()) {
    Thread& thread = *threads_[Next()];
    threadIdx = {thread.index, 0, 0};
    inside_ = true;
    thread.fiber.Resume();
    inside_ = false;
    if (thread.fiber.Done()) {
      thread.state = State::kDone;
      ++done_;
    } else if (thread.state == State::kReady) {
      ready_.PushBack(thread.index);
    }
  }
}

BlockRunner::Thread& BlockRunner::running() { return *threads_[threadIdx.x]; }

void BlockRunner::Wait(State state, const Site& site) {
  Thread& thread = running();
  thread.state = state;
  thread.site = site;
  thread.fiber.Pause();
}

void BlockRunner::MayYield() {
  if (order_ == Order::kRandom && random_.Below(4) == 0) {
    Wait(State::kReady, {"", "", 0});
  }
}

void BlockRunner::Barrier(const Site& site) {
  char* token = &tokens.barriers[barriers_ % 2];
  HappensBefore(token);
  Wait(State::kAtBarrier, site);
  HappensAfter(token);
}

void BlockRunner::OpenBarrier() {
  for (unsigned t = 0; t < launch_->threads; ++t) {
    const Thread& thread = *threads_[t];
    if (thread.state != State::kAtBarrier ||
        !SameSite(thread.site, threads_[0]->site)) {
      FailOfWaiting();
    }
  }
  ++barriers_;
  for (unsigned t = 0; t < launch_->threads; ++t) {
    threads_[t]->state = State::kReady;
    ready_.PushBack(t);
  }
}

std::uint64_t BlockRunner::Exchange(WarpCall& call) {
  if (call.mask != ~0U) {
    Fail("%s at %s:%d: expected the mask of all lanes, seen 0x%x",
         call.site.what, call.site.file, call.site.line, call.mask);
  }
  const unsigned warp = threadIdx.x / kWarp;
  const unsigned lanes = std::min(kWarp, launch_->threads - warp * kWarp);
  if (lanes < kWarp) {
    Fail("%s at %s:%d: expected 32 lanes, warp %u has %u", call.site.what,
         call.site.file, call.site.line, warp, lanes);
  }
  Thread& thread = running();
  thread.call = &call;
  thread.state = State::kInWarp;
  thread.site = call.site;
  if (++arrived_[warp] == kWarp) Resolve(warp);
  thread.fiber.Pause();
  return call.result;
}

void BlockRunner::Resolve(unsigned warp) {
  const auto first = threads_.begin() + warp * kWarp;
  std::uint64_t votes = 0;
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if (!SameSite(first[lane]->site, first[0]->site)) FailOfWaiting();
    if (first[lane]->call->value != 0) votes |= std::uint64_t{1} << lane;
  }
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    WarpCall& call = *first[lane]->call;
    call.result =
        call.source == kVotes ? votes : first[call.source]->call->value;
  }
  arrived_[warp] = 0;
  ++exchanges_[warp];
  // The thread that came last is running, and goes to `ready_` when it pauses.
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    first[lane]->state = State::kReady;
    if (first[lane]->index != threadIdx.x) ready_.PushBack(first[lane]->index);
  }
}

void BlockRunner::WarpBarrier(const Site& site, unsigned mask) {
  const unsigned warp = threadIdx.x / kWarp;
  char* token = &tokens.warps[warp][exchanges_[warp] % 2];
  HappensBefore(token);
  WarpCall call = {site, mask, 0, kVotes, 0};
  Exchange(call);
  HappensAfter(token);
}

// Names the waiting threads, grouped by the place where they wait.
void BlockRunner::FailOfWaiting() {
  char text[1024];
  int length = 0;
  int groups = 0;
  for (unsigned t = 0; t < launch_->threads;) {
    const Thread& first = *threads_[t];
    unsigned end = t + 1;
    while (end < launch_->threads && threads_[end]->state == first.state &&
           (first.state == State::kDone ||
            SameSite(threads_[end]->site, first.site))) {
      ++end;
    }
    const auto room = sizeof(text) - static_cast<std::size_t>(length);
    if (++groups <= 6) {
      length +=
          first.state == State::kDone
              ? std::snprintf(text + length, room,
                              "\n  threads %u to %u have ended", t, end - 1)
              : std::snprintf(text + length, room,
                              "\n  threads %u to %u are in %s at %s:%d", t,
                              end - 1, first.site.what, first.site.file,
                              first.site.line);
      length = std::min(length, static_cast<int>(sizeof(text)) - 1);
    }
    t = end;
  }
  Fail("threads wait for each other in different places (%d groups):%s", groups,
       text);
}

void BlockRunner::Fail(const char* format, ...) {
  std::fprintf(
      stderr, "cuda_shim: launch %llu <<<%u, %u, %zu>>> of %s,\nblock %u, ",
      static_cast<unsigned long long>(launch_->number), launch_->blocks,
      launch_->threads, launch_->shared_bytes, launch_->name, blockIdx.x);
  if (inside_) std::fprintf(stderr, "thread %u, ", threadIdx.x);
  std::va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fputc('\n', stderr);
  std::abort();
}

void Barrier(const Site& site) { running_block->Barrier(site); }
std::uint64_t Exchange(WarpCall call) { return running_block->Exchange(call); }
void WarpBarrier(const Site& site, unsigned mask) {
  running_block->WarpBarrier(site, mask);
}
void MayYield() { running_block->MayYield(); }
void Fence() {
  // Blocks run one by one, so only the thread sanitizer can detect its absence.
  HappensBefore(&tokens.fence);
  running_block->MayYield();
  HappensAfter(&tokens.fence);
}
void Misaligned(const char* what, const void* pointer, std::size_t alignment) {
  running_block->Fail("%s: expected a multiple of %zu, seen %p", what,
                      alignment, pointer);
}

}  // namespace gradientflow::cuda_shim
