"""Launching a kernel on the CPU: arguments by CuPy's rules, and checks of what CuPy and a GPU let pass."""

import ctypes
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from kernels.emulator import EmulatedModule, EmulatorError, running
from tests.kernels.emulator.compiled import WAYS, compiled, needs_compiler

pytestmark = needs_compiler

CODE = r"""
struct Sizes { int rows; double factor; unsigned char flag; };

extern "C" __global__ void __launch_bounds__(64 * 4) add(const float* x, const float* y, float* sum, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) sum[i] = x[i] + y[i];
}

extern "C" __global__ void by_value(float* out, float a, double b, long long c, bool d, unsigned short e, Sizes sizes) {
    out[0] = a; out[1] = (float)b; out[2] = (float)c; out[3] = d; out[4] = e;
    out[5] = sizes.rows * (float)sizes.factor + sizes.flag;
}

extern "C" __global__ void pointers(const int* indices, unsigned* bits, const void* anything, double* out) {
    out[0] = (indices == nullptr) + 2 * (bits == nullptr) + 4 * (anything == nullptr);
}

extern "C" __global__ void places(int* out) {
    int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] += 1 + thread + 100 * block;
}

extern "C" __global__ void dynamic(float* out, int last) {
    extern __shared__ __align__(16) float tile[];
    tile[last] = out[0];
    out[1] = tile[last];
}

__global__ void mangled(float* out) { out[0] = 1; }
#ifdef EXTRA
extern "C" __global__ void extra(int* out) { out[0] = EXTRA; }
#endif
#define KERNEL(name) extern "C" __global__ void name(int* out)
KERNEL(of_a_macro) { out[0] = 7; }
// extern "C" __global__ void in_a_comment(int* out) {}
"""
ONE = (1,)
SIZES = np.dtype([("rows", np.int32), ("factor", np.float64), ("flag", np.uint8)], align=True)


def launch(name, *args, grid=ONE, block=ONE, shared_mem=0):
    compiled(CODE).get_function(name)(grid, block, args, shared_mem=shared_mem)


@pytest.mark.parametrize("order, seed, copies", WAYS)
def test_a_kernel_runs_once_for_each_thread(order, seed, copies):
    x, y = np.arange(1000, dtype=np.float32), np.linspace(0, 1, 1000, dtype=np.float32)
    total = np.zeros(1024, np.float32)
    with running(order, seed, copies):
        launch("add", x, y, total, np.int32(1000), grid=(4,), block=(256,))
    np.testing.assert_array_equal(total[:1000], x + y)
    assert not total[1000:].any()


@pytest.mark.parametrize("order, seed, copies", WAYS)
def test_grids_and_blocks_of_three_dimensions(order, seed, copies):
    out = np.zeros((2 * 3 * 4, 5 * 2 * 3), np.int32)
    with running(order, seed, copies):
        launch("places", out, grid=(2, 3, 4), block=(5, 2, 3))
    np.testing.assert_array_equal(out, 1 + np.arange(30) + 100 * np.arange(24)[:, None])


# ---- arguments -------------------------------------------------------------------------------------------------------


def test_values_pass_as_their_bytes():
    out = np.zeros(6, np.float32)
    sizes = np.array([(3, 0.5, 7)], SIZES)
    launch("by_value", out, np.float32(1.5), 2.25, 2**40, True, np.uint16(65535), sizes)
    assert out.tolist() == [1.5, 2.25, 2**40, 1, 65535, 8.5]
    launch("by_value", out, np.float32(1.5), np.float64(2), np.int64(-1), np.False_, np.uint16(1), sizes[0])
    assert out.tolist() == [1.5, 2, -1, 0, 1, 8.5]


def test_none_is_a_null_pointer():
    out = np.zeros(1)
    launch("pointers", None, np.zeros(1, np.uint32), None, out)
    assert out[0] == 5
    launch("pointers", np.zeros(1, np.int32), None, np.zeros(1, np.complex64), out)
    assert out[0] == 2


