// Runtime of emulation/cuda.h: fibers, barriers, warps, shared memory and the thread schedule.
//
// One operating-system thread runs one fiber at a time. It switches only where CUDA threads may wait for each other, in
// an order drawn from a seed. ThreadSanitizer sees every fiber as a separate thread, ordered by barriers only, so it
// finds a race under any schedule. This file itself is compiled without ThreadSanitizer.
#include "emulation/cuda.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "emulation/fiber.h"

namespace emulation {

#ifdef PFL_WITH_METER
void end_of_block();
void end_of_launch();
#else
inline void end_of_block() {
}
inline void end_of_launch() {
}
#endif

namespace {

constexpr int kWarp = 32;

enum class Wait { kNothing, kBarrier, kWarp, kDone };

struct Thread {
  Fiber* fiber;
  Position position;
  int index;
  Wait waits = Wait::kNothing;
  unsigned mask = 0;  // lanes of the warp operation it waits for
};

struct Warp {
  uint64_t sent[kWarp];
  uint64_t received[kWarp];
  unsigned participants[kWarp];  // lanes that took part in the last exchange of each lane
  unsigned arrived = 0;
};

// Happens-before edge of a barrier for ThreadSanitizer. Sides alternate, so the next arrival of a fast thread does not
// order the earlier accesses of a slow one; each block has its own gates, so blocks stay unordered.
struct Gate {
  char sides[2];
  int side = 0;
};

// Fixed size: a container that grows inside a fiber would look like a race between the kernel's threads.
constexpr int kMaxShared = 16;
struct Shared {
  const void* key;
  void* memory;
};

struct State {
  // Set by the test.
  uint64_t seed = 0;
  unsigned grid_limit = 65535;  // of the y and z dimensions

