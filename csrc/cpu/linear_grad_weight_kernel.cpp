// CPU kernels of grad_weight and grad_bias in `linear_backward` and of `linear_step_`, compiled once per instruction
// set into namespace PFL_CAPABILITY. Lanes lie across results, never along a sum, as in linear_grad_x_kernel.cpp.
#include "linear_tiles.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

constexpr int64_t kColumns = kLinearColumns;
constexpr int64_t kOutputs = kLinearOutputs;

// Epilogues of WeightGradient. They receive finished gradients as a vector or as fewer columns at the end of a row,
// zero_row() for an output with a zero gradient, and prefetch() for columns that follow soon.
//
// Stores the gradient.
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
  void zero_row(int64_t output) const {
    std::memset(static_cast<void*>(to + output * inputs), 0, static_cast<size_t>(inputs) * sizeof(T));
  }
  template <int64_t kCount>
  void prefetch(int64_t, int64_t) const {
  }
};

// Applies an SGD step without momentum.
template <class T>
struct StepWeights {
  using A = accumulate_t<T>;
  using L = Lanes<A>;
  const T* from;  // the client's [outputs, inputs]
  T* to;
  int64_t from_row, to_row, inputs;
  A minus_lr, decay;
  bool prefetches;

  inline __attribute__((always_inline)) void operator()(int64_t output, int64_t column,
                                                        const typename L::Vector& sum) const {
#if defined(__FMA__)
    if constexpr (sizeof(T) == sizeof(A)) {
      const typename L::Vector old = L::load(from + output * from_row + column);
      const typename L::Vector gradient = decay != 0 ? multiply_add(typename L::Vector{} + decay, old, sum) : sum;
      return L::store(multiply_add(typename L::Vector{} + minus_lr, gradient, old), to + output * to_row + column);
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
      result[j] = multiply_add(minus_lr, decay != 0 ? multiply_add(decay, old[j], sums[j]) : sums[j], old[j]);
    }
    narrow(result, count, to + output * to_row + column);
  }
  void zero_row(int64_t output) const {
    if (decay != 0) {
      const A nothing[kVectors * L::kCount] = {};
      for (int64_t k = 0; k < inputs; k += kVectors * L::kCount) {
        (*this)(output, k, min(kVectors * L::kCount, inputs - k), nothing);
      }
    } else if (from != to) {
      std::memcpy(static_cast<void*>(to + output * to_row), from + output * from_row,
                  static_cast<size_t>(inputs) * sizeof(T));
    }
  }
  template <int64_t kCount>
  void prefetch(int64_t output, int64_t column) const {
    if (prefetches) {
      prefetch_row<kCount>(from + output * from_row + column);
    }
  }
};

// grad_weight and grad_bias of one client. Two paths compute the same sums:
//   by groups of outputs: over the rows in which any output of the group has a gradient, lanes across columns
//   by columns of x: over the rows in which x is nonzero, lanes across outputs; used if most of x is zero, as after a
//   ReLU
template <class T>
class WeightGradient {
 public:
  using A = accumulate_t<T>;
  using L = Lanes<A>;

  WeightGradient(const LinearSizes& sizes, const LinearRows& grad, const LinearRows& x, void* scratch)
      : s_(sizes),
        grad_(grad),
        x_rows_(x),
        grads_(aligned<A>(scratch)),
        group_(grads_ + s_.rows * kOutputs),
        transposed_(group_ + linear_round_up(s_.rows * kRows, kLinearCacheLine)),
        x_(transposed_ + kTransposeColumns * kOutputs),
        rows_(reinterpret_cast<int32_t*>(x_ + s_.rows * linear_round_up(s_.inputs, kColumns))),
        begin_(rows_ + s_.rows) {
  }

  void read_x(int64_t client) {
    const T* from = static_cast<const T*>(x_rows_.data) + client * x_rows_.client;
    by_columns_ = goes_by_columns(client);
    for (int64_t k = 0; k < s_.inputs; k += kColumns) {
      const int64_t count = min(kColumns, s_.inputs - k);
      A* panel = by_columns_ ? grads_ : x_ + k * s_.rows;  // grads_ is free until read_grads()
      for (int64_t r = 0; r < s_.rows; ++r) {
        copy_row(from + r * x_rows_.row + k, count, kColumns, panel + r * kColumns);
      }
      if (by_columns_) {
        list_columns(panel, k, count);
      }
    }
  }

  // Packs the gradients of a block of outputs as [rows, kOutputs].
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

