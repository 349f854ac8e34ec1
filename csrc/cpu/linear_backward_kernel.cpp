// CPU kernels of `linear_backward`, compiled once per instruction set into namespace PFL_CAPABILITY. Lanes lie across
// results and never along a sum, so that every instruction set and thread count gives the same bits.
#include "linear_tiles.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

constexpr int64_t kDepth = kLinearDepth;
constexpr int64_t kColumns = kLinearColumns;
constexpr int64_t kStrip = kLinearStrip;
constexpr int64_t kGradOutputs = kLinearGradOutputs;
constexpr int64_t kFar = int64_t{8} << 20;  // bytes of weights that do not stay near: asking early for them pays

// Columns of one client's grad_x.
template <class T>
class InputGradient {
 public:
  using A = accumulate_t<T>;
  using L = Lanes<A>;

  InputGradient(const LinearBackward& problem, void* scratch)
      : p_(problem),
        s_(problem.sizes),
        far_(s_.outputs * s_.inputs * static_cast<int64_t>(sizeof(T)) >= kFar),
        sums_(aligned<A>(scratch)),
        panel_(sums_ + s_.rows * kStrip),
        grads_(panel_ + kDepth * kColumns) {
  }

  // [blocks of kDepth outputs, rows, kDepth]
  void read_grads(int64_t client) {
    const T* from = static_cast<const T*>(p_.grad.data) + client * p_.grad.client;
    A* to = grads_;
    for (int64_t n = 0; n < s_.outputs; n += kDepth) {
      for (int64_t r = 0; r < s_.rows; ++r, to += kDepth) {
        copy_row(from + r * p_.grad.row + n, least(kDepth, s_.outputs - n), 0, to);
      }
    }
  }

  // Columns [begin, end) of all rows, end - begin <= kStrip.
  void run(int64_t client, int64_t begin, int64_t end) {
    const T* weights = static_cast<const T*>(p_.weight.data) + client * p_.weight.client;
    for (int64_t i = 0; i < s_.rows * kStrip; ++i) {
      sums_[i] = A(0);
    }
    for (int64_t n = 0; n < s_.outputs; n += kDepth) {
      const int64_t depth = least(kDepth, s_.outputs - n);
      for (int64_t k = begin; k < end; k += kColumns) {
        const T* block = weights + n * p_.weight.row + k;
        const T* next = k + kColumns < end ? block + kColumns : block + kDepth * p_.weight.row - k + begin;
        add_block(block, next, least(kColumns, end - k), grads_ + n * s_.rows, depth, sums_ + k - begin);
      }
    }
    T* out = static_cast<T*>(p_.grad_x) + client * s_.rows * s_.inputs + begin;
    for (int64_t r = 0; r < s_.rows; ++r) {
      narrow(sums_ + r * kStrip, end - begin, out + r * s_.inputs);
    }
  }

 private:
  // Weights are multiplied where they lie: only what must be widened or filled up is copied.
  void add_block(const T* weights, const T* next, int64_t count, const A* grads, int64_t depth, A* sums) {
    const A* right = panel_;
    int64_t pitch = kColumns;
    if constexpr (sizeof(T) == sizeof(A)) {
      if (count == kColumns) {
        right = weights;
        pitch = p_.weight.row;
      }
    }
    for (int64_t i = 0; right == panel_ && i < depth; ++i) {
      copy_row(weights + i * p_.weight.row, count, kColumns, panel_ + i * kColumns);
    }
    for_groups(s_.rows, kRows, [&](int64_t first, int64_t size) {
      if (far_) {
        prefetch(next, first * kDepth / s_.rows, (first + size) * kDepth / s_.rows);
      }
      with_constant(size, [&](auto group) {
        for (int64_t c = 0; c < kColumns; c += kVectors * L::kCount) {
          add_tile<decltype(group)::value>(grads + first * kDepth, right + c, pitch, depth, sums + first * kStrip + c);
        }
      });
    });
  }

