// Measures the memory traffic of emulated kernels. Kernels are compiled with -fsanitize=thread, which calls a hook for
// every access. This file implements the hooks instead of ThreadSanitizer and counts 32-byte sectors of the tensors.
//
// A sector counts once per block for reads and once for writes: the traffic to L2 if no block fetches a sector twice.
// The minimum counts each sector once per launch.
#include <cstddef>
#include <cstdint>
#include <unordered_set>
#include <vector>

namespace {

constexpr uintptr_t kSector = 32;

struct Range {
  uintptr_t begin, end;
};

struct Meter {
  std::vector<Range> tensors;
  std::unordered_set<uintptr_t> block[2], launch[2];  // sectors read, sectors written
  uint64_t per_block = 0, per_launch = 0;             // bytes
};

Meter& meter() {
  static Meter* const one = new Meter;
  return *one;
}

void touch(const void* address, size_t bytes, int writes) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(address);
  Meter& m = meter();
  for (const Range& tensor : m.tensors) {
    if (begin >= tensor.begin && begin < tensor.end) {
      for (uintptr_t sector = begin / kSector; sector <= (begin + bytes - 1) / kSector; ++sector) {
        m.block[writes].insert(sector);
      }
      return;
    }
  }
}

}  // namespace

namespace emulation {

void end_of_block() {
  Meter& m = meter();
  for (int writes = 0; writes < 2; ++writes) {
    m.per_block += m.block[writes].size() * kSector;
    m.launch[writes].insert(m.block[writes].begin(), m.block[writes].end());
    m.block[writes].clear();
  }
}

void end_of_launch() {
  Meter& m = meter();
  for (int writes = 0; writes < 2; ++writes) {
    m.per_launch += m.launch[writes].size() * kSector;
    m.launch[writes].clear();
  }
}

}  // namespace emulation

extern "C" {
void pfl_meter_reset() {
  meter() = Meter{};
}
void pfl_meter_watch(const void* begin, uint64_t bytes) {
  const uintptr_t start = reinterpret_cast<uintptr_t>(begin);
  meter().tensors.push_back({start, start + bytes});
}
uint64_t pfl_meter_bytes() {
  return meter().per_block;
}
uint64_t pfl_meter_min_bytes() {
  return meter().per_launch;
}

void __tsan_init() {
}
void __tsan_func_entry(void*) {
}
void __tsan_func_exit() {
}
void __tsan_vptr_update(void**, void*) {
}
void __tsan_vptr_read(void**) {
}

#define PFL_METER(bytes)                                   \
  void __tsan_read##bytes(void* address) {                 \
    touch(address, bytes, 0);                              \
  }                                                        \
  void __tsan_write##bytes(void* address) {                \
    touch(address, bytes, 1);                              \
  }                                                        \
  void __tsan_unaligned_read##bytes(const void* address) { \
    touch(address, bytes, 0);                              \
  }                                                        \
  void __tsan_unaligned_write##bytes(void* address) {      \
    touch(address, bytes, 1);                              \
  }
PFL_METER(1)
PFL_METER(2)
PFL_METER(4)
PFL_METER(8)
PFL_METER(16)
#undef PFL_METER

void __tsan_read_range(void* address, uint64_t bytes) {
  touch(address, bytes, 0);
}
void __tsan_write_range(void* address, uint64_t bytes) {
  touch(address, bytes, 1);
}

// Atomics of the emulation. Only one thread runs at a time, so plain accesses suffice; they count as writes.
int32_t __tsan_atomic32_fetch_add(volatile int32_t* address, int32_t value, int) {
  const int32_t before = *address;
  touch(const_cast<int32_t*>(address), sizeof value, 1);
  *address = before + value;
  return before;
}
int64_t __tsan_atomic64_fetch_add(volatile int64_t* address, int64_t value, int) {
  const int64_t before = *address;
  touch(const_cast<int64_t*>(address), sizeof value, 1);
  *address = before + value;
  return before;
}
}
