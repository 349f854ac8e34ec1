// CPU kernel of `linear`, compiled once per instruction set into namespace PFL_CAPABILITY. With few rows, weights are
// what is read most: they are multiplied as they lie in memory, along their rows, and only x is rearranged. With more,
// lanes lie across the rows of x, and inputs that are zero in all of them are left out.
#include "linear_tiles.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

// The products of one client's rows with a block of its outputs, as sums along the rows.
template <class T>
class Along {
 public:
  using A = accumulate_t<T>;
  using L = Lanes<A>;

  Along(const Linear& problem, void* scratch)
      : p_(problem),
        s_(problem.sizes),
        whole_(s_.inputs / L::kStep * L::kStep),
        room_(linear_round_up(s_.inputs, L::kStep)),
        sums_(aligned<A>(scratch)),
        x_(sums_ + s_.rows * kLinearDotOutputs * L::kStep) {
  }

  // Groups of rows one after the other, each as [steps, rows of the group, kStep] with zeros at the end.
  void read_x(int64_t client) {
    const T* from = static_cast<const T*>(p_.x.data) + client * p_.x.client;
    for_groups(s_.rows, kDotRows, [&](int64_t first, int64_t size) {
      for (int64_t r = 0; r < size; ++r) {
        A* to = x_ + first * room_ + r * L::kStep;
        const T* row = from + (first + r) * p_.x.row;
        for (int64_t k = 0; k < s_.inputs; k += L::kStep, to += size * L::kStep) {
          copy_row(row + k, least(L::kStep, s_.inputs - k), L::kStep, to);
        }
      }
    });
  }

  void run(int64_t client, int64_t first) {
    const int64_t end = least(first + kLinearOutputs, s_.outputs);
    for (int64_t o = first; o < end; o += kLinearDotOutputs) {
      run_few(client, o, least(kLinearDotOutputs, end - o));
    }
  }

 private:
  static constexpr int64_t kDepth =
      1024;  // values of a row that are multiplied before the next: those of x stay in cache

  void run_few(int64_t client, int64_t first, int64_t count) {
    const int64_t pitch = p_.weight.row;
    const T* weights = static_cast<const T*>(p_.weight.data) + client * p_.weight.client + first * pitch;
    if (s_.inputs == 0) {
      std::memset(sums_, 0, static_cast<size_t>(x_ - sums_) * sizeof(A));
    }
    for (int64_t begin = 0; begin < whole_; begin += kDepth) {
      add_block(weights + begin, pitch, count, begin, least(kDepth, whole_ - begin));
    }
    if (whole_ < s_.inputs) {
      add_last_step(weights + whole_, count);
    }
    finish(client, first, count);
  }

  // Whole steps of all rows and outputs, from input `begin` on.
  void add_block(const T* weights, int64_t pitch, int64_t count, int64_t begin, int64_t depth) {
    constexpr bool kNarrow = sizeof(T) < sizeof(A);
    A wide[kNarrow ? kLinearDotOutputs * kDepth : 1];
    const A* row[kLinearDotOutputs];
    for (int64_t o = 0; o < count; ++o) {
      row[o] = widen(weights + o * pitch, depth, kNarrow ? wide + o * kDepth : wide);
    }
    for (int64_t o = 0; o < count; o += kDotOutputs) {
      for_groups(s_.rows, kDotRows, [&](int64_t first, int64_t size) {
        const A* x = x_ + first * room_ + begin * size;
        A* sums = sums_ + (first * kLinearDotOutputs + o) * L::kStep;
        const int64_t ahead = first == 0 ? kDotOutputs * pitch : 0;
        add_dots_of_group(x, row + o, least(kDotOutputs, count - o), size, depth / L::kStep, begin == 0, sums, ahead);
      });
    }
  }