  // Asks for rows [begin, end) of the block that comes next; past the last one there is no harm in it.
  void prefetch(const T* weights, int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t c = 0; c < kColumns; c += 64 / static_cast<int64_t>(sizeof(T))) {
        __builtin_prefetch(weights + i * p_.weight.row + c, 0, 2);
      }
    }
  }

  template <int kGroup>
  static void add_tile(const A* grads, const A* right, int64_t pitch, int64_t depth, A* sums) {
    ScaledRows<A, kGroup, kVectors> tile;
    tile.load(sums, kStrip);
    tile.add(grads, kDepth, 1, right, pitch, depth);
    tile.store(sums, kStrip);
  }

  const LinearBackward& p_;
  const LinearSizes& s_;
  bool far_;
  A* sums_;   // [rows, kStrip]
  A* panel_;  // [kDepth, kColumns] of the weights
  A* grads_;
};

template <class T>
void grad_x(const LinearBackward& p, int64_t begin, int64_t end, void* scratch) {
  InputGradient<T> gradient(p, scratch);
  const int64_t blocks = linear_blocks(p.sizes.inputs, kColumns);
  for (int64_t task = begin; task < end;) {
    const int64_t client = task / blocks, first = task % blocks;
    const int64_t count = least(least(kStrip / kColumns, blocks - first), end - task);
    if (task == begin || first == 0) {
      gradient.read_grads(client);
    }
    gradient.run(client, first * kColumns, least((first + count) * kColumns, p.sizes.inputs));
    task += count;
  }
}

// What becomes of a finished piece of the weights' gradient: a vector of it, or fewer columns at the end of a row.
// WeightGradient takes anything that can be called like this.
template <class T>
struct StoreGradient {
  using A = accumulate_t<T>;
  T* to;  // the client's [outputs, inputs]
  int64_t inputs;

  inline __attribute__((always_inline)) void operator()(int64_t output, int64_t column,
                                                        const typename Lanes<A>::Vector& sum) const {
    T* at = to + output * inputs + column;
    if constexpr (sizeof(T) == sizeof(A)) {
      Lanes<A>::store(sum, at);
    } else {
      A values[Lanes<A>::kCount];
      Lanes<A>::store(sum, values);
      narrow(values, Lanes<A>::kCount, at);
    }
  }
  void operator()(int64_t output, int64_t column, int64_t count, const A* sums) const {
    narrow(sums, count, to + output * inputs + column);
  }
};

// Rows of one client's grad_weight, and their sums for grad_bias.
template <class T>
class WeightGradient {
 public:
  using A = accumulate_t<T>;
  using L = Lanes<A>;

  WeightGradient(const LinearBackward& problem, void* scratch)
      : p_(problem), s_(problem.sizes), grads_(aligned<A>(scratch)), x_(grads_ + s_.rows * kGradOutputs) {
  }

  // [blocks of kColumns, rows, kColumns]
  void read_x(int64_t client) {
    const T* from = static_cast<const T*>(p_.x.data) + client * p_.x.client;
    A* to = x_;
    for (int64_t k = 0; k < s_.inputs; k += kColumns) {
      for (int64_t r = 0; r < s_.rows; ++r, to += kColumns) {
        copy_row(from + r * p_.x.row + k, least(kColumns, s_.inputs - k), kColumns, to);
      }
    }
  }

  // [rows, kGradOutputs]
  void read_grads(int64_t client, int64_t first, int64_t count) {
    const T* from = static_cast<const T*>(p_.grad.data) + client * p_.grad.client + first;
    for (int64_t r = 0; r < s_.rows; ++r) {
      copy_row(from + r * p_.grad.row, count, kGradOutputs, grads_ + r * kGradOutputs);
    }
  }

