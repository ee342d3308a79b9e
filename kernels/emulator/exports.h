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
extern "C" int cuda_cpu_run(int kernel, const cuda_cpu::Launch* launch, void** arguments) {
    return cuda_cpu_kernels[kernel].run(*launch, {__start_cuda_shared, __stop_cuda_shared}, arguments);
}
