// Threads that share the work of a call, piece by piece.
//
// A call is stages, one behind the other, which all threads walk through in the same order. A stage's
// items are dealt out in one run of neighbours for each thread, and who is through with its own takes
// from the others'. So a thread that the system holds up costs the item that it is at, and nobody
// waits for it to come back but at the end of the call.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <omp.h>
#include <sched.h>

// On a line of its own, so that counting in one disturbs nobody at another.
struct alignas(64) Counter {
    std::atomic<int64_t> value{0};
};

// Zeroed counters of the calling thread, for one call.
inline Counter* take_counters(long count) {
    thread_local std::unique_ptr<Counter[]> counters;
    thread_local long size = 0;
    if (size < count) {
        counters.reset(new Counter[count]);
        size = count;
    }
    for (long i = 0; i < count; i++) counters[i].value.store(0, std::memory_order_relaxed);
    return counters.get();
}

// One thread's view of a call.
class Team {
  public:
    // A team of one.
    Team() : num_threads(1), thread(0), counters(nullptr) {}

    Team(long num_threads, long thread, Counter* counters)
        : num_threads(num_threads), thread(thread), counters(counters) {}

    long count_threads() const { return num_threads; }

    // A stage: calls `act` once for every item, in any of the threads, and returns when all are done.
    template <typename Act> void share(long num_items, Act&& act) {
        if (num_threads == 1) {
            for (long item = 0; item < num_items; item++) act(item);
            return;
        }
        Counter *taken = counters, *done = counters + num_threads;
        counters += num_threads + 1;
        long num_done = 0;
        for (long i = 0; i < num_threads; i++) {
            long run = (thread + i) % num_threads;
            long first = num_items * run / num_threads, end = num_items * (run + 1) / num_threads;
            if (first + taken[run].value.load(std::memory_order_relaxed) >= end) continue;
            for (long item = first + take(taken[run]); item < end; item = first + take(taken[run])) {
                act(item);
                num_done++;
            }
        }
        done->value.fetch_add(num_done, std::memory_order_release);
        for (long turn = 0; done->value.load(std::memory_order_acquire) < num_items; turn++)
            turn % TURNS == TURNS - 1 ? (void)sched_yield() : __builtin_ia32_pause();
    }

  private:
    static constexpr long TURNS = 1000; // some tens of microseconds

    static long take(Counter& counter) {
        return counter.value.fetch_add(1, std::memory_order_relaxed);
    }

    long num_threads, thread;
    Counter* counters; // of the next stage: what was taken from each run, and how many items are done
};

// Calls `body` with a team in each of so many threads; it has at most `num_stages`.
template <typename Body> void run_team(long num_threads, long num_stages, Body&& body) {
    if (num_threads <= 1) {
        Team alone;
        body(alone);
        return;
    }
    Counter* counters = take_counters(num_stages * (num_threads + 1));
#pragma omp parallel num_threads(num_threads)
    {
        Team team(omp_get_num_threads(), omp_get_thread_num(), counters);
        body(team);
    }
}