def test_an_array_passes_the_address_of_its_first_element():
    x, total = np.arange(12, dtype=np.float32).reshape(3, 4), np.zeros(1, np.float32)
    launch("add", x[1:, ::2], x.T[2:], total, np.int32(1))  # x[1, 0] + x[0, 2]
    assert total[0] == 4 + 2
    launch("add", x[1:, ::2].ctypes.data, x.ctypes.data, total, np.int32(1))  # an address is a number
    assert total[0] == 4


def test_an_array_of_one_element_is_written_to():
    x, total = np.full((1, 1), 2, np.float32), np.zeros((), np.float32)
    launch("add", x, x, total, np.int32(1))
    assert total == 4


def test_a_read_only_array_may_be_read():
    x, total = np.broadcast_to(np.float32(3), (4,)), np.zeros(1, np.float32)
    launch("add", x, x, total, np.int32(1))
    assert total[0] == 6
    with pytest.raises(EmulatorError, match=r"add: args\[2\]: the kernel may write through float\*, .* read-only"):
        launch("add", x, x, x, np.int32(1))


X = np.zeros(4, np.float32)
WRONG = [
    ((X, X, X), r"add takes 4 arguments \(const float\*, const float\*, float\*, int\), 3 were passed"),
    ((X, X, X, 4), r"args\[3\]: .* int \(4 bytes\), a Python int of 8 bytes was passed; write np.int32\(\.\.\.\)"),
    ((X, X, X, 4.0), r"args\[3\]: .* a Python float of 8 bytes was passed; write np.int32"),
    ((X, X, X, np.float32(4)), r"args\[3\]: .* float32 of 4 bytes was passed; write np.int32"),
    ((X, X, X, X), r"args\[3\]: .* an array of float32, which is a pointer, was passed; write np.int32"),
    ((X, X, X, None), r"args\[3\]: .* None, which is a null pointer, was passed"),
    ((X, X, 1.0, np.int32(4)), r"args\[2\]: the kernel takes float\* \(8 bytes\), a Python float of 8 bytes"),
    ((X, X, np.int32(1), np.int32(4)), r"args\[2\]: .* int32 of 4 bytes was passed"),
    ((X.astype(np.float64), X, X, np.int32(4)), r"args\[0\]: the kernel takes const float\*, an array of float64"),
    ((X.view(np.int32), X, X, np.int32(4)), r"args\[0\]: the kernel takes const float\*, an array of int32"),
    ((X.astype(">f4"), X, X, np.int32(4)), r"args\[0\]: an array of >f4, whose bytes are not in this"),
    ((X.astype(object), X, X, np.int32(4)), r"args\[0\]: an array of Python objects"),
    (("x", X, X, np.int32(4)), r"args\[0\]: str cannot be passed"),
    (([1.0], X, X, np.int32(4)), r"args\[0\]: list cannot be passed"),
]


@pytest.mark.parametrize("args, message", WRONG, ids=range(len(WRONG)))
def test_a_wrong_argument_is_an_error_that_names_it(args, message):
    with pytest.raises(EmulatorError, match=message):
        launch("add", *args)


def test_sizes_of_other_parameters_are_checked_too():
    out, sizes = np.zeros(6, np.float32), np.zeros(1, SIZES)
    good = [out, np.float32(0), 0.0, 0, False, np.uint16(0), sizes]
    launch("by_value", *good)
    wrong = [0.0, np.float32(0), np.int32(0), 0, 0, np.zeros(1, [("rows", np.int32)])]
    for place, value in enumerate(wrong, 1):
        with pytest.raises(EmulatorError, match=rf"args\[{place}\]"):
            launch("by_value", *good[:place], value, *good[place + 1 :])
    with pytest.raises(EmulatorError, match=r"args\[0\]: the kernel takes const int\*, an array of int64"):
        launch("pointers", np.zeros(3, np.int64), None, None, np.zeros(1))
    launch("pointers", None, np.zeros(6, np.float16), np.zeros(3, np.int64), np.zeros(1))  # unsigned: any bytes


