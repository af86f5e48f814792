#include "tests/cuda_shim/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "tests/cuda_shim/sanitizers.h"

// Saves the registers that a call preserves on the stack, and the stack pointer
// to *save; continues where the stack `load` was left. ucontext would need two
// system calls for this, and AddressSanitizer warns of it.
extern "C" void gf_cuda_shim_switch(void** save, void* load);
#if defined(__x86_64__)
asm(R"(
.text
.hidden gf_cuda_shim_switch
.globl gf_cuda_shim_switch
.type gf_cuda_shim_switch, @function
gf_cuda_shim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size gf_cuda_shim_switch, . - gf_cuda_shim_switch
)");
#else
#error "cuda_shim: write this processor's switch of stacks"
#endif

namespace gradientflow::cuda_shim {
namespace {

constexpr std::size_t kStackBytes = 128 << 10;
constexpr std::size_t kSavedRegisters = 6;

std::size_t PageBytes() { return static_cast<std::size_t>(getpagesize()); }

// The fiber whose stack is being started.
thread_local Fiber* starting = nullptr;

}  // namespace

Fiber::Fiber() {
  mapping_ = mmap(nullptr, kStackBytes + PageBytes(), PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED ||
      mprotect(mapping_, PageBytes(), PROT_NONE) != 0) {
    std::perror("cuda_shim: no memory for a thread's stack");
    std::abort();
  }
  // As if a call had pushed Main's address, and registers below it.
  auto** top = reinterpret_cast<void**>(static_cast<char*>(mapping_) +
                                        PageBytes() + kStackBytes);
  top[-2] = reinterpret_cast<void*>(+[] { Main(starting); });
  stack_pointer_ = top - 2 - kSavedRegisters;
  if (UnderTsan()) tsan_fiber_ = __tsan_create_fiber(0);
}

Fiber::~Fiber() {
  quit_ = true;
  SwitchIn();  // Lets the sanitizers release the stack.
  if (UnderTsan()) __tsan_destroy_fiber(tsan_fiber_);
  munmap(mapping_, kStackBytes + PageBytes());
}

void Fiber::Start(void (*run)(void*), void* argument) {
  run_ = run;
  argument_ = argument;
}

void Fiber::Resume() { SwitchIn(); }

void Fiber::SwitchIn() {
  starting = this;
  StartSwitch(&caller_fake_stack_, static_cast<char*>(mapping_) + PageBytes(),
              kStackBytes);
  if (UnderTsan()) {
    tsan_caller_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(tsan_fiber_, 1);  // The switch orders nothing.
  }
  gf_cuda_shim_switch(&caller_pointer_, stack_pointer_);
  FinishSwitch(caller_fake_stack_, nullptr, nullptr);
}

void Fiber::Pause() {
  StartSwitch(quit_ ? nullptr : &fake_stack_, caller_stack_,
              caller_stack_bytes_);
  if (UnderTsan()) __tsan_switch_to_fiber(tsan_caller_, 1);
  gf_cuda_shim_switch(&stack_pointer_, caller_pointer_);
  FinishSwitch(fake_stack_, &caller_stack_, &caller_stack_bytes_);
}

void Fiber::Main(Fiber* fiber) {
  FinishSwitch(nullptr, &fiber->caller_stack_, &fiber->caller_stack_bytes_);
  while (true) {
    if (!fiber->quit_) {
      fiber->run_(fiber->argument_);
      fiber->run_ = nullptr;
    }
    fiber->Pause();
  }
}

}  // namespace gradientflow::cuda_shim
