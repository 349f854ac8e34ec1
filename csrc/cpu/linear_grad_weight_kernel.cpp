// CPU kernels of `linear_backward`'s grad_weight and grad_bias and of `linear_step_`, compiled once per instruction set
// into namespace PFL_CAPABILITY. Lanes lie across results and never along a sum, as in linear_grad_x_kernel.cpp.
#include "linear_tiles.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

constexpr int64_t kColumns = kLinearColumns;
constexpr int64_t kOutputs = kLinearOutputs;

// What becomes of a finished piece of the weights' gradient: a vector of it, or fewer columns at the end of a row; or
// of a whole row that is zero. WeightGradient takes anything that can be called like this.
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
  void zeros(int64_t output) const {
    std::memset(static_cast<void*>(to + output * inputs), 0, static_cast<size_t>(inputs) * sizeof(T));
  }
  template <int64_t kCount>
  void expect(int64_t, int64_t) const {
  }
};

// A step of SGD without momentum.
template <class T>
struct StepWeights {
  using A = accumulate_t<T>;
  using L = Lanes<A>;
  const T* from;  // the client's [outputs, inputs]
  T* to;
  int64_t from_row, to_row, inputs;
  A minus_lr, decay;
  bool away;

  inline __attribute__((always_inline)) void operator()(int64_t output, int64_t column,
                                                        const typename L::Vector& sum) const {
#if defined(__FMA__)
    if constexpr (sizeof(T) == sizeof(A)) {
      const typename L::Vector old = L::load(from + output * from_row + column);
      const typename L::Vector gradient = decay != 0 ? fused(typename L::Vector{} + decay, old, sum) : sum;
      return L::store(fused(typename L::Vector{} + minus_lr, gradient, old), to + output * to_row + column);
    }
#endif
    A values[L::kCount];
    L::store(sum, values);
    (*this)(output, column, L::kCount, values);
  }
  void operator()(int64_t output, int64_t column, int64_t count, const A* sums) const {
    A buffer[kVectors * L::kCount], result[kVectors * L::kCount];
    const A* old = widen(from + output * from_row + column, count, buffer);
    for (int64_t j = 0; j < count; ++j) {
      result[j] = fused(minus_lr, decay != 0 ? fused(decay, old[j], sums[j]) : sums[j], old[j]);
    }
    narrow(result, count, to + output * to_row + column);
  }
  void zeros(int64_t output) const {
    if (decay != 0) {
      const A nothing[kVectors * L::kCount] = {};
      for (int64_t k = 0; k < inputs; k += kVectors * L::kCount) {
        (*this)(output, k, least(kVectors * L::kCount, inputs - k), nothing);
      }
    } else if (from != to) {
      std::memcpy(static_cast<void*>(to + output * to_row), from + output * from_row,
                  static_cast<size_t>(inputs) * sizeof(T));
    }
  }
  // Some columns of a row will be asked for soon.
  template <int64_t kCount>
  void expect(int64_t output, int64_t column) const {
    if (away) {
      prefetch_row<kCount>(from + output * from_row + column);
    }
  }
};

// Rows of one client's grad_weight, and their sums for grad_bias. There are two ways to the same sums:
//   by groups of outputs, of the rows of the batch in which any of them has a gradient, with lanes across columns
//   by columns of x, of the rows in which they are not zero, with lanes across outputs: where most of x is zero, as
//   behind a ReLU
template <class T>
class WeightGradient {
 public:
  using A = accumulate_t<T>;
  using L = Lanes<A>;

  WeightGradient(const LinearSizes& sizes, const LinearRows& grad, const LinearRows& x, void* scratch)
      : s_(sizes),
        grad_(grad),
        given_(x),
        grads_(aligned<A>(scratch)),
        group_(grads_ + s_.rows * kOutputs),
        turned_(group_ + linear_round_up(s_.rows * kRows, kLinearLine)),
        x_(turned_ + kTurned * kOutputs),
        rows_(reinterpret_cast<int32_t*>(x_ + s_.rows * linear_round_up(s_.inputs, kColumns))),
        begin_(rows_ + s_.rows) {
  }

