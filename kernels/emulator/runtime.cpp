// Runs a kernel on the CPU: threads that take turns, barriers, warps, shared memory.
//
// Every CUDA thread of a block is a fiber. It runs until it meets a barrier or a warp operation, then another one runs;
// the blocks of a grid run one after the other. A correct kernel gives the same result in any order of its threads, one
// that lacks a barrier does not. Shared memory starts as 0xFF bytes, a NaN in every floating format, so what is read
// before it was written shows.
//
// This file is compiled without -fsanitize even where the kernel is compiled with it: then a sanitizer sees the
// kernel's own reads and writes alone. For the same reason no fiber uses the heap here.
#include "runtime.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "fiber.h"
#include "signals.h"

namespace cuda_cpu {

// ---- state ----------------------------------------------------------------------------------------------------------
constexpr int MAX_THREADS = 1024, WARP = 32, MAX_COPIES = 512;
constexpr size_t GUARD = 4 << 10;
constexpr char POISON = (char)0xFF;
constexpr const char* BARRIER = "__syncthreads";

const Thread* this_thread;
uint3 block_index;
dim3 block_size, grid_size;
alignas(1024) char dynamic_shared[MAX_SHARED + GUARD];

namespace {

struct CudaThread : Thread {
    Fiber fiber;
    int rank = 0;
    const char* waits_in = nullptr;  // an operation that others must come to as well
    Place place{"", 0};              // where that is
    bool returned = false;
    struct {
        Copy copy;
        int group;
    } copies[MAX_COPIES];  // put off: a ring
    int first_copy = 0, copy_count = 0, copy_groups = 0;
};

// Lanes that meet for one operation. Masks that are in use at the same time share no lane: the lowest lane names them.
struct Meeting {
    const WarpOperation* operation = nullptr;
    unsigned mask = 0, arrived = 0;
    Place place{"", 0};
    unsigned turn = 0;
    char memory_order[2];  // tags
};
struct Warp {
    Lane in[WARP], out[WARP];
    Meeting meetings[WARP];
    unsigned living = 0;  // lanes that have not returned
};

class ReadyQueue {  // of the threads that could go on
  public:
    void clear() { head = count = 0; }
    bool empty() const { return count == 0; }
    void add(CudaThread& thread) { at(count++) = &thread; }
    CudaThread& take(unsigned order, std::mt19937& random) {
        if (order == FIFO) {
            CudaThread& first = *at(0);
            head = (head + 1) % MAX_THREADS;
            --count;
            return first;
        }
        if (order == RANDOM) std::swap(at((int)(random() % (unsigned)count)), at(count - 1));
        return *at(--count);
    }