  // Computes the outputs of the last read_grads(). Outputs without a nonzero gradient only get zero_row().
  template <class Epilogue>
  void run(int64_t first, int64_t count, const Epilogue& epilogue) {
    if (by_columns_) {
      return run_columns(first, count, epilogue);
    }
    int64_t terms = 0;
    const int64_t nonzero = compact_nonzero(first, count, epilogue, terms);
    for_groups(nonzero, terms * 2 < nonzero * s_.rows ? kSparseRows : kRows, [&](int64_t o, int64_t size) {
      const int64_t rows = list_rows(o, size);
      with_constant(size, [&](auto group) {
        for (int64_t k = 0; k < s_.inputs; k += kColumns) {
          prefetch_next(o, size, k, epilogue);
          if (rows == s_.rows) {  // a strided index is a little faster than a list
            add_panel<decltype(group)::value>(o, k, rows, StridedIndex{kColumns}, epilogue);
          } else {
            add_panel<decltype(group)::value>(o, k, rows, GatherIndex{rows_, 0, kColumns}, epilogue);
          }
        }
      });
    });
  }

 private:
  static constexpr int64_t kWide = kVectors * L::kCount;
  static constexpr int64_t kTransposeColumns = kLinearTransposeColumns;
  static constexpr int64_t kPrefetchPanels = 2;  // prefetch distance, in panels of kColumns weights
  // Vectors per tile of the path by columns of x.
  static constexpr int kTileVectors = kOutputs / L::kCount < 12 ? kOutputs / L::kCount : 12;

  // Moves the nonzero columns of grads_ to its front and returns their number. Adds their nonzero values to `terms`.
  template <class Epilogue>
  int64_t compact_nonzero(int64_t first, int64_t count, const Epilogue& epilogue, int64_t& terms) {
    int32_t nonzero[kOutputs] = {};
    for (int64_t r = 0; r < s_.rows; ++r) {
      for (int64_t o = 0; o < kOutputs; ++o) {
        nonzero[o] += grads_[r * kOutputs + o] != A(0);
      }
    }
    int64_t found = 0;
    for (int64_t o = 0; o < count; ++o) {
      terms += nonzero[o];
      if (!nonzero[o]) {
        epilogue.zero_row(first + o);
        continue;
      }
      for (int64_t r = 0; found < o && r < s_.rows; ++r) {
        grads_[r * kOutputs + found] = grads_[r * kOutputs + o];
      }
      output_[found++] = first + o;
    }
    // The entries behind the last one are prefetch targets: the next block.
    for (int64_t o = found; o < kOutputs; ++o) {
      output_[o] = first + count;
    }
    return found;
  }

  // Lists the rows in which any output of a group has a nonzero gradient and packs these gradients as [rows, outputs of
  // the group]. Returns the number of rows.
  int64_t list_rows(int64_t o, int64_t size) {
    int64_t found = 0;
    for (int64_t r = 0; r < s_.rows; ++r) {
      int32_t nonzero = 0;
      for (int64_t i = 0; i < size; ++i) {
        const A value = grads_[r * kOutputs + o + i];
        group_[found * size + i] = value;
        nonzero |= value != A(0);
      }
      rows_[found] = static_cast<int32_t>(r);
      found += nonzero;
    }
    return found;
  }

  // Prefetches the weights kPrefetchPanels panels ahead, of this group of outputs or of the next one.
  template <class Epilogue>
  void prefetch_next(int64_t o, int64_t size, int64_t k, const Epilogue& epilogue) const {
    const int64_t ahead = k + kPrefetchPanels * kColumns, row = linear_round_up(s_.inputs, kColumns);
    for (int64_t r = 0; r < size; ++r) {
      const int64_t next = ahead < row ? o + r : min(o + size + r, kOutputs - 1);
      epilogue.template prefetch<kColumns>(output_[next], ahead < row ? ahead : ahead - row);
    }
  }

  // Computes a panel of kColumns columns from k on for kGroup outputs.
  template <int kGroup, class RowAt, class Epilogue>
  void add_panel(int64_t o, int64_t k, int64_t rows, RowAt row_at, const Epilogue& epilogue) const {
    const A* x = x_ + k * s_.rows;
    for (int64_t c = 0; c < kColumns && k + c < s_.inputs; c += kWide) {
      RegisterTile<A, kGroup, kVectors> tile;
      tile.clear();
      tile.add(group_, 1, StridedIndex{kGroup}, x + c, row_at, rows);
      if (k + c + kWide <= s_.inputs) {
#pragma GCC unroll 32
        for (int i = 0; i < kGroup * kVectors; ++i) {
          const int r = i / kVectors, v = i % kVectors;
          epilogue(output_[o + r], k + c + v * L::kCount, tile.sum[r][v]);
        }
        continue;
      }
      A sums[kGroup * kWide];
      tile.store(sums, kWide);
      for (int r = 0; r < kGroup; ++r) {
        epilogue(output_[o + r], k + c, s_.inputs - k - c, sums + r * kWide);
      }
    }
  }

