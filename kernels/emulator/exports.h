// The functions of a compiled source that module.py calls. Included at its end: it has the table cuda_cpu_kernels, of
// which the last entry has no name.
#pragma once
#include "parameters.h"

// The bounds of the section in which __shared__ variables lie, which the linker knows; there may be none.
extern "C" char __start_cuda_shared[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_cuda_shared[] __attribute__((weak, visibility("hidden")));

extern "C" const char* cuda_cpu_name(int kernel) { return cuda_cpu_kernels[kernel].name; }
extern "C" unsigned cuda_cpu_most_threads(int kernel) { return cuda_cpu_kernels[kernel].most_threads; }
extern "C" const char* cuda_cpu_parameters(int kernel) {
    static std::string text;
    text = cuda_cpu_kernels[kernel].parameters();
    return text.c_str();
}
// Bytes of the __shared__ variables that the kernels use. AddressSanitizer makes them larger, so they do not count.
extern "C" int cuda_cpu_static_shared() {
#ifdef __SANITIZE_ADDRESS__
    return 0;
#else
    return (int)(__stop_cuda_shared - __start_cuda_shared);
#endif
}
// Whether one of them has a value to begin with, which CUDA C++ does not know. They are still as they were loaded when
// this is asked for the first time; launches change them.
__attribute__((no_sanitize("address"))) static bool cuda_cpu_values_in(const char* begin, const char* end) {
    for (; begin < end; ++begin)
        if (*begin) return true;
    return false;
}
extern "C" int cuda_cpu_shared_has_values() {
    static const bool found = cuda_cpu_values_in(__start_cuda_shared, __stop_cuda_shared);
    return found;
}
extern "C" int cuda_cpu_run(int kernel, const cuda_cpu::Launch* launch, void** arguments) {
    return cuda_cpu_kernels[kernel].run(*launch, {__start_cuda_shared, __stop_cuda_shared}, arguments);
}