# ---- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "grid, block, message",
    [
        ((1,), (1025,), r"block \(1025, 1, 1\) is too large, a GPU takes up to \(1024, 1024, 64\)"),
        ((1,), (1, 1, 65), r"block \(1, 1, 65\) is too large"),
        ((1,), (32, 33), r"block \(32, 33, 1\) has 1056 threads, 1024 are possible"),
        ((1, 65536), (1,), r"grid \(1, 65536, 1\) is too large"),
        ((2**31,), (1,), r"grid \(2147483648, 1, 1\) is too large"),
    ],
)
def test_sizes_that_a_gpu_refuses_are_refused(grid, block, message):
    with pytest.raises(EmulatorError, match=message):
        launch("places", np.zeros(1, np.int32), grid=grid, block=block)


def test_sizes_are_tuples_of_integers():
    for grid in (1, [1], (), (1, 1, 1, 1)):
        with pytest.raises(TypeError, match=r"grid=.* a tuple of one to three integers"):
            launch("places", np.zeros(1, np.int32), grid=grid)
    with pytest.raises(TypeError, match="float"):
        launch("places", np.zeros(1, np.int32), block=(1.5,))


def test_a_size_of_zero_counts_as_one():
    out = np.zeros(1, np.int32)
    launch("places", out, grid=(0, np.int64(1)), block=(0,))
    assert out[0] == 1


def test_launch_bounds_hold():
    args = (X, X, X.copy(), np.int32(0))
    launch("add", *args, block=(256,))
    with pytest.raises(EmulatorError, match="257 threads, __launch_bounds__ promises at most 256"):
        launch("add", *args, block=(257,))


