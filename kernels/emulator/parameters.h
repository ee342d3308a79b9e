// What a compiled kernel tells of itself, so that a launch can be checked, and the call with arguments given as bytes.
#pragma once
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "runtime.h"

namespace cuda_cpu {

// ---- parameters, described in text: a line each ---------------------------------------------------------------------
template <class T> const char* kind() {
    if (std::is_void<T>::value) return "void";
    if (std::is_pointer<T>::value) return "pointer";
    if (std::is_floating_point<T>::value) return "float";
    if (std::is_same<T, bool>::value) return "bool";
    if (std::is_integral<T>::value || std::is_enum<T>::value) return std::is_signed<T>::value ? "int" : "unsigned";
    return "struct";
}
template <class T> const char* name_in_brackets() { return __PRETTY_FUNCTION__; }  // "... [with T = const float*]"
template <class T> struct SizeOf { static constexpr size_t value = sizeof(T); };
template <> struct SizeOf<void> { static constexpr size_t value = 1; };

template <class T> std::string parameter_line() {
    using Target = std::remove_pointer_t<T>;
    using Plain = std::remove_cv_t<Target>;
    std::string type = std::to_string(sizeof(T)) + "\t" + kind<T>();
    std::string target = std::to_string(SizeOf<Plain>::value) + "\t" + kind<Plain>();
    const char* is_const = std::is_const<Target>::value ? "const" : "";
    return type + "\t" + target + "\t" + is_const + "\t" + name_in_brackets<T>() + "\n";
}

// ---- calls ----------------------------------------------------------------------------------------------------------
template <class T> T read(const void* bytes) {  // wherever they lie
    static_assert(std::is_trivially_copyable<T>::value, "a kernel's parameters are plain values");
    alignas(T) char copy[sizeof(T)];
    __builtin_memcpy(copy, bytes, sizeof(T));
    return *reinterpret_cast<T*>(copy);
}
template <class... T, size_t... I>
int launch_with(void (*kernel)(T...), const Launch& options, Bytes shared, void** arguments,
                std::index_sequence<I...>) {
    auto call = [=] { kernel(read<std::remove_cv_t<T>>(arguments[I])...); };
    return launch(options, shared, [](void* c) { (*(decltype(call)*)c)(); }, &call);
}

struct Kernel {
    const char* name = nullptr;
    unsigned most_threads = 0;  // of __launch_bounds__
    std::string (*parameters)() = nullptr;
    int (*run)(const Launch& options, Bytes static_shared, void** arguments) = nullptr;
};
template <class... T> std::string parameters_of(void (*)(T...)) { return (std::string() + ... + parameter_line<T>()); }
template <class... T>
int run_kernel(void (*kernel)(T...), const Launch& options, Bytes static_shared, void** arguments) {
    return launch_with(kernel, options, static_shared, arguments, std::index_sequence_for<T...>{});
}
template <auto kernel> constexpr Kernel describe(const char* name, unsigned most_threads, unsigned = 0) {
    return {name, most_threads, [] { return parameters_of(kernel); },
            [](const Launch& options, Bytes static_shared, void** arguments) {
                return run_kernel(kernel, options, static_shared, arguments);
            }};
}

}  // namespace cuda_cpu