  void read_x(int64_t client) {
    const T* from = static_cast<const T*>(given_.data) + client * given_.client;
    by_columns_ = goes_by_columns(client);
    for (int64_t k = 0; k < s_.inputs; k += kColumns) {
      const int64_t count = least(kColumns, s_.inputs - k);
      A* panel = by_columns_ ? grads_ : x_ + k * s_.rows;  // gradients are read later
      for (int64_t r = 0; r < s_.rows; ++r) {
        copy_row(from + r * given_.row + k, count, kColumns, panel + r * kColumns);
      }
      if (by_columns_) {
        list_columns(panel, k, count);
      }
    }
  }

  // [rows, kOutputs]
  void read_grads(int64_t client, int64_t first, int64_t count) {
    const T* from = static_cast<const T*>(grad_.data) + client * grad_.client + first;
    for (int64_t r = 0; r < s_.rows; ++r) {
      copy_row(from + r * grad_.row, count, kOutputs, grads_ + r * kOutputs);
    }
  }

  void sum_rows(T* out, int64_t count) const {
    A sums[kOutputs] = {};
    for (int64_t r = 0; r < s_.rows; ++r) {
      for (int64_t o = 0; o < kOutputs; ++o) {
        sums[o] = sums[o] + grads_[r * kOutputs + o];
      }
    }
    narrow(sums, count, out);
  }

  // The block of outputs whose gradients were read. Those that are zero in all rows have a gradient of zeros.
  template <class Finish>
  void run(int64_t first, int64_t count, const Finish& finish) {
    if (by_columns_) {
      return run_columns(first, count, finish);
    }
    int64_t terms = 0;
    const int64_t used = keep_used(first, count, finish, terms);
    for_groups(used, terms * 2 < used * s_.rows ? kFewRows : kRows, [&](int64_t o, int64_t size) {
      const int64_t rows = list_rows(o, size);
      with_constant(size, [&](auto group) {
        for (int64_t k = 0; k < s_.inputs; k += kColumns) {
          expect_next(o, size, k, finish);
          if (rows == s_.rows) {  // counting is a little faster than reading a list
            add_panel<decltype(group)::value>(o, k, rows, Every{kColumns}, finish);
          } else {
            add_panel<decltype(group)::value>(o, k, rows, Listed{rows_, 0, kColumns}, finish);
          }
        }
      });
    });
  }

 private:
  static constexpr int64_t kWide = kVectors * L::kCount;
  static constexpr int64_t kTurned = kLinearTurned;
  // Vectors of a column's tile.
  static constexpr int kTall = kOutputs / L::kCount < 12 ? kOutputs / L::kCount : 12;

  // Moves the columns of grads_ that are not all zero to its front, and returns how many they are. Adds to `terms` how
  // many values are not zero.
  template <class Finish>
  int64_t keep_used(int64_t first, int64_t count, const Finish& finish, int64_t& terms) {
    int32_t used[kOutputs] = {};
    for (int64_t r = 0; r < s_.rows; ++r) {
      for (int64_t o = 0; o < kOutputs; ++o) {
        used[o] += grads_[r * kOutputs + o] != A(0);
      }
    }
    int64_t found = 0;
    for (int64_t o = 0; o < count; ++o) {
      terms += used[o];
      if (!used[o]) {
        finish.zeros(first + o);
        continue;
      }
      for (int64_t r = 0; found < o && r < s_.rows; ++r) {
        grads_[r * kOutputs + found] = grads_[r * kOutputs + o];
      }
      output_[found++] = first + o;
    }
    // Behind the last one is what will be asked for next.
    for (int64_t o = found; o < kOutputs; ++o) {
      output_[o] = first + count;
    }
    return found;
  }

  // The rows in which not all of a group of outputs have a gradient of zero, and those gradients [rows, outputs of the
  // group]. Returns how many rows they are.
  int64_t list_rows(int64_t o, int64_t size) {
    int64_t found = 0;
    for (int64_t r = 0; r < s_.rows; ++r) {
      int32_t used = 0;
      for (int64_t i = 0; i < size; ++i) {
        const A value = grads_[r * kOutputs + o + i];
        group_[found * size + i] = value;
        used |= value != A(0);
      }
      rows_[found] = static_cast<int32_t>(r);
      found += used;
    }
    return found;
  }