  // What remains behind the last whole step, filled up with zeros.
  void add_last_step(const T* weights, int64_t count) {
    T last[kLinearDotOutputs * L::kStep];
    std::memset(last, 0, sizeof last);
    for (int64_t o = 0; o < count; ++o) {
      const size_t bytes = static_cast<size_t>(s_.inputs - whole_) * sizeof(T);
      std::memcpy(last + o * L::kStep, weights + o * p_.weight.row, bytes);
    }
    add_block(last, L::kStep, count, whole_, L::kStep);
  }

  static void add_dots_of_group(const A* x, const A* const* row, int64_t outputs, int64_t size, int64_t steps,
                                bool first, A* sums, int64_t ahead) {
    with_constant(size, [&](auto group) {
      constexpr int kGroup = decltype(group)::value;
      if constexpr (kGroup <= kDotRows) {
        if (outputs == kDotOutputs) {
          return add_dots<A, kGroup, kDotOutputs>(x, row, steps, first, sums, ahead);
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
  int64_t whole_, room_;  // inputs in whole steps, and rounded up to them
  A* sums_;               // [rows, kLinearDotOutputs, kStep]
  A* x_;
};

// The same with lanes across the rows of x, a chunk of them at a time. An input that is zero in a whole chunk, as after
// a ReLU many are, adds nothing to it: only the others are multiplied.
template <class T>
class Across {
 public:
  using A = accumulate_t<T>;
  using L = Lanes<A>;

  Across(const Linear& problem, void* scratch)
      : p_(problem),
        s_(problem.sizes),
        chunks_(linear_blocks(s_.rows, kChunk)),
        blocks_(linear_blocks(s_.inputs, kDepth)),
        sums_(aligned<A>(scratch)),
        panel_(sums_ + chunks_ * kChunk * kBlock),
        x_(panel_ + kBlock * kDepth),
        used_(reinterpret_cast<int32_t*>(x_ + chunks_ * kChunk * s_.inputs)),
        begin_(used_ + chunks_ * s_.inputs) {
  }

  // For each chunk its inputs that are not all zero, where those of each block begin, and their values [inputs,
  // kChunk].
  void read_x(int64_t client) {
    const T* rows = static_cast<const T*>(p_.x.data) + client * p_.x.client;
    for (int64_t chunk = 0; chunk < chunks_; ++chunk, rows += kChunk * p_.x.row) {
      const int64_t count = least(kChunk, s_.rows - chunk * kChunk);
      int32_t* begin = begin_ + chunk * (blocks_ + 1);
      begin[0] = 0;
      for (int64_t block = 0; block < blocks_; ++block) {
        begin[block + 1] = begin[block] + read_block(rows, count, chunk, block * kDepth, begin[block]);
      }
    }
  }

  void run(int64_t client, int64_t first) {
    const int64_t end = least(first + kLinearOutputs, s_.outputs);
    for (int64_t o = first; o < end; o += kBlock) {
      run_few(client, o, least(kBlock, end - o));
    }
  }

 private:
  static constexpr int64_t kBlock = kLinearAcrossOutputs;
  static constexpr int64_t kDepth = kLinearAcrossDepth;
  static constexpr int kAcross = 2;  // vectors in a tile's row: a shorter chunk has fewer inputs that are not all zero
  static constexpr int64_t kChunk = kAcross * L::kCount;
  static_assert(kChunk <= kLinearChunk && kDepth % L::kCount == 0 && kBlock % L::kCount == 0);

  void run_few(int64_t client, int64_t first, int64_t count) {
    const T* weights = static_cast<const T*>(p_.weight.data) + client * p_.weight.client + first * p_.weight.row;
    std::memset(sums_, 0, static_cast<size_t>(panel_ - sums_) * sizeof(A));
    for (int64_t block = 0; block < blocks_; ++block) {
      const int64_t begin = block * kDepth;
      const T* next = block + 1 < blocks_ ? weights + begin + kDepth : weights + kBlock * p_.weight.row;
      if constexpr (sizeof(T) == sizeof(A)) {
        add_block(block, count, weights, p_.weight.row, 0, next);
      } else {
        for (int64_t o = 0; o < count; ++o) {
          copy_row(weights + o * p_.weight.row + begin, least(kDepth, s_.inputs - begin), 0, panel_ + o * kDepth);
        }
        add_block(block, count, panel_, kDepth, begin, next);
      }
    }
    finish(client, first, count);
  }

  // Returns how many inputs of the block are used.
  int64_t read_block(const T* rows, int64_t count, int64_t chunk, int64_t first, int64_t place) {
    const int64_t depth = least(kDepth, s_.inputs - first);
    A values[kChunk * kDepth], turned[kDepth * kChunk];
    for (int64_t r = 0; r < count; ++r) {
      copy_row(rows + r * p_.x.row + first, depth, kDepth, values + r * kDepth);
    }
    std::memset(values + count * kDepth, 0, static_cast<size_t>((kChunk - count) * kDepth) * sizeof(A));
    for (int64_t r = 0; r < kChunk; r += L::kCount) {
      for (int64_t k = 0; k < depth; k += L::kCount) {
        transpose<A>(values + r * kDepth + k, kDepth, turned + k * kChunk + r, kChunk);
      }
    }
    int32_t* list = used_ + chunk * s_.inputs + place;
    A* to = x_ + (chunk * s_.inputs + place) * kChunk;
    int64_t found = 0;
    for (int64_t k = 0; k < depth; ++k) {
      const A* from = turned + k * kChunk;
      if (is_used(from)) {
        std::memcpy(to + found * kChunk, from, kChunk * sizeof(A));
        list[found++] = static_cast<int32_t>(first + k);
      }
    }
    return found;
  }

  static bool is_used(const A* values) {
    int64_t used = 0;
    for (int64_t r = 0; r < kChunk; ++r) {
      used += values[r] != A(0);
    }
    return used > 0;
  }

  // `first` is the input that the weights begin with.
  void add_block(int64_t block, int64_t count, const A* weights, int64_t pitch, int64_t first, const T* next) {
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      const int32_t* begin = begin_ + chunk * (blocks_ + 1) + block;
      const Listed inputs{used_ + chunk * s_.inputs + begin[0], first, 1};
      const A* x = x_ + (chunk * s_.inputs + begin[0]) * kChunk;
      A* sums = sums_ + chunk * kBlock * kChunk;
      const int64_t wide = least(kAcross, linear_blocks(s_.rows - chunk * kChunk, L::kCount));
      for_groups(count, kRows, [&](int64_t o, int64_t size) {
        if (chunk == 0) {
          for (int64_t i = o; i < o + size; ++i) {
            prefetch_row<kDepth>(next + i * p_.weight.row);
          }
        }
        with_constant(size, [&](auto group) {
          add_tile<decltype(group)::value>(weights + o * pitch, pitch, inputs, x, begin[1] - begin[0], wide,
                                           sums + o * kChunk);
        });
      });
    }
  }

  // The first `wide` vectors of rows.
  template <int kGroup>
  static void add_tile(const A* weights, int64_t pitch, const Listed& inputs, const A* x, int64_t count, int64_t wide,
                       A* sums) {
    with_constant(wide, [&](auto vectors) {
      if constexpr (decltype(vectors)::value <= kAcross) {
        ScaledRows<A, kGroup, decltype(vectors)::value> tile;
        tile.load(sums, kChunk);
        tile.add(weights, pitch, inputs, x, Every{kChunk}, count);
        tile.store(sums, kChunk);
      }
    });
  }

  void finish(int64_t client, int64_t first, int64_t count) {
    A bias[kBlock], total[L::kCount * kBlock];
    const T* from = static_cast<const T*>(p_.bias.data);
    copy_row(from ? from + client * p_.bias.client + first : from, from ? count : 0, kBlock, bias);
    T* out = static_cast<T*>(p_.out) + client * s_.rows * s_.outputs + first;
    for (int64_t row = 0; row < s_.rows; row += L::kCount) {
      const A* sums = sums_ + row / kChunk * kBlock * kChunk + row % kChunk;
      for (int64_t o = 0; o < count; o += L::kCount) {
        transpose<A>(sums + o * kChunk, kChunk, total + o, kBlock);
      }
      for (int64_t r = row; r < least(row + L::kCount, s_.rows); ++r) {
        A* values = total + (r - row) * kBlock;
        for (int64_t o = 0; o < kBlock; o += L::kCount) {
          L::store(L::load(values + o) + L::load(bias + o), values + o);
        }
        narrow(values, count, out + r * s_.outputs);
      }
    }
  }

  const Linear& p_;
  const LinearSizes& s_;
  int64_t chunks_, blocks_;
  A* sums_;         // [chunks, kBlock, kChunk]
  A* panel_;        // [kBlock, kDepth]: weights that must be widened
  A* x_;            // [chunks, inputs that are used, kChunk]
  int32_t* used_;   // [chunks, inputs that are used]
  int32_t* begin_;  // [chunks, blocks + 1]
};

// The same row by row: of each only the inputs that are not zero are multiplied, with weights that are turned around so
// that lanes lie across outputs. Where most of x is zero, but little in all rows at once.
template <class T>
class RowByRow {
 public:
  using A = accumulate_t<T>;
  using L = Lanes<A>;

  RowByRow(const Linear& problem, void* scratch)
      : p_(problem),
        s_(problem.sizes),
        blocks_(linear_blocks(s_.inputs, kDepth)),
        sums_(aligned<A>(scratch)),
        panel_(sums_ + s_.rows * kLinearOutputs),
        values_(panel_ + kDepth * kLinearOutputs),
        used_(reinterpret_cast<int32_t*>(values_ + s_.rows * s_.inputs / 2 + 1)),
        begin_(used_ + s_.rows * s_.inputs / 2 + 1) {
  }

  // Whether it is worth it, and there is room for it.
  bool takes(int64_t client) const {
    return count_used<T>(p_.x, client, s_.rows, s_.inputs) * 2 < s_.rows * s_.inputs;
  }

  // For each row its inputs that are not zero, and where those of each block begin.
  void read_x(int64_t client) {
    const T* rows = static_cast<const T*>(p_.x.data) + client * p_.x.client;
    int32_t end = 0;
    for (int64_t r = 0; r < s_.rows; ++r) {
      for (int64_t block = 0; block < blocks_; ++block) {
        begin_[r * (blocks_ + 1) + block] = end;
        A buffer[kDepth];
        const int64_t first = block * kDepth, depth = least(kDepth, s_.inputs - first);
        const A* x = widen(rows + r * p_.x.row + first, depth, buffer);
        for (int64_t k = 0; k < depth; ++k) {
          values_[end] = x[k];
          used_[end] = static_cast<int32_t>(k);
          end += x[k] != A(0);
        }
      }
      begin_[r * (blocks_ + 1) + blocks_] = end;
    }
  }

  void run(int64_t client, int64_t first) {
    const int64_t count = least(kLinearOutputs, s_.outputs - first), pitch = p_.weight.row;
    const T* weights = static_cast<const T*>(p_.weight.data) + client * p_.weight.client + first * pitch;
    std::memset(sums_, 0, static_cast<size_t>(panel_ - sums_) * sizeof(A));
    for (int64_t block = 0; block < blocks_; ++block) {
      const int64_t begin = block * kDepth;
      turn(weights + begin, count, least(kDepth, s_.inputs - begin));
      add_block(block, block + 1 < blocks_ ? weights + begin + kDepth : weights + kLinearOutputs * pitch);
    }
    finish(client, first, count);
  }

 private:
  static constexpr int64_t kDepth = kLinearDepth;
  static constexpr int kTall = kLinearOutputs / L::kCount < 12 ? kLinearOutputs / L::kCount : 12;
  static_assert(kDepth % L::kCount == 0 && kLinearOutputs % (kTall * L::kCount) == 0);

  // panel_[k, o] = weights[o, k]
  void turn(const T* weights, int64_t count, int64_t depth) {
    const int64_t pitch = p_.weight.row;
    for (int64_t o = 0; o < count; o += L::kCount) {
      for (int64_t k = 0; k < depth; k += L::kCount) {
        const T* from = weights + o * pitch + k;
        A* to = panel_ + k * kLinearOutputs + o;
        const int64_t outputs = least(L::kCount, count - o), inputs = least(L::kCount, depth - k);
        if constexpr (sizeof(T) == sizeof(A)) {
          if (outputs == L::kCount && inputs == L::kCount) {
            transpose<A>(from, pitch, to, kLinearOutputs);
            continue;
          }
        }
        A square[L::kCount * L::kCount] = {};
        for (int64_t i = 0; i < outputs; ++i) {
          copy_row(from + i * pitch, inputs, L::kCount, square + i * L::kCount);
        }
        transpose<A>(square, L::kCount, to, kLinearOutputs);
      }
    }
  }

  void add_block(int64_t block, const T* next) {
    for (int64_t r = 0; r < s_.rows; ++r) {
      for (int64_t o = r * kLinearOutputs / s_.rows; o < (r + 1) * kLinearOutputs / s_.rows; ++o) {
        prefetch_row<kDepth>(next + o * p_.weight.row);
      }
      const int32_t *begin = begin_ + r * (blocks_ + 1) + block, count = begin[1] - begin[0];
      for (int64_t o = 0; o < kLinearOutputs; o += kTall * L::kCount) {
        A* sums = sums_ + r * kLinearOutputs + o;
        ScaledRows<A, 1, kTall> tile;
        tile.load(sums, 0);
        tile.add(values_ + begin[0], 1, Every{1}, panel_ + o, Listed{used_ + begin[0], 0, kLinearOutputs}, count);
        tile.store(sums, 0);
      }
    }
  }

  void finish(int64_t client, int64_t first, int64_t count) {
    A bias[kLinearOutputs], total[kLinearOutputs];
    const T* from = static_cast<const T*>(p_.bias.data);
    copy_row(from ? from + client * p_.bias.client + first : from, from ? count : 0, kLinearOutputs, bias);
    T* out = static_cast<T*>(p_.out) + client * s_.rows * s_.outputs + first;
    for (int64_t r = 0; r < s_.rows; ++r) {
      for (int64_t o = 0; o < kLinearOutputs; o += L::kCount) {
        L::store(L::load(sums_ + r * kLinearOutputs + o) + L::load(bias + o), total + o);
      }
      narrow(total, count, out + r * s_.outputs);
    }
  }

  const Linear& p_;
  const LinearSizes& s_;
  int64_t blocks_;
  A* sums_;         // [rows, kLinearOutputs]
  A* panel_;        // [kDepth, kLinearOutputs] of the weights
  A* values_;       // of x that are not zero, row by row
  int32_t* used_;   // where they are in their blocks
  int32_t* begin_;  // [rows, blocks + 1]
};

// The blocks of outputs [begin, end) of one client.
template <class Product>
void run_client(Product product, int64_t client, int64_t begin, int64_t end) {
  product.read_x(client);
  for (int64_t block = begin; block < end; ++block) {
    product.run(client, block * kLinearOutputs);
  }
}

template <class T>
void forward(const Linear& p, int64_t begin, int64_t end, void* scratch) {
  const int64_t blocks = linear_blocks(p.sizes.outputs, kLinearOutputs);
  for (int64_t task = begin; task < end;) {
    const int64_t client = task / blocks, first = task % blocks, last = least(blocks, first + end - task);
    if (!linear_is_across(p.sizes.rows)) {
      run_client(Along<T>(p, scratch), client, first, last);
    } else if (const RowByRow<T> rows(p, scratch); rows.takes(client)) {
      run_client(rows, client, first, last);
    } else {
      run_client(Across<T>(p, scratch), client, first, last);
    }
    task += last - first;
  }
}

}  // namespace

void linear(const Linear& p, int64_t begin, int64_t end, void* scratch) {
  with_type(p.sizes.dtype, [&](auto type) { forward<decltype(type)>(p, begin, end, scratch); });
}

}  // namespace PFL_CAPABILITY
}  // namespace pfl
