// Errors that compiled code finds itself: the compiler (-fsanitize=alignment,bounds,integer-divide-by-zero) puts a test
// before such an instruction, and a call of one of these functions where it fails. Names and layouts are those of the
// Undefined Behavior Sanitizer's library, which takes their place if a kernel is compiled with all its checks.
#ifndef CUDA_CPU_ASAN
#include <cstdint>

#include "runtime.h"

namespace {
struct SourcePlace {
    const char* file;
    uint32_t line, column;
};
struct Type {
    uint16_t kind, information;
    char name[1];  // and what follows: in quotes
};
struct Address {
    SourcePlace place;
    const Type* type;
    uint8_t log_alignment, access;
};
struct Index {
    SourcePlace place;
    const Type *array, *index;
};
struct Division {
    SourcePlace place;
    const Type* type;
};
}  // namespace

extern "C" {
[[noreturn]] void __ubsan_handle_type_mismatch_v1_abort(const Address* what, uintptr_t address) {
    cuda_cpu::fail("misaligned address %p at %s:%u: that of %s must be a multiple of %d", (void*)address,
                   what->place.file, what->place.line, what->type->name, 1 << what->log_alignment);
}
[[noreturn]] void __ubsan_handle_out_of_bounds_abort(const Index* what, uintptr_t index) {
    cuda_cpu::fail("index out of bounds at %s:%u: %lld of %s", what->place.file, what->place.line, (long long)index,
                   what->array->name);
}
[[noreturn]] void __ubsan_handle_divrem_overflow_abort(const Division* what, uintptr_t, uintptr_t) {
    cuda_cpu::fail("division by zero of %s at %s:%u", what->type->name, what->place.file, what->place.line);
}
}
#endif