  private:
    CudaThread* ring[MAX_THREADS];
    int head = 0, count = 0;
    CudaThread*& at(int i) { return ring[(head + i) % MAX_THREADS]; }
};

std::vector<CudaThread> threads;  // kept between launches, for their stacks
std::vector<Warp> warps;
ReadyQueue ready;
CudaThread* current;

struct {  // the launch that runs
    unsigned order;
    bool late_copies;
    void (*body)(void*);
    void* argument;
    int thread_count;
    std::mt19937 random;
    bool failed;
    char message[2048];
} run;

struct {  // volatile: a handler of signals changes it
    volatile bool possible;  // where a thread runs its own code
    volatile bool wanted;
} interruption;

struct {  // the barrier of the block that runs
    int waiting, returned, votes, result;
    Place place{"", 0};
    unsigned turn;
    char memory_order[2], block_begins, block_ends;  // tags
} gate;

// ---- taking turns ---------------------------------------------------------------------------------------------------
void wake(CudaThread& thread) {
    thread.waits_in = nullptr;
    ready.add(thread);
}
// What is between them is not interrupted before its end.
void begin_whole() { interruption.possible = false; }
void end_whole() {
    interruption.possible = true;
    if (interruption.wanted) fail("interrupted");
}
void leave(bool for_good = false) {
    release(&gate.block_ends);  // should the launch end in an error, this is where the thread ends
    begin_whole();
    current->fiber.leave(for_good);
    end_whole();
}
void open_barrier() {
    gate.result = gate.votes;
    gate.waiting = gate.votes = 0;
    ++gate.turn;
    for (int i = 0; i < run.thread_count; ++i)
        if (threads[i].waits_in == BARRIER) wake(threads[i]);
}
// The operation is carried out once all lanes of its mask are there that have not returned.
void meet_if_complete(Warp& warp, CudaThread* first_lane, Meeting& meeting) {
    unsigned lanes = meeting.arrived;
    if (!lanes || lanes != (meeting.mask & warp.living)) return;
    if (meeting.operation->compute) meeting.operation->compute(warp.in, warp.out, lanes);
    meeting.arrived = 0;
    ++meeting.turn;
    for (int lane = 0; lane < WARP; ++lane)
        if (lanes >> lane & 1) wake(first_lane[lane]);
}
void return_from_kernel() {
    if (gate.waiting)
        fail("it has returned, while others wait in __syncthreads at %s:%d; all threads of a block must come to it",
             gate.place.file, gate.place.line);
    ++gate.returned;
    Warp& warp = warps[current->rank / WARP];
    warp.living &= ~(1u << current->lane);
    for (Meeting& meeting : warp.meetings) meet_if_complete(warp, &threads[current->rank - current->lane], meeting);
    current->returned = true;
}
void run_thread() {
    Fiber::entered();
    acquire(&gate.block_begins);
    end_whole();
    run.body(run.argument);
    return_from_kernel();
    leave(true);
}

// ---- a block --------------------------------------------------------------------------------------------------------
// Not memset, which a sanitizer would take for a write of the program.
void poison(char* begin, char* end) {
    typedef uint64_t __attribute__((may_alias)) Word;
    for (; begin < end && (uintptr_t)begin % sizeof(Word); ++begin) *(volatile char*)begin = POISON;
    for (; begin + sizeof(Word) <= end; begin += sizeof(Word)) *(volatile Word*)begin = ~(Word)0;
    for (; begin < end; ++begin) *(volatile char*)begin = POISON;
}
void guard_end_of_shared(size_t bytes) {
#ifdef CUDA_CPU_ASAN
    __asan_unpoison_memory_region(dynamic_shared, sizeof dynamic_shared);
    __asan_poison_memory_region(dynamic_shared + bytes, sizeof dynamic_shared - bytes);
#else
    poison(dynamic_shared + bytes, dynamic_shared + sizeof dynamic_shared);
#endif
}
void check_end_of_shared([[maybe_unused]] size_t bytes) {
#ifndef CUDA_CPU_ASAN
    char all = POISON;
    for (size_t at = bytes; at < sizeof dynamic_shared; ++at) all &= dynamic_shared[at];
    if (all == POISON) return;
    size_t first = bytes;
    while (dynamic_shared[first] == POISON) ++first;
    run.failed = true;
    snprintf(run.message, sizeof run.message,
             "block (%u,%u,%u) wrote past its dynamic shared memory: shared_mem=%zu bytes were given, byte %zu was "
             "written",
             block_index.x, block_index.y, block_index.z, bytes, first);
#endif
}
void start_threads() {
    ready.clear();
    for (Warp& warp : warps) {
        warp.living = 0;
        for (Meeting& meeting : warp.meetings) meeting.arrived = 0;
    }
    for (int rank = 0; rank < run.thread_count; ++rank) {
        CudaThread& thread = threads[rank];
        unsigned r = (unsigned)rank;
        thread.index = {r % block_size.x, r / block_size.x % block_size.y, r / (block_size.x * block_size.y)};
        thread.rank = rank;
        thread.lane = rank % WARP;
        thread.copy_count = thread.copy_groups = 0;
        thread.returned = false;
        thread.fiber.start(run_thread);
        warps[rank / WARP].living |= 1u << thread.lane;
        wake(thread);
    }
}
bool wait_alike(const CudaThread& a, const CudaThread& b) {
    return a.waits_in == b.waits_in && a.place.line == b.place.line && a.place.file == b.place.file;
}
void report_deadlock() {  // as "12 threads (0 ...) wait in __syncwarp at kernel.cu:7, 20 threads (12 ...) wait ..."
    run.failed = true;
    size_t length = (size_t)snprintf(run.message, sizeof run.message, "deadlock in block (%u,%u,%u)", block_index.x,
                                     block_index.y, block_index.z);
    std::vector<bool> told(threads.size());
    for (int rank = 0; rank < run.thread_count && length < sizeof run.message; ++rank) {
        if (told[rank] || threads[rank].returned) continue;
        int count = 0;
        for (int other = rank; other < run.thread_count; ++other)
            if (!threads[other].returned && wait_alike(threads[rank], threads[other])) {
                told[other] = true;
                ++count;
            }
        const Place& place = threads[rank].place;
        length += (size_t)snprintf(run.message + length, sizeof run.message - length,
                                   "%s %d threads (%d ...) wait in %s at %s:%d", rank ? "," : ":", count, rank,
                                   threads[rank].waits_in, place.file, place.line);
    }
}
void run_block() {
    gate.waiting = gate.returned = gate.votes = 0;
    start_threads();
    release(&gate.block_begins);
    while (!run.failed && !ready.empty()) {
        current = &ready.take(run.order, run.random);
        this_thread = current;
        current->fiber.resume();
    }
    acquire(&gate.block_ends);
    if (!run.failed && gate.returned < run.thread_count) report_deadlock();
}

// ---- a grid ---------------------------------------------------------------------------------------------------------
// The numbers below `count` in an order drawn at random, without a list of them: a grid may have 2^63 blocks. A
// Feistel network of four rounds puts the numbers of 2 `half` bits in another order, and is applied again to one that
// is not below `count`.
class Shuffled {
  public:
    explicit Shuffled(uint64_t count) : count(count) {
        while (half < 32 && (count - 1) >> 2 * half) ++half;
        for (uint32_t& key : keys) key = (uint32_t)run.random();
    }
    uint64_t operator[](uint64_t i) const {
        do i = permuted(i);
        while (i >= count);
        return i;
    }