  dim3 grid, block;
  const std::function<void()>* body = nullptr;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<std::unique_ptr<Gate[]>> gates;  // per block: one for the block and one per warp
  char start = 0, finish = 0;
  int current = -1;
  int at_barrier = 0;
  int done = 0;
  Shared shared[kMaxShared];
  int shared_count = 0;
  std::vector<void*> retired_shared;  // shared memory of finished blocks, freed after the launch
  size_t dynamic_bytes = 0;
  std::mt19937_64 random;
  cudaError_t error = cudaSuccess;
  std::string message;
  std::vector<std::unique_ptr<Fiber>> pools[2];
};

State& state() {
  static State* const one = new State;  // never destroyed, because fibers may outlive static objects
  return *one;
}

Thread& current() {
  return state().threads[state().current];
}

[[noreturn]] void abort_outside_kernel() {
  std::abort();  // host code called a device function
}

// Memory with all bits set: NaN in every floating type.
void* poisoned(size_t bytes) {
  void* memory = std::malloc(bytes ? bytes : 1);
  std::memset(memory, 0xff, bytes);
  return memory;
}

// Body of a fiber: one CUDA thread.
void run_thread(void*) {
  State& s = state();
  order_after(&s.start);
  (*s.body)();
  order_before(&s.finish);
  current().waits = Wait::kDone;
  ++s.done;
}

bool runnable(const Thread& thread) {
  return thread.waits == Wait::kNothing;
}

// Chooses the next thread. Seed 0: in order. Odd seeds: a random runnable thread. Even seeds: mostly the last thread
// until it blocks, which finds hazards that need one thread far ahead of the others.
int choose(int last) {
  State& s = state();
  const bool depth_first = s.seed % 2 == 0;
  if (s.seed > 0 && depth_first && last >= 0 && runnable(s.threads[last]) && s.random() % 4 != 0) {
    return last;
  }
  const int count = static_cast<int>(s.threads.size());
  const int start = s.seed == 0 ? 0 : static_cast<int>(s.random() % count);
  for (int i = 0; i < count; ++i) {
    if (runnable(s.threads[(start + i) % count])) {
      return (start + i) % count;
    }
  }
  return -1;
}

void fail(const std::string& message) {
  state().error = cudaErrorLaunchFailure;
  state().message = message;
}

std::string describe_waiting() {
  int waiting[4] = {};
  for (const Thread& thread : state().threads) {
    ++waiting[static_cast<int>(thread.waits)];
  }
  return "threads wait for each other forever: " + std::to_string(waiting[static_cast<int>(Wait::kBarrier)]) +
         " at __syncthreads, " + std::to_string(waiting[static_cast<int>(Wait::kWarp)]) + " in a warp operation, " +
         std::to_string(waiting[static_cast<int>(Wait::kDone)]) + " have returned";
}

void prepare_block(unsigned block_index, unsigned pool_index) {
  State& s = state();
  const unsigned count = s.block.x * s.block.y * s.block.z;
  auto& pool = s.pools[pool_index];
  while (pool.size() < count) {
    pool.push_back(std::make_unique<Fiber>());
  }
  const dim3 block(block_index % s.grid.x, block_index / s.grid.x % s.grid.y, block_index / s.grid.x / s.grid.y);
  s.threads.clear();
  for (unsigned i = 0; i < count; ++i) {
    const dim3 thread(i % s.block.x, i / s.block.x % s.block.y, i / s.block.x / s.block.y);
    pool[i]->start(&run_thread);
    s.threads.push_back({pool[i].get(), {thread, block}, static_cast<int>(i)});
  }
  s.warps.assign((count + kWarp - 1) / kWarp, Warp{});
  s.gates.push_back(std::make_unique<Gate[]>(1 + s.warps.size()));
  s.at_barrier = s.done = 0;
  s.shared_count = 0;
}

void run_block() {
  State& s = state();
  const int count = static_cast<int>(s.threads.size());
  int last = -1;
  while (s.done < count) {
    s.current = choose(last);
    if (s.current < 0) {
      fail(describe_waiting());
      break;
    }
    last = s.current;
    s.threads[s.current].fiber->resume();
  }
  s.current = -1;
  for (int i = 0; i < s.shared_count; ++i) {
    s.retired_shared.push_back(s.shared[i].memory);
  }
}

unsigned existing_lanes(unsigned mask) {
  State& s = state();
  const int first = current().index / kWarp * kWarp;
  unsigned existing = 0;
  for (int lane = 0; lane < kWarp && first + lane < static_cast<int>(s.threads.size()); ++lane) {
    existing |= s.threads[first + lane].waits != Wait::kDone ? 1u << lane : 0u;
  }
  return mask & existing;
}

}  // namespace

Position position() {
  if (state().current < 0) {
    abort_outside_kernel();
  }
  return current().position;
}
dim3 block_dim() {
  return state().block;
}
dim3 grid_dim() {
  return state().grid;
}
int lane() {
  return current().index % kWarp;
}

void launch(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& body) {
  State& s = state();
  s.error = cudaSuccess;
  s.message.clear();
  const unsigned threads = block.x * block.y * block.z;
  if (threads == 0 || threads > 1024 || grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > s.grid_limit ||
      grid.z > s.grid_limit) {
    s.error = cudaErrorInvalidValue;
    s.message = "a launch needs 1 to 1024 threads and a grid of at least one block, y and z at most " +
                std::to_string(s.grid_limit);
    return;
  }
  s.grid = grid;
  s.block = block;
  s.body = &body;
  s.dynamic_bytes = shared_bytes;
  s.random.seed(s.seed);
  std::vector<unsigned> order(size_t{grid.x} * grid.y * grid.z);
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = static_cast<unsigned>(i);
  }
  if (s.seed > 0) {
    std::shuffle(order.begin(), order.end(), s.random);
  }
  order_before(&s.start);
  for (size_t i = 0; i < order.size() && s.error == cudaSuccess; ++i) {
    prepare_block(order[i], i % 2);  // ThreadSanitizer sees consecutive blocks as different threads
    run_block();
    end_of_block();
  }
  end_of_launch();
  order_after(&s.finish);
  for (void* memory : s.retired_shared) {
    std::free(memory);
  }
  s.retired_shared.clear();
  s.gates.clear();
  if (s.error != cudaSuccess) {
    s.pools[0].clear();  // discards fibers that are blocked inside the kernel
    s.pools[1].clear();
  }
}