def test_much_shared_memory_must_be_asked_for():
    kernel = EmulatedModule(CODE).get_function("dynamic")
    out, size = np.array([5, 0], np.float32), 64 << 10
    with pytest.raises(EmulatorError, match=r"shared_mem=65536 bytes, 49152 are allowed; .*max_dynamic_shared_size"):
        kernel(ONE, ONE, (out, np.int32(0)), shared_mem=size)
    kernel.max_dynamic_shared_size_bytes = size
    kernel(ONE, ONE, (out, np.int32(size // 4 - 1)), shared_mem=size)
    assert out[1] == 5
    with pytest.raises(EmulatorError, match="at most 232448"):
        kernel.max_dynamic_shared_size_bytes = 232449
    kernel.max_dynamic_shared_size_bytes = 232448
    kernel(ONE, ONE, (out, np.int32(232448 // 4 - 1)), shared_mem=232448)
    with pytest.raises(EmulatorError, match="shared_mem=-4"):
        kernel(ONE, ONE, (out, np.int32(0)), shared_mem=-4)


SHARED = """extern "C" __global__ void shared(float* out) {
    extern __shared__ float tile[];
    __shared__ float values[COUNT];
    tile[0] = values[threadIdx.x] = 1;
    out[0] = values[threadIdx.x] + tile[0];
}"""


def test_shared_variables_take_from_the_shared_memory_of_a_block():
    out = np.zeros(1, np.float32)
    kernel = compiled(SHARED, "-DCOUNT=10000").get_function("shared")
    kernel(ONE, ONE, (out,), shared_mem=9152)
    assert out[0] == 2
    with pytest.raises(EmulatorError, match="9153 bytes, 9152 are allowed besides the 40000 of its __shared__ var"):
        kernel(ONE, ONE, (out,), shared_mem=9153)
    with pytest.raises(EmulatorError, match="a block has at most 192448 on sm_90 besides the 40000 of its __shared__"):
        kernel.max_dynamic_shared_size_bytes = 192449
    kernel.max_dynamic_shared_size_bytes = 192448
    kernel(ONE, ONE, (out,), shared_mem=192448)


def test_shared_variables_have_48_kib_at_most():
    compiled(SHARED, "-DCOUNT=12288").get_function("shared")
    with pytest.raises(EmulatorError, match="its __shared__ variables take 49156 bytes, 49152 are possible; more"):
        compiled(SHARED, "-DCOUNT=12289").get_function("shared")


@pytest.mark.parametrize("declaration", ["float shared[2] = {0, 1}", "struct { float a = 3; } shared[2]"])
def test_shared_variables_have_no_values_to_begin_with(declaration):
    code = f"""extern "C" __global__ void f(char* out) {{
        __shared__ {declaration};
        *out = *(char*)&shared[threadIdx.x];
    }}"""
    for _ in range(2):
        with pytest.raises(EmulatorError, match="a __shared__ variable cannot be declared with a value: assign it"):
            EmulatedModule(code).get_function("f")


@pytest.mark.parametrize("grid", [(1,), (2,), (5, 1, 3), (16,), (17, 59), (40000,)])
def test_any_order_of_blocks_has_each_of_them_once(grid):
    code = """extern "C" __global__ void number(int* order, int* count) {
        order[(*count)++] = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    }"""
    order = np.zeros((2, np.prod(grid)), np.int32)
    for seed in range(2):
        with running("random", seed):
            compiled(code).get_function("number")(grid, ONE, (order[seed], np.zeros(1, np.int32)))
        np.testing.assert_array_equal(np.sort(order[seed]), np.arange(order.shape[1]))
    assert order.shape[1] < 15 or (order[0] != order[1]).any()


@pytest.mark.parametrize("order", ["fifo", "lifo", "random"])
def test_a_grid_may_be_as_large_as_on_a_gpu(order):
    code = 'extern "C" __global__ void stop(int* x) { *x = 1; __trap(); }'
    x = np.zeros(1, np.int32)
    with running(order), pytest.raises(EmulatorError, match="__trap"):
        compiled(code).get_function("stop")((2**31 - 1, 65535, 65535), ONE, (x,))
    assert x[0] == 1


def test_threads_of_python_launch_one_after_another():
    def total(value):
        x, result = np.full(500, value, np.float32), np.zeros(500, np.float32)
        with running("random", value):
            launch("add", x, x, result, np.int32(500), grid=(2,), block=(256,))
        return (result == 2 * value).all()

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(total, range(20)))


# ---- sources ---------------------------------------------------------------------------------------------------------


def test_a_module_has_the_kernels_that_its_source_compiles_to():
    out = np.zeros(1, np.int32)
    launch("of_a_macro", out)
    assert out[0] == 7
    for name in ("mangled", "extra", "in_a_comment"):
        known = "add, by_value, pointers, places, dynamic, of_a_macro"
        with pytest.raises(EmulatorError, match=rf'no kernel {name}, declared extern "C" .* it has: {known}$'):
            compiled(CODE).get_function(name)
    module = EmulatedModule(CODE, ("-DEXTRA=5", "--std=c++17", "-use_fast_math", "-arch=sm_90"))
    module.get_function("extra")(ONE, ONE, (out,))
    assert out[0] == 5
    assert compiled(CODE).get_function("add") is compiled(CODE).get_function("add")


@pytest.mark.parametrize(
    "declaration",
    [
        "__launch_bounds__(64) __global__ void",
        "void __global__ __launch_bounds__(64)",
        "__global__ void __launch_bounds__(SIZES[1])",
        "__global__ __launch_bounds__(SIZES[0] * 2)\n\nvoid",
    ],
)
def test_a_kernel_may_be_declared_in_any_order_of_words(declaration):
    code = f'constexpr int SIZES[] = {{32, 64}};\nextern "C" {declaration} remove(int* out) {{ *out = 7; }}'
    kernel, out = compiled(code).get_function("remove"), np.zeros(1, np.int32)
    kernel(ONE, (64,), (out,))
    assert out[0] == 7
    with pytest.raises(EmulatorError, match="__launch_bounds__ promises at most 64"):
        kernel(ONE, (65,), (out,))


def test_comments_and_strings_may_hold_anything():
    code = r"""
    /*
    extern "C" __global__ void old(float* out) { extern __shared__ float tile[]; out[0] = tile[0]; }
    #include <no_such_header.h>
    */
    // extern "C" __global__ void older(float* out) {} \
    #include <no_such_header.h>
    #define NUMBERS 1'000'000 + '"' + sizeof "/*"
    #if 0
    It's a "remark.
    #endif
    extern "C" __global__ void values(int* out) {
        out[0] = NUMBERS;
        const char* text = R"-(extern "C" __global__ )"
    #include <no_such_header.h>
    )-";
        for (out[1] = 0; text[out[1]]; ++out[1]) {}
    }
    """
    out = np.zeros(2, np.int32)
    compiled(code).get_function("values")(ONE, ONE, (out,))
    assert out.tolist() == [1_000_000 + 34 + 3, len('extern "C" __global__ )"\n    #include <no_such_header.h>\n    ')]
    with pytest.raises(EmulatorError, match=r"it has: values$"):
        compiled(code).get_function("old")


def test_headers_are_included_where_the_preprocessor_comes_to_them():
    code = """
    #ifndef CUDA_CPU
    #include <cuda_fp16.h>
    #elif OTHER
    #  include <no_such_header.h>
    #else
    #include <climits> /* for INT_MAX,
    */
    #endif
    extern "C" __global__ void largest(int* out) { *out = INT_MAX; }
    """
    out = np.zeros(1, np.int32)
    compiled(code).get_function("largest")(ONE, ONE, (out,))
    assert out[0] == 2**31 - 1
    with pytest.raises(EmulatorError, match=r"kernel.cu:5:.*no_such_header.h: No such file(.|\n)*no headers of CUDA"):
        compiled(code, "-DOTHER=1").get_function("largest")


def test_dynamic_shared_memory_may_be_of_a_template():
    code = """template <class T> struct Pair { T a, b; };
    extern "C" __global__ void f(float* out) {
        extern __shared__ Pair<float> pairs[];
        pairs[3].b = 4;
        *out = pairs[3].b;
    }"""
    out = np.zeros(1, np.float32)
    compiled(code).get_function("f")(ONE, ONE, (out,), shared_mem=32)
    assert out[0] == 4


@pytest.mark.parametrize(
    "standard, version", [("-std=c++11", 17), ("--std=c++14", 17), ("-std=c++17", 17), ("-std=c++20", 20)]
)
def test_older_standards_are_compiled_as_cxx_17(standard, version):
    code = 'extern "C" __global__ void f(int* out) { *out = __cplusplus / 100 - 2000; }'
    out = np.zeros(1, np.int32)
    compiled(code, standard).get_function("f")(ONE, ONE, (out,))
    assert out[0] == version


@pytest.mark.parametrize("option", ["-D", "-D=3", "-D3X", "-DX=1\n#error", "-DX+1", ""])
def test_a_macro_has_a_name_and_one_line(option):
    with pytest.raises(EmulatorError, match=r"^option .*: the emulator takes -Dname=value, -Dname and -std="):
        EmulatedModule(CODE, (option,))


def test_options_that_are_not_known_are_refused():
    with pytest.raises(EmulatorError, match=r"option '-std=c\+\+99': the standards of C\+\+ are c\+\+03, c\+\+11"):
        EmulatedModule(CODE, ("-std=c++99",))
    for options in (None, (1,), 1):
        with pytest.raises(TypeError, match=r"options=.*: a tuple of options, such as \("):
            EmulatedModule(CODE, options)
    with pytest.raises(TypeError, match="code=None: a source is a string"):
        EmulatedModule(None)
    with pytest.raises(EmulatorError, match="option '-O3': the emulator takes -Dname=value"):
        EmulatedModule(CODE, ("-O3",))
    with pytest.raises(TypeError, match="a tuple of options"):
        EmulatedModule(CODE, "-DEXTRA")


def test_the_order_of_threads_is_one_of_three():
    with pytest.raises(ValueError, match="order='Fifo', it is one of 'fifo', 'lifo', 'random'"), running("Fifo"):
        pass
    with pytest.raises(ValueError, match="copies='now', it is one of 'early', 'late'"), running(copies="now"):
        pass


def test_the_order_is_as_before_after_an_error():
    code = 'extern "C" __global__ void last(int* x) { x[0] = threadIdx.x; }'
    x = np.zeros(1, np.int32)
    for way, last in ((running(), 31), (running("lifo"), 0)):
        with pytest.raises(ZeroDivisionError), way:
            compiled(code).get_function("last")(ONE, (32,), (x,))
            assert x[0] == last
            raise ZeroDivisionError
    compiled(code).get_function("last")(ONE, (32,), (x,))
    assert x[0] == 31


def test_a_struct_has_the_same_layout_on_both_sides():
    class Sizes(ctypes.Structure):
        _fields_ = (("rows", ctypes.c_int), ("factor", ctypes.c_double), ("flag", ctypes.c_ubyte))

    assert ctypes.sizeof(Sizes) == SIZES.itemsize == 24
