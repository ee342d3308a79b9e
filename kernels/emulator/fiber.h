// A fiber: a function with a stack of its own, which is left and gone on with at will. A CUDA thread is one.
//
// Sanitizers must be told of each change of stacks: AddressSanitizer, to know which memory is a stack, and
// ThreadSanitizer, to which each fiber is a thread (CUDA_CPU_ASAN, CUDA_CPU_TSAN).
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>

#if !defined(__x86_64__) || defined(CUDA_CPU_UCONTEXT)
#include <ucontext.h>
#endif
#ifdef CUDA_CPU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef CUDA_CPU_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace cuda_cpu {

// ---- changing stacks ------------------------------------------------------------------------------------------------
#if defined(__x86_64__) && !defined(CUDA_CPU_UCONTEXT)
// Ten nanoseconds: pushes the registers that a function must keep, and changes the stack.
using Context = void*;  // the stack pointer of one who waits
extern "C" void cuda_cpu_switch(Context* from, Context to);
asm(R"(
.text
.type cuda_cpu_switch, @function
cuda_cpu_switch:
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
)");
inline void switch_context(Context& from, Context& to) { cuda_cpu_switch(&from, to); }
inline void prepare_context(Context& context, char* stack, size_t size, void (*function)()) {
    void** top = reinterpret_cast<void**>(stack + size);
    *--top = nullptr;  // the function finds its stack aligned as after a call
    *--top = reinterpret_cast<void*>(function);
    for (int kept_register = 0; kept_register < 6; ++kept_register) *--top = nullptr;
    context = top;
}
#else
// Any other processor: thirty times slower, since it also asks the system for the signal mask.
using Context = ucontext_t;
inline void switch_context(Context& from, Context& to) { swapcontext(&from, &to); }
inline void prepare_context(Context& context, char* stack, size_t size, void (*function)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = size;
    context.uc_link = nullptr;
    makecontext(&context, function, 0);
}
#endif

// ---- fibers ---------------------------------------------------------------------------------------------------------
struct {  // who resumes fibers, on the stack of the process
    Context context;
    void *asan, *tsan;
    const void* stack;
    size_t stack_size;
} static scheduler;

class Fiber {
  public:
    static constexpr size_t STACK = 256 << 10;

    // Ready to run `function` from its beginning; whatever it was in the middle of is forgotten.
    void start(void (*function)()) {
        if (!stack) allocate();
#ifdef CUDA_CPU_ASAN
        __asan_unpoison_memory_region(stack, STACK);  // of functions that never returned
#endif
#ifdef CUDA_CPU_TSAN
        if (!tsan) tsan = __tsan_create_fiber(0);
#endif
        prepare_context(context, stack, STACK, function);
    }

    // Called by the scheduler: the fiber runs until it calls leave().
    void resume() {
#ifdef CUDA_CPU_TSAN
        scheduler.tsan = __tsan_get_current_fiber();
        __tsan_switch_to_fiber(tsan, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef CUDA_CPU_ASAN
        __sanitizer_start_switch_fiber(&scheduler.asan, stack, STACK);
#endif
        switch_context(scheduler.context, context);
#ifdef CUDA_CPU_ASAN
        __sanitizer_finish_switch_fiber(scheduler.asan, nullptr, nullptr);
#endif
    }

    // Called by the fiber: back to the scheduler, until it is resumed. After the last time it never is.
    void leave(bool for_good = false) {
#ifdef CUDA_CPU_TSAN
        __tsan_switch_to_fiber(scheduler.tsan, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef CUDA_CPU_ASAN
        __sanitizer_start_switch_fiber(for_good ? nullptr : &asan, scheduler.stack, scheduler.stack_size);
#endif
        (void)for_good;
        switch_context(context, scheduler.context);
#ifdef CUDA_CPU_ASAN
        __sanitizer_finish_switch_fiber(asan, nullptr, nullptr);
#endif
    }

    // The first thing that the function of a fiber calls.
    static void entered() {
#ifdef CUDA_CPU_ASAN
        __sanitizer_finish_switch_fiber(nullptr, &scheduler.stack, &scheduler.stack_size);
#endif
    }

  private:
    Context context;
    char* stack = nullptr;
    void *asan = nullptr, *tsan = nullptr;

    void allocate() {  // with a page below it that may not be touched: too deep a stack is noticed
        size_t page = (size_t)sysconf(_SC_PAGESIZE);
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        void* memory = mmap(nullptr, STACK + page, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (memory == MAP_FAILED) abort();
        mprotect(memory, page, PROT_NONE);
        stack = (char*)memory + page;
    }
};

// ---- order between threads, for ThreadSanitizer ---------------------------------------------------------------------
// What is written before release(tag) may be read after acquire(tag).
inline void release(void* tag) {
#ifdef CUDA_CPU_TSAN
    __tsan_release(tag);
#endif
    (void)tag;
}
inline void acquire(void* tag) {
#ifdef CUDA_CPU_TSAN
    __tsan_acquire(tag);
#endif
    (void)tag;
}

}  // namespace cuda_cpu