cudaError_t last_error() {
  return state().error;
}

void barrier() {
  State& s = state();
  Thread& self = current();
  Gate& gate = s.gates.back()[0];
  void* const side = &gate.sides[gate.side];
  order_before(side);
  self.waits = Wait::kBarrier;
  if (++s.at_barrier == static_cast<int>(s.threads.size())) {
    s.at_barrier = 0;
    gate.side ^= 1;
    for (Thread& thread : s.threads) {
      thread.waits = Wait::kNothing;
    }
  }
  self.fiber->suspend();
  order_after(side);
}

void exchange(unsigned mask, uint64_t word) {
  State& s = state();
  Thread& self = current();
  Warp& warp = s.warps[self.index / kWarp];
  const int first = self.index / kWarp * kWarp;
  warp.sent[lane()] = word;
  warp.arrived |= 1u << lane();
  self.waits = Wait::kWarp;
  self.mask = mask;
  const unsigned expected = existing_lanes(mask);
  if ((warp.arrived & expected) == expected) {
    for (int other = 0; other < kWarp; ++other) {
      if (expected >> other & 1) {
        warp.received[other] = warp.sent[other];
        warp.participants[other] = expected;
        s.threads[first + other].waits = Wait::kNothing;
      }
    }
    warp.arrived &= ~expected;
  }
  self.fiber->suspend();
}

uint64_t exchanged(int source) {
  const Warp& warp = state().warps[current().index / kWarp];
  // Reading a lane outside the mask or past the block returns poison, which reveals the error.
  return warp.participants[lane()] >> source & 1 ? warp.received[source] : std::numeric_limits<uint64_t>::max();
}

unsigned lanes_with(unsigned mask, bool predicate) {
  exchange(mask, predicate);
  unsigned result = 0;
  const Warp& warp = state().warps[current().index / kWarp];
  for (int other = 0; other < kWarp; ++other) {
    result |= (warp.participants[lane()] >> other & 1) && warp.received[other] ? 1u << other : 0u;
  }
  return result;
}

void warp_barrier(unsigned mask) {
  Gate& gate = state().gates.back()[1 + current().index / kWarp];
  void* const side = &gate.sides[gate.side];
  order_before(side);
  exchange(mask, 0);
  order_after(side);
  if (lane() == __builtin_ctz(state().warps[current().index / kWarp].participants[lane()])) {
    gate.side ^= 1;
  }
}

void preempt() {
  State& s = state();
  if (s.seed > 0 && s.random() % 2 == 0) {
    current().fiber->suspend();
  }
}

void* shared(const void* key, size_t bytes) {
  State& s = state();
  int i = 0;
  while (i < s.shared_count && s.shared[i].key != key) {
    ++i;
  }
  if (i == kMaxShared) {
    std::abort();
  }
  if (i == s.shared_count) {
    s.shared[s.shared_count++] = {key, poisoned(bytes)};
    order_before(s.shared[i].memory);
  }
  order_after(s.shared[i].memory);
  return s.shared[i].memory;
}

void* dynamic_shared() {
  return shared(nullptr, state().dynamic_bytes);
}

}  // namespace emulation

// Functions that tests call in addition to the launchers.
extern "C" {
void pfl_emulation_schedule(uint64_t seed) {
  emulation::state().seed = seed;
}
// Lowers the limit of the y and z dimensions of a grid, 65,535 on hardware, to test kernels with small tensors.
void pfl_emulation_limit_grid(unsigned limit) {
  emulation::state().grid_limit = limit;
}
const char* pfl_emulation_message() {
  return emulation::state().message.c_str();
}
}
