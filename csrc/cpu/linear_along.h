// `linear` with lanes along the inputs of a row, for few rows: weights are read in place, only x is packed.
#pragma once

#include "linear_tiles.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

// Dot products of one client's rows with the weights of a block of outputs.
template <class T>
class LanesAlongInputs {
 public:
  using A = accumulate_t<T>;
  using L = Lanes<A>;

  LanesAlongInputs(const Linear& problem, void* scratch)
      : p_(problem),
        s_(problem.sizes),
        whole_inputs_(s_.inputs / L::kStep * L::kStep),
        padded_inputs_(linear_round_up(s_.inputs, L::kStep)),
        sums_(aligned<A>(scratch)),
        x_(sums_ + s_.rows * kLinearDotOutputs * L::kStep) {
  }

  // Packs x by groups of rows, each group as [steps, rows of the group, kStep], zero-padded.
  void read_x(int64_t client) {
    const T* from = static_cast<const T*>(p_.x.data) + client * p_.x.client;
    for_groups(s_.rows, kDotRows, [&](int64_t first, int64_t size) {
      for (int64_t r = 0; r < size; ++r) {
        A* to = x_ + first * padded_inputs_ + r * L::kStep;
        const T* row = from + (first + r) * p_.x.row;
        for (int64_t k = 0; k < s_.inputs; k += L::kStep, to += size * L::kStep) {
          copy_row(row + k, min(L::kStep, s_.inputs - k), L::kStep, to);
        }
      }
    });
  }

  void run(int64_t client, int64_t first) {
    const int64_t end = min(first + kLinearOutputs, s_.outputs);
    for (int64_t o = first; o < end; o += kLinearDotOutputs) {
      run_few(client, o, min(kLinearDotOutputs, end - o));
    }
  }

 private:
  static constexpr int64_t kDepth = 1024;  // inputs per block: the packed x of a block stays in cache

  void run_few(int64_t client, int64_t first, int64_t count) {
    const int64_t pitch = p_.weight.row;
    const T* weights = static_cast<const T*>(p_.weight.data) + client * p_.weight.client + first * pitch;
    if (s_.inputs == 0) {
      std::memset(sums_, 0, static_cast<size_t>(x_ - sums_) * sizeof(A));
    }
    for (int64_t begin = 0; begin < whole_inputs_; begin += kDepth) {
      add_block(weights + begin, pitch, count, begin, min(kDepth, whole_inputs_ - begin));
    }
    if (whole_inputs_ < s_.inputs) {
      add_last_step(weights + whole_inputs_, count);
    }
    finish(client, first, count);
  }

  // Accumulates `depth` inputs from `begin` on, a multiple of kStep, for all rows and `count` outputs.
  void add_block(const T* weights, int64_t pitch, int64_t count, int64_t begin, int64_t depth) {
    constexpr bool kNarrow = sizeof(T) < sizeof(A);
    A wide[kNarrow ? kLinearDotOutputs * kDepth : 1];
    const A* row[kLinearDotOutputs];
    for (int64_t o = 0; o < count; ++o) {
      row[o] = widen(weights + o * pitch, depth, kNarrow ? wide + o * kDepth : wide);
    }
    for (int64_t o = 0; o < count; o += kDotOutputs) {
      for_groups(s_.rows, kDotRows, [&](int64_t first, int64_t size) {
        const A* x = x_ + first * padded_inputs_ + begin * size;
        A* sums = sums_ + (first * kLinearDotOutputs + o) * L::kStep;
        const int64_t prefetch_distance = first == 0 ? kDotOutputs * pitch : 0;
        add_dots_of_group(x, row + o, min(kDotOutputs, count - o), size, depth / L::kStep, begin == 0, sums,
                          prefetch_distance);
      });
    }
  }

  // Accumulates the inputs after the last whole step, zero-padded.
  void add_last_step(const T* weights, int64_t count) {
    T last[kLinearDotOutputs * L::kStep];
    std::memset(last, 0, sizeof last);
    for (int64_t o = 0; o < count; ++o) {
      const size_t bytes = static_cast<size_t>(s_.inputs - whole_inputs_) * sizeof(T);
      std::memcpy(last + o * L::kStep, weights + o * p_.weight.row, bytes);
    }
    add_block(last, L::kStep, count, whole_inputs_, L::kStep);
  }

  static void add_dots_of_group(const A* x, const A* const* row, int64_t outputs, int64_t size, int64_t steps,
                                bool first, A* sums, int64_t prefetch_distance) {
    with_constant(size, [&](auto group) {
      constexpr int kGroup = decltype(group)::value;
      if constexpr (kGroup <= kDotRows) {
        if (outputs == kDotOutputs) {
          return add_dots<A, kGroup, kDotOutputs>(x, row, steps, first, sums, prefetch_distance);
        }
        for (int64_t o = 0; o < outputs; ++o) {
          add_dots<A, kGroup, 1>(x, row + o, steps, first, sums + o * L::kStep, 0);
        }
      }
    });
  }

  void finish(int64_t client, int64_t first, int64_t count) {
    A bias[kLinearDotOutputs], total[kLinearDotOutputs];
    const T* from = static_cast<const T*>(p_.bias.data);
    copy_row(from ? from + client * p_.bias.client + first : from, from ? count : 0, kLinearDotOutputs, bias);
    T* out = static_cast<T*>(p_.out) + client * s_.rows * s_.outputs + first;
    for (int64_t r = 0; r < s_.rows; ++r) {
      const A* sums = sums_ + r * kLinearDotOutputs * L::kStep;
      for (int64_t o = 0; o < count; o += L::kCount) {
        L::store(add_up_lanes<A, L::kCount>(sums + o * L::kStep) + L::load(bias + o), total + o);
      }
      narrow(total, count, out + r * s_.outputs);
    }
  }

  const Linear& p_;
  const LinearSizes& s_;
  int64_t whole_inputs_, padded_inputs_;  // inputs rounded down and up to a multiple of kStep
  A* sums_;                               // [rows, kLinearDotOutputs, kStep]
  A* x_;
};

}  // namespace
}  // namespace PFL_CAPABILITY
}  // namespace pfl
