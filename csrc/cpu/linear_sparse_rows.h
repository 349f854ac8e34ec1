// `linear` for an x with mostly zeros at different inputs in each row. Sums have the order of linear_across.h.
#pragma once

#include "linear_tiles.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

// Products of one client's rows with the weights of a block of outputs. Only the nonzero inputs of each row are
// multiplied, by transposed weights: lanes lie across outputs.
template <class T>
class SparseRows {
 public:
  using A = accumulate_t<T>;
  using L = Lanes<A>;

  SparseRows(const Linear& problem, void* scratch)
      : p_(problem),
        s_(problem.sizes),
        blocks_(linear_blocks(s_.inputs, kDepth)),
        sums_(aligned<A>(scratch)),
        panel_(sums_ + s_.rows * kLinearOutputs),
        values_(panel_ + kDepth * kLinearOutputs),
        nonzero_(reinterpret_cast<int32_t*>(values_ + s_.rows * s_.inputs / 2 + 1)),
        begin_(nonzero_ + s_.rows * s_.inputs / 2 + 1) {
  }

  // Returns true if less than half of x is nonzero. The lists in scratch memory need that bound, too.
  bool is_worthwhile(int64_t client) const {
    return count_nonzero<T>(p_.x, client, s_.rows, s_.inputs) * 2 < s_.rows * s_.inputs;
  }

  // Lists the nonzero inputs of each row and the start of each block in the list.
  void read_x(int64_t client) {
    const T* rows = static_cast<const T*>(p_.x.data) + client * p_.x.client;
    int32_t end = 0;
    for (int64_t r = 0; r < s_.rows; ++r) {
      for (int64_t block = 0; block < blocks_; ++block) {
        begin_[r * (blocks_ + 1) + block] = end;
        A buffer[kDepth];
        const int64_t first = block * kDepth, depth = min(kDepth, s_.inputs - first);
        const A* x = widen(rows + r * p_.x.row + first, depth, buffer);
        for (int64_t k = 0; k < depth; ++k) {
          values_[end] = x[k];
          nonzero_[end] = static_cast<int32_t>(k);
          end += x[k] != A(0);
        }
      }
      begin_[r * (blocks_ + 1) + blocks_] = end;
    }
  }

  void run(int64_t client, int64_t first) {
    const int64_t count = min(kLinearOutputs, s_.outputs - first), pitch = p_.weight.row;
    const T* weights = static_cast<const T*>(p_.weight.data) + client * p_.weight.client + first * pitch;
    std::memset(sums_, 0, static_cast<size_t>(panel_ - sums_) * sizeof(A));
    for (int64_t block = 0; block < blocks_; ++block) {
      const int64_t begin = block * kDepth;
      pack_transposed(weights + begin, count, min(kDepth, s_.inputs - begin));
      add_block(block, block + 1 < blocks_ ? weights + begin + kDepth : weights + kLinearOutputs * pitch);
    }
    finish(client, first, count);
  }

 private:
  static constexpr int64_t kDepth = kLinearDepth;
  static constexpr int kTileVectors = kLinearOutputs / L::kCount < 12 ? kLinearOutputs / L::kCount : 12;
  static_assert(kDepth % L::kCount == 0 && kLinearOutputs % (kTileVectors * L::kCount) == 0);

  // panel_[k, o] = weights[o, k]
  void pack_transposed(const T* weights, int64_t count, int64_t depth) {
    const int64_t pitch = p_.weight.row;
    for (int64_t o = 0; o < count; o += L::kCount) {
      for (int64_t k = 0; k < depth; k += L::kCount) {
        const T* from = weights + o * pitch + k;
        A* to = panel_ + k * kLinearOutputs + o;
        const int64_t outputs = min(L::kCount, count - o), inputs = min(L::kCount, depth - k);
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
      for (int64_t o = 0; o < kLinearOutputs; o += kTileVectors * L::kCount) {
        A* sums = sums_ + r * kLinearOutputs + o;
        RegisterTile<A, 1, kTileVectors> tile;
        tile.load(sums, 0);
        tile.add(values_ + begin[0], 1, StridedIndex{1}, panel_ + o,
                 GatherIndex{nonzero_ + begin[0], 0, kLinearOutputs}, count);
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
  A* sums_;           // [rows, kLinearOutputs]
  A* panel_;          // [kDepth, kLinearOutputs] transposed weights
  A* values_;         // nonzero values of x, row by row
  int32_t* nonzero_;  // their input indices within their blocks
  int32_t* begin_;    // [rows, blocks + 1]
};

}  // namespace
}  // namespace PFL_CAPABILITY
}  // namespace pfl
