// A read or write of memory that is not there ends the launch with an error, as on a GPU, instead of the process. So
// does Ctrl-C: a kernel that runs forever could not be ended otherwise. Under a sanitizer, which reports more, its own
// handlers stay.
#pragma once
#include <pthread.h>

#include <csignal>

#include "runtime.h"

namespace cuda_cpu {

#if !defined(CUDA_CPU_ASAN) && !defined(CUDA_CPU_TSAN)
constexpr int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGINT};
inline pthread_t launcher;  // the thread of this process in which the kernel runs

inline void on_signal(int number, siginfo_t* info, void*) {
    if (number == SIGINT) {  // comes to the main thread
        if (pthread_equal(pthread_self(), launcher)) return interrupt();
        pthread_kill(launcher, SIGINT);
        return;
    }
    if (number == SIGFPE) fail("an integer was divided by zero, or the smallest of its type by -1");
    if (number == SIGILL) fail("an instruction that this CPU lacks");
    fail("memory access fault at address %p: an index out of bounds, an array of another size or dtype than the kernel "
         "takes, a float4 at an address that is no multiple of 16, or too many local variables; sanitize=\"address\" "
         "names the line", info->si_addr);
}

class SignalsCaught {  // as long as it lives
  public:
    SignalsCaught() {
        launcher = pthread_self();
        stack_t own = {};
        own.ss_sp = stack;
        own.ss_size = sizeof stack;
        sigaltstack(&own, &former_stack);
        struct sigaction action = {};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;  // the handler is left by changing to another stack
        for (int i = 0; i < COUNT; ++i) {
            sigaction(SIGNALS[i], nullptr, &former[i]);
            if (former[i].sa_handler != SIG_IGN) sigaction(SIGNALS[i], &action, nullptr);
        }
    }
    ~SignalsCaught() {
        for (int i = 0; i < COUNT; ++i) sigaction(SIGNALS[i], &former[i], nullptr);
        sigaltstack(&former_stack, nullptr);
    }

  private:
    static constexpr int COUNT = sizeof SIGNALS / sizeof *SIGNALS;
    static inline char stack[64 << 10];
    stack_t former_stack;
    struct sigaction former[COUNT];
};
#else
struct SignalsCaught {
    ~SignalsCaught() {}  // so that the variable counts as used
};
#endif

}  // namespace cuda_cpu