  // Returns true if the path by columns of x saves more terms than transposing its sums costs.
  bool goes_by_columns(int64_t client) {
    const int64_t of_x = count_nonzero<T>(x_rows_, client, s_.rows, s_.inputs);
    const int64_t of_grad = count_nonzero<T>(grad_, client, s_.rows, s_.outputs);
    const int64_t max_terms = s_.rows * 4 / 5;  // with more terms, tiles of outputs are faster
    const int64_t by_output = min(linear_blocks(of_grad, s_.outputs), max_terms);
    return of_x * 2 < s_.rows * s_.inputs && linear_blocks(of_x, s_.inputs) + kTransposeCost < by_output;
  }
  static constexpr int64_t kTransposeCost = 4;  // cost of the transpose, in terms of a sum

  // Lists the rows and values of the nonzero entries of x, column by column.
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

  // Path by columns of x.
  template <class Epilogue>
  void run_columns(int64_t first, int64_t count, const Epilogue& epilogue) {
    const A* values = x_;
    const int32_t* rows = reinterpret_cast<const int32_t*>(x_ + s_.rows * linear_round_up(s_.inputs, kColumns) / 2);
    for (int64_t k = 0; k < s_.inputs; k += kTransposeColumns) {
      const int64_t columns = min(kTransposeColumns, s_.inputs - k);
      for (int64_t c = 0; c < columns; ++c) {
        const int32_t begin = begin_[k + c], end = begin_[k + c + 1];
        for (int64_t o = 0; o < kOutputs; o += kTileVectors * L::kCount) {
          RegisterTile<A, 1, kTileVectors> tile;
          tile.clear();
          tile.add(values + begin, 1, StridedIndex{1}, grads_ + o, GatherIndex{rows + begin, 0, kOutputs}, end - begin);
          tile.store(transposed_ + c * kOutputs + o, 0);
        }
      }
      write_transposed(first, count, k, columns, epilogue);
    }
  }

  // Transposes the sums [columns, kOutputs] in transposed_ and passes them to the epilogue as columns from k on.
  template <class Epilogue>
  void write_transposed(int64_t first, int64_t count, int64_t k, int64_t columns, const Epilogue& epilogue) const {
    A sums[L::kCount * kTransposeColumns];
    for (int64_t o = 0; o < count; o += L::kCount) {
      for (int64_t c = 0; c < columns; c += L::kCount) {
        transpose<A>(transposed_ + c * kOutputs + o, kOutputs, sums + c, kTransposeColumns);
      }
      for (int64_t i = 0; i < min(L::kCount, count - o); ++i) {
        const A* row = sums + i * kTransposeColumns;
        const bool below = o + L::kCount < count;
        epilogue.template prefetch<kTransposeColumns>(first + i + (below ? o + L::kCount : 0),
                                                      below ? k : k + kTransposeColumns);
        int64_t c = 0;
        for (; c + L::kCount <= columns; c += L::kCount) {
          epilogue(first + o + i, k + c, L::load(row + c));
        }
        if (c < columns) {
          epilogue(first + o + i, k + c, columns - c, row + c);
        }
      }
    }
  }

  const LinearSizes& s_;
  const LinearRows &grad_, &x_rows_;
  A* grads_;                  // [rows, kOutputs]
  A* group_;                  // gradients of a group of outputs
  A* transposed_;             // [kTransposeColumns, kOutputs]
  A* x_;                      // [blocks of kColumns, rows, kColumns], or the lists of its columns
  int32_t* rows_;             // rows in which a group has gradients
  int32_t* begin_;            // start of each column in the lists
  int64_t output_[kOutputs];  // outputs with nonzero gradients
  bool by_columns_ = false;
};

// Calls use(gradient, client, first, count) for each block of outputs in [begin, end).
template <class T, class Use>
void for_outputs(WeightGradient<T> gradient, const LinearSizes& s, bool reads_x, int64_t begin, int64_t end, Use use) {
  const int64_t blocks = linear_blocks(s.outputs, kOutputs);
  for (int64_t task = begin; task < end; ++task) {
    const int64_t client = task / blocks, first = task % blocks * kOutputs;
    const int64_t count = min(kOutputs, s.outputs - first);
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
  const bool prefetches = s.outputs * s.inputs * static_cast<int64_t>(sizeof(T)) >= kPrefetchBytes;
  for_outputs(WeightGradient<T>(s, p.grad, p.x, scratch), s, true, begin, end,
              [&](WeightGradient<T>& gradient, int64_t client, int64_t first, int64_t count) {
                const T* from = static_cast<const T*>(p.start.data) + client * p.start.client;
                T* to = static_cast<T*>(p.weight) + client * p.weight_client;
                gradient.run(first, count,
                             StepWeights<T>{from, to, p.start.row, p.weight_row, s.inputs, static_cast<A>(-p.lr),
                                            static_cast<A>(p.weight_decay), prefetches});
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
