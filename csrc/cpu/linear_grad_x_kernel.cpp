// CPU kernel of grad_x in `linear_backward`, compiled once per instruction set into namespace PFL_CAPABILITY. Lanes lie
// across results, never along a sum, so all instruction sets and thread counts give the same bits.
#include "linear_tiles.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

constexpr int64_t kDepth = kLinearDepth;
constexpr int64_t kColumns = kLinearColumns;
constexpr int64_t kStrip = kLinearStrip;
// Weights above 8 MiB are outside L2: from 24 rows on, pack them first.
constexpr int64_t kOutOfL2Bytes = int64_t{8} << 20;
constexpr int64_t kPackRows = 24;

// Columns of one client's grad_x. Outputs whose gradient is zero in all rows of a group, common behind a ReLU or a
// mask, are skipped.
template <class T>
class InputGradient {
 public:
  using A = accumulate_t<T>;
  using L = Lanes<A>;

  InputGradient(const LinearBackward& problem, void* scratch)
      : p_(problem),
        s_(problem.sizes),
        blocks_(linear_blocks(s_.outputs, kDepth)),
        weight_bytes_(s_.outputs * s_.inputs * static_cast<int64_t>(sizeof(T))),
        sums_(aligned<A>(scratch)),
        panel_(sums_ + s_.rows * kStrip),
        grads_(panel_ + kDepth * kColumns),
        nonzero_(reinterpret_cast<int32_t*>(grads_ + s_.rows * s_.outputs)),
        begin_(nonzero_ + linear_blocks(s_.rows, kSparseRows) * s_.outputs) {
  }

  // Lists the outputs with nonzero gradients of each group of rows and the start of each block in the list, and packs
  // their gradients as [outputs, rows of the group].
  void read_grads(int64_t client) {
    const T* from = static_cast<const T*>(p_.grad.data) + client * p_.grad.client;
    const bool sparse = count_nonzero<T>(p_.grad, client, s_.rows, s_.outputs) * 2 < s_.rows * s_.outputs;
    group_rows_ = sparse ? kSparseRows : kRows;
    int64_t group = 0;
    for_groups(s_.rows, group_rows_, [&](int64_t first, int64_t size) {
      int32_t* begin = begin_ + group * (blocks_ + 1);
      begin[0] = 0;
      for (int64_t block = 0; block < blocks_; ++block) {
        const int64_t found =
            read_block(from + first * p_.grad.row, size, block * kDepth, nonzero_ + group * s_.outputs + begin[block],
                       grads_ + first * s_.outputs + begin[block] * size);
        begin[block + 1] = begin[block] + static_cast<int32_t>(found);
      }
      ++group;
    });
  }

  // Computes columns [begin, end) of all rows, end - begin <= kStrip.
  void run(int64_t client, int64_t begin, int64_t end) {
    const T* weights = static_cast<const T*>(p_.weight.data) + client * p_.weight.client;
    for (int64_t i = 0; i < s_.rows * kStrip; ++i) {
      sums_[i] = A(0);
    }
    for (int64_t n = 0; n < s_.outputs; n += kDepth) {
      for (int64_t k = begin; k < end; k += kColumns) {
        const T* block = weights + n * p_.weight.row + k;
        const T* next = k + kColumns < end ? block + kColumns : block + kDepth * p_.weight.row - k + begin;
        add_block(block, next, min(kColumns, end - k), n / kDepth, sums_ + k - begin);
      }
    }
    T* out = static_cast<T*>(p_.grad_x) + client * s_.rows * s_.inputs + begin;
    for (int64_t r = 0; r < s_.rows; ++r) {
      narrow(sums_ + r * kStrip, end - begin, out + r * s_.inputs);
    }
  }

 private:
  // Returns the number of outputs of the block with nonzero gradients.
  int64_t read_block(const T* rows, int64_t size, int64_t first, int32_t* list, A* to) const {
    const int64_t depth = min(kDepth, s_.outputs - first);
    A values[kRows][kDepth];
    int32_t nonzero[kDepth] = {};
    for (int64_t r = 0; r < size; ++r) {
      copy_row(rows + r * p_.grad.row + first, depth, 0, values[r]);
      for (int64_t n = 0; n < depth; ++n) {
        nonzero[n] |= values[r][n] != A(0);
      }
    }
    int64_t found = 0;
    for (int64_t n = 0; n < depth; ++n) {
      if (nonzero[n]) {
        for (int64_t r = 0; r < size; ++r) {
          to[found * size + r] = values[r][n];
        }
        list[found++] = static_cast<int32_t>(first + n);
      }
    }
    return found;
  }