  void sum_rows(T* out, int64_t count) const {
    A sums[kGradOutputs] = {};
    for (int64_t r = 0; r < s_.rows; ++r) {
      for (int64_t o = 0; o < kGradOutputs; ++o) {
        sums[o] = sums[o] + grads_[r * kGradOutputs + o];
      }
    }
    narrow(sums, count, out);
  }

  template <class Finish>
  void run(int64_t first, int64_t count, const Finish& finish) const {
    for_groups(count, kRows, [&](int64_t o, int64_t size) {
      with_constant(size, [&](auto group) {
        for (int64_t k = 0; k < s_.inputs; k += kColumns) {
          add_panel<decltype(group)::value>(first, o, k, finish);
        }
      });
    });
  }

 private:
  static constexpr int64_t kWide = kVectors * L::kCount;

  template <int kGroup, class Finish>
  void add_panel(int64_t first, int64_t o, int64_t k, const Finish& finish) const {
    const A* x = x_ + k * s_.rows;
    for (int64_t c = 0; c < kColumns && k + c < s_.inputs; c += kWide) {
      if (k + c + kWide <= s_.inputs) {
        whole_tile<kGroup>(grads_ + o, x + c, first + o, k + c, finish);
        continue;
      }
      A values[kGroup * kWide];
      tile_at_the_end<kGroup>(grads_ + o, x + c, values);
      for (int r = 0; r < kGroup; ++r) {
        finish(first + o + r, k + c, s_.inputs - k - c, values + r * kWide);
      }
    }
  }

  template <int kGroup, class Finish>
  void whole_tile(const A* grads, const A* x, int64_t output, int64_t column, const Finish& finish) const {
    ScaledRows<A, kGroup, kVectors> tile;
    tile.clear();
    tile.add(grads, 1, kGradOutputs, x, kColumns, s_.rows);
#pragma GCC unroll 32
    for (int i = 0; i < kGroup * kVectors; ++i) {
      finish(output + i / kVectors, column + i % kVectors * L::kCount, tile.sum[i / kVectors][i % kVectors]);
    }
  }

  template <int kGroup>
  void tile_at_the_end(const A* grads, const A* x, A* values) const {
    ScaledRows<A, kGroup, kVectors> tile;
    tile.clear();
    tile.add(grads, 1, kGradOutputs, x, kColumns, s_.rows);
    tile.store(values, kWide);
  }

  const LinearBackward& p_;
  const LinearSizes& s_;
  A *grads_, *x_;
};

template <class T>
void grad_weight(const LinearBackward& p, int64_t begin, int64_t end, void* scratch) {
  const LinearSizes& s = p.sizes;
  WeightGradient<T> gradient(p, scratch);
  const int64_t blocks = linear_blocks(s.outputs, kGradOutputs);
  for (int64_t task = begin; task < end; ++task) {
    const int64_t client = task / blocks, first = task % blocks * kGradOutputs;
    const int64_t count = least(kGradOutputs, s.outputs - first);
    if (p.grad_weight && (task == begin || first == 0)) {
      gradient.read_x(client);
    }
    gradient.read_grads(client, first, count);
    if (p.grad_bias) {
      gradient.sum_rows(static_cast<T*>(p.grad_bias) + client * s.outputs + first, count);
    }
    if (p.grad_weight) {
      T* to = static_cast<T*>(p.grad_weight) + client * s.outputs * s.inputs;
      gradient.run(first, count, StoreGradient<T>{to, s.inputs});
    }
  }
}

}  // namespace

void linear_grad_x(const LinearBackward& p, int64_t begin, int64_t end, void* scratch) {
  with_type(p.sizes.dtype, [&](auto type) { grad_x<decltype(type)>(p, begin, end, scratch); });
}

void linear_grad_weight(const LinearBackward& p, int64_t begin, int64_t end, void* scratch) {
  with_type(p.sizes.dtype, [&](auto type) { grad_weight<decltype(type)>(p, begin, end, scratch); });
}

}  // namespace PFL_CAPABILITY
}  // namespace pfl