  // Asks for the panel after the next one, of this group of outputs or of the one that follows.
  template <class Finish>
  void expect_next(int64_t o, int64_t size, int64_t k, const Finish& finish) const {
    const int64_t ahead = k + 2 * kColumns, row = linear_round_up(s_.inputs, kColumns);
    for (int64_t r = 0; r < size; ++r) {
      const int64_t next = ahead < row ? o + r : least(o + size + r, kOutputs - 1);
      finish.template expect<kColumns>(output_[next], ahead < row ? ahead : ahead - row);
    }
  }

  // Columns from k on of kGroup outputs.
  template <int kGroup, class RowAt, class Finish>
  void add_panel(int64_t o, int64_t k, int64_t rows, RowAt row_at, const Finish& finish) const {
    const A* x = x_ + k * s_.rows;
    for (int64_t c = 0; c < kColumns && k + c < s_.inputs; c += kWide) {
      ScaledRows<A, kGroup, kVectors> tile;
      tile.clear();
      tile.add(group_, 1, Every{kGroup}, x + c, row_at, rows);
      if (k + c + kWide <= s_.inputs) {
#pragma GCC unroll 32
        for (int i = 0; i < kGroup * kVectors; ++i) {
          const int r = i / kVectors, v = i % kVectors;
          finish(output_[o + r], k + c + v * L::kCount, tile.sum[r][v]);
        }
        continue;
      }
      A sums[kGroup * kWide];
      tile.store(sums, kWide);
      for (int r = 0; r < kGroup; ++r) {
        finish(output_[o + r], k + c, s_.inputs - k - c, sums + r * kWide);
      }
    }
  }

  // Whether going by columns of x has the fewest terms, by more than turning the sums around costs.
  bool goes_by_columns(int64_t client) {
    const int64_t of_x = count_used<T>(given_, client, s_.rows, s_.inputs);
    const int64_t of_grad = count_used<T>(grad_, client, s_.rows, s_.outputs);
    const int64_t most = s_.rows * 4 / 5;  // from there on tiles are faster
    const int64_t by_output = least(linear_blocks(of_grad, s_.outputs), most);
    return of_x * 2 < s_.rows * s_.inputs && linear_blocks(of_x, s_.inputs) + kTurning < by_output;
  }
  static constexpr int64_t kTurning = 4;  // terms of a sum that could be added in the meantime

  // For each column of x the rows in which it is not zero and its values there, one column after the other.
  void list_columns(const A* panel, int64_t first, int64_t count) {
    A* values = x_;
    int32_t* rows = reinterpret_cast<int32_t*>(x_ + s_.rows * linear_round_up(s_.inputs, kColumns) / 2);
    int32_t end = first == 0 ? 0 : begin_[first];
    for (int64_t k = 0; k < count; ++k) {
      begin_[first + k] = end;
      for (int64_t r = 0; r < s_.rows; ++r) {
        values[end] = panel[r * kColumns + k];
        rows[end] = static_cast<int32_t>(r);
        end += panel[r * kColumns + k] != A(0);
      }
    }
    begin_[first + count] = end;
  }

  // By columns of x.
  template <class Finish>
  void run_columns(int64_t first, int64_t count, const Finish& finish) {
    const A* values = x_;
    const int32_t* rows = reinterpret_cast<const int32_t*>(x_ + s_.rows * linear_round_up(s_.inputs, kColumns) / 2);
    for (int64_t k = 0; k < s_.inputs; k += kTurned) {
      const int64_t columns = least(kTurned, s_.inputs - k);
      for (int64_t c = 0; c < columns; ++c) {
        const int32_t begin = begin_[k + c], end = begin_[k + c + 1];
        for (int64_t o = 0; o < kOutputs; o += kTall * L::kCount) {
          ScaledRows<A, 1, kTall> tile;
          tile.clear();
          tile.add(values + begin, 1, Every{1}, grads_ + o, Listed{rows + begin, 0, kOutputs}, end - begin);
          tile.store(turned_ + c * kOutputs + o, 0);
        }
      }
      finish_turned(first, count, k, columns, finish);
    }
  }

