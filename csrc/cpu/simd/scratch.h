// Scratch memory of CPU tasks. In namespace PFL_CAPABILITY for the reason given in cpu/simd/convert.h.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "cpu/capability.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define PFL_CHECKS_SCRATCH
#elif defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
#define PFL_CHECKS_SCRATCH
#endif

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

// One block of memory, handed out in pieces that start at cache lines. Debug and sanitizer builds abort at a request
// beyond its size; AddressSanitizer reports an access outside the requested pieces.
class Scratch {
 public:
  static constexpr int64_t kLine = 64;

  // Without memory: adds up the requests and returns null pointers.
  Scratch() = default;

  Scratch(const char* op, int64_t bytes)
      : op_(op), bytes_(bytes), memory_(static_cast<char*>(operator new(bytes, std::align_val_t{kLine}))) {
#if defined(__SANITIZE_ADDRESS__)
    ASAN_POISON_MEMORY_REGION(memory_, bytes);
#endif
  }

  ~Scratch() {
    if (memory_) {
#if defined(__SANITIZE_ADDRESS__)
      ASAN_UNPOISON_MEMORY_REGION(memory_, bytes_);
#endif
      operator delete(memory_, std::align_val_t{kLine});
    }
  }

  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Uninitialised memory for `count` values.
  template <class A>
  A* take(int64_t count) {
    const int64_t size = count * static_cast<int64_t>(sizeof(A)), begin = taken_;
#if defined(__SANITIZE_ADDRESS__)
    taken_ += (size + kLine) / kLine * kLine;  // at least one byte between pieces stays poisoned
#else
    taken_ += (size + kLine - 1) / kLine * kLine;
#endif
    if (!memory_) {
      return nullptr;
    }
#if defined(PFL_CHECKS_SCRATCH)
    if (taken_ > bytes_) {
      std::fprintf(stderr, "pfl_fast::%s: scratch memory: requested %lld bytes, available %lld of %lld\n", op_,
                   static_cast<long long>(size), static_cast<long long>(bytes_ - begin),
                   static_cast<long long>(bytes_));
      std::abort();
    }
#endif
#if defined(__SANITIZE_ADDRESS__)
    ASAN_UNPOISON_MEMORY_REGION(memory_ + begin, size);
#endif
    return reinterpret_cast<A*>(memory_ + begin);
  }

  // Memory for `count` values, filled with zeros.
  template <class A>
  A* take_zeros(int64_t count) {
    A* const values = take<A>(count);
    if (values) {
      std::memset(values, 0, static_cast<size_t>(count) * sizeof(A));
    }
    return values;
  }

  int64_t taken() const {
    return taken_;
  }

 private:
  const char* op_ = "";
  int64_t bytes_ = 0, taken_ = 0;
  char* memory_ = nullptr;
};

// A `Work` whose constructor takes its scratch memory from the last argument. It is constructed twice, the first time
// to add up its requests.
template <class Work>
class WithScratch {
 public:
  template <class... Arguments>
  explicit WithScratch(const char* op, const Arguments&... arguments)
      : scratch_(op, requested(arguments...)), work_(arguments..., scratch_) {
  }

  Work* operator->() {
    return &work_;
  }

 private:
  template <class... Arguments>
  static int64_t requested(const Arguments&... arguments) {
    Scratch sizes;
    Work(arguments..., sizes);
    return sizes.taken();
  }

  Scratch scratch_;
  Work work_;
};

}  // namespace
}  // namespace PFL_CAPABILITY
}  // namespace pfl