  private:
    uint64_t count;
    unsigned half = 1;
    uint32_t keys[4];
    uint64_t permuted(uint64_t i) const {
        uint64_t mask = (1ull << half) - 1, left = i >> half, right = i & mask;
        for (uint32_t key : keys) {
            uint64_t mixed = (right + key) * 0x9E3779B97F4A7C15;  // 2^64 / golden ratio, as in Fibonacci hashing
            uint64_t next = left ^ (mixed >> (64 - half));
            left = right;
            right = next;
        }
        return left << half | right;
    }
};
void run_grid(const Launch& launch, const Bytes& static_shared) {
    uint64_t x = grid_size.x, y = grid_size.y, count = x * y * grid_size.z;
    Shuffled blocks(count);
    guard_end_of_shared(launch.shared_bytes);
    for (uint64_t turn = 0; turn < count && !run.failed; ++turn) {
        uint64_t i = launch.order == FIFO ? turn : launch.order == LIFO ? count - 1 - turn : blocks[turn];
        block_index = {(unsigned)(i % x), (unsigned)(i / x % y), (unsigned)(i / (x * y))};
        poison(static_shared.begin, static_shared.end);
        poison(dynamic_shared, dynamic_shared + launch.shared_bytes);
        run_block();
        if (!run.failed) check_end_of_shared(launch.shared_bytes);
    }
}

}  // namespace

// ---- what kernels call ----------------------------------------------------------------------------------------------
void fail(const char* format, ...) {
    const Thread& thread = *current;
    char* end = run.message + sizeof run.message;
    char* to = run.message + snprintf(run.message, sizeof run.message, "thread (%u,%u,%u) of block (%u,%u,%u): ",
                                      thread.index.x, thread.index.y, thread.index.z, block_index.x, block_index.y,
                                      block_index.z);
    va_list values;
    va_start(values, format);
    vsnprintf(to, (size_t)(end - to), format, values);
    va_end(values);
    run.failed = true;
    leave(true);
    abort();  // never resumed
}

void interrupt() {
    interruption.wanted = true;
    if (interruption.possible) fail("interrupted");
}

int print(const char* format, ...) {
    begin_whole();  // C's library would keep its lock of stdout
    va_list values;
    va_start(values, format);
    int length = vprintf(format, values);
    va_end(values);
    fflush(stdout);  // seen even where the kernel never ends
    end_whole();
    return length;
}

int barrier(bool vote, Place place) {
    current->place = place;
    if (gate.returned)
        fail("__syncthreads at %s:%d, after another thread of the block has returned; all must come to it", place.file,
             place.line);
    if (!gate.waiting) gate.place = place;
    if (gate.place.line != place.line || strcmp(gate.place.file, place.file) != 0)
        fail("divergent __syncthreads: it is at %s:%d, others wait at %s:%d", place.file, place.line, gate.place.file,
             gate.place.line);
    char* tag = &gate.memory_order[gate.turn % 2];  // in turns, so that a later write is not taken for an earlier one
    release(tag);
    gate.votes += vote;
    current->waits_in = BARRIER;
    if (++gate.waiting == run.thread_count) open_barrier();
    leave();
    acquire(tag);
    return gate.result;
}

void meet_warp(const WarpOperation& operation, unsigned mask, Lane& lane, Place place) {
    CudaThread& thread = *current;
    Warp& warp = warps[thread.rank / WARP];
    thread.place = place;
    if (!(mask >> thread.lane & 1))
        fail("%s at %s:%d: lane %d is not in its own mask %08x", operation.name, place.file, place.line, thread.lane,
             mask);
    if (operation.whole_warp && warp.living != ~0u)
        fail("%s at %s:%d needs all 32 lanes of the warp; those of %08x have returned or never were", operation.name,
             place.file, place.line, ~warp.living);
    Meeting& meeting = warp.meetings[__builtin_ctz(mask)];
    if (!meeting.arrived) {
        meeting.operation = &operation;
        meeting.mask = mask;
        meeting.place = place;
    } else if (meeting.operation != &operation || meeting.mask != mask) {
        fail("divergent warp: lane %d is in %s at %s:%d with mask %08x, others wait in %s at %s:%d with mask %08x",
             thread.lane, operation.name, place.file, place.line, mask, meeting.operation->name, meeting.place.file,
             meeting.place.line, meeting.mask);
    }
    char* tag = &meeting.memory_order[meeting.turn % 2];
    if (operation.orders_memory) release(tag);
    warp.in[thread.lane] = lane;
    meeting.arrived |= 1u << thread.lane;
    thread.waits_in = operation.name;
    meet_if_complete(warp, &threads[thread.rank - thread.lane], meeting);
    leave();
    if (operation.orders_memory) acquire(tag);
    lane = warp.out[thread.lane];
}

bool copies_are_late() { return run.late_copies; }

void put_off(const Copy& copy) {
    CudaThread& thread = *current;
    if (thread.copy_count == MAX_COPIES)
        fail("more than %d cp.async of one thread have not been waited for", MAX_COPIES);
    thread.copies[(thread.first_copy + thread.copy_count++) % MAX_COPIES] = {copy, thread.copy_groups};
}

void commit_copies() { ++current->copy_groups; }

bool next_copy(Copy& copy, int newer_groups) {
    CudaThread& thread = *current;
    const auto& oldest = thread.copies[thread.first_copy];
    if (!thread.copy_count || oldest.group >= thread.copy_groups - newer_groups) return false;
    copy = oldest.copy;
    thread.first_copy = (thread.first_copy + 1) % MAX_COPIES;
    --thread.copy_count;
    return true;
}

int launch(const Launch& launch, Bytes static_shared, void (*body)(void*), void* argument) {
    grid_size = {launch.grid[0], launch.grid[1], launch.grid[2]};
    block_size = {launch.block[0], launch.block[1], launch.block[2]};
    run.order = launch.order;
    run.late_copies = launch.late_copies;
    run.body = body;
    run.argument = argument;
    run.thread_count = (int)(block_size.x * block_size.y * block_size.z);
    run.random.seed(launch.seed);
    run.failed = interruption.possible = interruption.wanted = false;
    run.message[0] = 0;
    if ((int)threads.size() < run.thread_count) threads.resize(run.thread_count);
    warps.resize((run.thread_count + WARP - 1) / WARP);
    {
        SignalsCaught caught;
        run_grid(launch, static_shared);
    }
    if (interruption.wanted) kill(getpid(), SIGINT);  // now for Python, which makes a KeyboardInterrupt of it
    return run.failed;
}

extern "C" const char* cuda_cpu_message() { return run.message; }

}  // namespace cuda_cpu