  // Sums [columns, kOutputs] in turned_, of the columns from k on.
  template <class Finish>
  void finish_turned(int64_t first, int64_t count, int64_t k, int64_t columns, const Finish& finish) const {
    A sums[L::kCount * kTurned];
    for (int64_t o = 0; o < count; o += L::kCount) {
      for (int64_t c = 0; c < columns; c += L::kCount) {
        transpose<A>(turned_ + c * kOutputs + o, kOutputs, sums + c, kTurned);
      }
      for (int64_t i = 0; i < least(L::kCount, count - o); ++i) {
        const A* row = sums + i * kTurned;
        const bool below = o + L::kCount < count;
        finish.template expect<kTurned>(first + i + (below ? o + L::kCount : 0), below ? k : k + kTurned);
        int64_t c = 0;
        for (; c + L::kCount <= columns; c += L::kCount) {
          finish(first + o + i, k + c, L::load(row + c));
        }
        if (c < columns) {
          finish(first + o + i, k + c, columns - c, row + c);
        }
      }
    }
  }

  const LinearSizes& s_;
  const LinearRows &grad_, &given_;
  A* grads_;                  // [rows, kOutputs]
  A* group_;                  // of grads_, those of a group of outputs
  A* turned_;                 // [kTurned, kOutputs]
  A* x_;                      // [blocks of kColumns, rows, kColumns], or its columns as lists
  int32_t* rows_;             // in which a group has gradients
  int32_t* begin_;            // where each column's list begins
  int64_t output_[kOutputs];  // that are used
  bool by_columns_ = false;
};

// Calls use(gradient, client, first, count) for the blocks of outputs [begin, end).
template <class T, class Use>
void for_outputs(WeightGradient<T> gradient, const LinearSizes& s, bool reads_x, int64_t begin, int64_t end, Use use) {
  const int64_t blocks = linear_blocks(s.outputs, kOutputs);
  for (int64_t task = begin; task < end; ++task) {
    const int64_t client = task / blocks, first = task % blocks * kOutputs;
    const int64_t count = least(kOutputs, s.outputs - first);
    if (reads_x && (task == begin || first == 0)) {
      gradient.read_x(client);
    }
    gradient.read_grads(client, first, count);
    use(gradient, client, first, count);
  }
}

template <class T>
void grad_weight(const LinearBackward& p, int64_t begin, int64_t end, void* scratch) {
  const LinearSizes& s = p.sizes;
  for_outputs(WeightGradient<T>(s, p.grad, p.x, scratch), s, p.grad_weight != nullptr, begin, end,
              [&](WeightGradient<T>& gradient, int64_t client, int64_t first, int64_t count) {
                if (p.grad_bias) {
                  gradient.sum_rows(static_cast<T*>(p.grad_bias) + client * s.outputs + first, count);
                }
                if (p.grad_weight) {
                  T* to = static_cast<T*>(p.grad_weight) + client * s.outputs * s.inputs;
                  gradient.run(first, count, StoreGradient<T>{to, s.inputs});
                }
              });
}

template <class T>
void step(const LinearStep& p, int64_t begin, int64_t end, void* scratch) {
  using A = accumulate_t<T>;
  const LinearSizes& s = p.sizes;
  const bool away = s.outputs * s.inputs * static_cast<int64_t>(sizeof(T)) >= kAway;
  for_outputs(WeightGradient<T>(s, p.grad, p.x, scratch), s, true, begin, end,
              [&](WeightGradient<T>& gradient, int64_t client, int64_t first, int64_t count) {
                const T* from = static_cast<const T*>(p.start.data) + client * p.start.client;
                T* to = static_cast<T*>(p.weight) + client * p.weight_client;
                gradient.run(first, count,
                             StepWeights<T>{from, to, p.start.row, p.weight_row, s.inputs, static_cast<A>(-p.lr),
                                            static_cast<A>(p.weight_decay), away});
              });
}

}  // namespace

void linear_grad_weight(const LinearBackward& p, int64_t begin, int64_t end, void* scratch) {
  with_type(p.sizes.dtype, [&](auto type) { grad_weight<decltype(type)>(p, begin, end, scratch); });
}

void linear_step(const LinearStep& p, int64_t begin, int64_t end, void* scratch) {
  with_type(p.sizes.dtype, [&](auto type) { step<decltype(type)>(p, begin, end, scratch); });
}

}  // namespace PFL_CAPABILITY
}  // namespace pfl