  // Reads weights in place if possible. Packs them if they must be widened or padded, or if they are outside L2 and
  // there are many rows: widely strided rows compete for the same cache sets.
  void add_block(const T* weights, const T* next, int64_t count, int64_t block, A* sums) {
    const int64_t first = block * kDepth;
    if constexpr (sizeof(T) == sizeof(A)) {
      if (count == kColumns && (weight_bytes_ < kOutOfL2Bytes || s_.rows < kPackRows)) {
        return add_groups(weights, p_.weight.row, next, block, sums);
      }
    }
    for (int64_t i = 0; i < min(kDepth, s_.outputs - first); ++i) {
      const T* from = weights + i * p_.weight.row;
      A* to = panel_ + i * kColumns;
      if (sizeof(T) == sizeof(A) && count == kColumns) {
#pragma GCC unroll 16
        for (int64_t c = 0; c < kColumns; c += L::kCount) {
          L::store(L::load(reinterpret_cast<const A*>(from) + c), to + c);
        }
      } else {
        copy_row(from, count, kColumns, to);
      }
    }
    add_groups(panel_, kColumns, next, block, sums);
  }

  void add_groups(const A* right, int64_t pitch, const T* next, int64_t block, A* sums) {
    int64_t number = 0;
    for_groups(s_.rows, group_rows_, [&](int64_t first, int64_t size) {
      if (weight_bytes_ >= kPrefetchBytes) {
        for (int64_t i = first * kDepth / s_.rows; i < (first + size) * kDepth / s_.rows; ++i) {
          prefetch_row<kColumns>(next + i * p_.weight.row);
        }
      }
      const int32_t* begin = begin_ + number * (blocks_ + 1) + block;
      const GatherIndex outputs{nonzero_ + number * s_.outputs + begin[0], block * kDepth, pitch};
      const A* grads = grads_ + first * s_.outputs + begin[0] * size;
      with_constant(size, [&](auto group) {
        constexpr int kGroup = decltype(group)::value;
        for (int64_t c = 0; c < kColumns; c += kVectors * L::kCount) {
          RegisterTile<A, kGroup, kVectors> tile;
          tile.load(sums + first * kStrip + c, kStrip);
          tile.add(grads, 1, StridedIndex{kGroup}, right + c, outputs, begin[1] - begin[0]);
          tile.store(sums + first * kStrip + c, kStrip);
        }
      });
      ++number;
    });
  }

  const LinearBackward& p_;
  const LinearSizes& s_;
  int64_t blocks_;
  int64_t group_rows_ = kRows;  // most rows of a group
  int64_t weight_bytes_;
  A* sums_;           // [rows, kStrip]
  A* panel_;          // [kDepth, kColumns] packed weights
  A* grads_;          // [groups of rows, nonzero outputs, rows of the group]
  int32_t* nonzero_;  // [groups, nonzero outputs]
  int32_t* begin_;    // [groups, blocks + 1]
};

template <class T>
void grad_x(const LinearBackward& p, int64_t begin, int64_t end, void* scratch) {
  InputGradient<T> gradient(p, scratch);
  const int64_t blocks = linear_blocks(p.sizes.inputs, kColumns);
  for (int64_t task = begin; task < end;) {
    const int64_t client = task / blocks, first = task % blocks;
    const int64_t count = min(min(kStrip / kColumns, blocks - first), end - task);
    if (task == begin || first == 0) {
      gradient.read_grads(client);
    }
    gradient.run(client, first * kColumns, min((first + count) * kColumns, p.sizes.inputs));
    task += count;
  }
}

}  // namespace

void linear_grad_x(const LinearBackward& p, int64_t begin, int64_t end, void* scratch) {
  with_type(p.sizes.dtype, [&](auto type) { grad_x<decltype(type)>(p, begin, end, scratch); });
}

}  // namespace PFL_CAPABILITY
}  // namespace pfl
