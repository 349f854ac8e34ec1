// A fiber: its own stack and saved registers. Reports every switch to the sanitizers.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#ifdef PFL_WITH_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef PFL_WITH_TSAN
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#endif
#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace emulation {

// Tells ThreadSanitizer that accesses before order_before(x) happen before accesses after a later order_after(x).
inline void order_before([[maybe_unused]] void* address) {
#ifdef PFL_WITH_TSAN
  __tsan_release(address);
#endif
}
inline void order_after([[maybe_unused]] void* address) {
#ifdef PFL_WITH_TSAN
  __tsan_acquire(address);
#endif
}

#ifdef __x86_64__
// Saves callee-saved registers and the stack pointer, and loads those of the other stack. Ten times faster than
// swapcontext, which makes a system call for the signal mask on every switch.
extern "C" void pfl_switch_stack(void** save, void* load);
asm(R"(
.text
.type pfl_switch_stack, @function
pfl_switch_stack:
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
.size pfl_switch_stack, .-pfl_switch_stack
)");
#endif

class Fiber {
 public:
  static constexpr size_t kStack = 128 * 1024;

  Fiber()
      : stack_(static_cast<char*>(mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    if (stack_ == MAP_FAILED) {
      std::abort();
    }
#ifdef PFL_WITH_TSAN
    identity_ = __tsan_create_fiber(0);
#endif
  }
  ~Fiber() {
#ifdef PFL_WITH_TSAN
    __tsan_destroy_fiber(identity_);
#endif
#ifdef PFL_WITH_ASAN
    __asan_unpoison_memory_region(stack_, kStack);
#endif
    munmap(stack_, kStack);
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Prepares the next resume() to call `body` on an empty stack.
  void start(void (*body)(void*)) {
    body_ = body;
#ifdef PFL_WITH_ASAN
    __asan_unpoison_memory_region(stack_, kStack);
    fake_stack_ = nullptr;
#endif
#ifdef __x86_64__
    void** top = reinterpret_cast<void**>(stack_ + kStack) - 2;
    // Return address of pfl_switch_stack; the stack is aligned as after a call.
    *top = reinterpret_cast<void*>(&Fiber::enter);
    inside_ = top - 6;
    for (int i = 0; i < 6; ++i) {
      static_cast<void**>(inside_)[i] = nullptr;
    }
#else
    getcontext(&inside_);
    inside_.uc_stack.ss_sp = stack_;
    inside_.uc_stack.ss_size = kStack;
    inside_.uc_link = nullptr;
    makecontext(&inside_, &Fiber::enter, 0);
#endif
  }

  void resume() {
    starting() = this;
#ifdef PFL_WITH_TSAN
    scheduler_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(identity_, 1);  // 1: the switch creates no happens-before edge
#endif
#ifdef PFL_WITH_ASAN
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, stack_, kStack);
#endif
    to_fiber();
#ifdef PFL_WITH_ASAN
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
  }

  void suspend() {
#ifdef PFL_WITH_TSAN
    __tsan_switch_to_fiber(scheduler_, 1);
#endif
#ifdef PFL_WITH_ASAN
    __sanitizer_start_switch_fiber(&fake_stack_, scheduler_stack_, scheduler_bytes_);
#endif
    to_scheduler();
#ifdef PFL_WITH_ASAN
    __sanitizer_finish_switch_fiber(fake_stack_, &scheduler_stack_, &scheduler_bytes_);
#endif
  }

 private:
  static Fiber*& starting() {
    static Fiber* fiber = nullptr;
    return fiber;
  }

  static void enter() {
    Fiber* const self = starting();
#ifdef PFL_WITH_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &self->scheduler_stack_, &self->scheduler_bytes_);
#endif
    self->body_(nullptr);
    self->suspend();
    std::abort();  // a finished fiber is never resumed
  }

#ifdef __x86_64__
  void to_fiber() {
    pfl_switch_stack(&outside_, inside_);
  }
  void to_scheduler() {
    pfl_switch_stack(&inside_, outside_);
  }
  void *inside_ = nullptr, *outside_ = nullptr;
#else
  void to_fiber() {
    swapcontext(&outside_, &inside_);
  }
  void to_scheduler() {
    swapcontext(&inside_, &outside_);
  }
  ucontext_t inside_, outside_;
#endif

  char* stack_;
  void (*body_)(void*) = nullptr;
#ifdef PFL_WITH_TSAN
  void* identity_ = nullptr;
  void* scheduler_ = nullptr;
#endif
#ifdef PFL_WITH_ASAN
  void* fake_stack_ = nullptr;
  const void* scheduler_stack_ = nullptr;
  size_t scheduler_bytes_ = 0;
#endif
};

}  // namespace emulation
