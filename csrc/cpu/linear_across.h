// `linear` with lanes across the rows of x, for many rows.
#pragma once

#include "linear_tiles.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

// Products of one client's rows with the weights of a block of outputs, a chunk of rows at a time. Inputs that are zero
// in all rows of a chunk, common after a ReLU, are skipped.
template <class T>
class LanesAcrossRows {
 public:
  using A = accumulate_t<T>;
  using L = Lanes<A>;

  LanesAcrossRows(const Linear& problem, void* scratch)
      : p_(problem),
        s_(problem.sizes),
        chunks_(linear_blocks(s_.rows, kChunk)),
        blocks_(linear_blocks(s_.inputs, kDepth)),
        sums_(aligned<A>(scratch)),
        panel_(sums_ + chunks_ * kChunk * kBlock),
        x_(panel_ + kBlock * kDepth),
        nonzero_(reinterpret_cast<int32_t*>(x_ + chunks_ * kChunk * s_.inputs)),
        begin_(nonzero_ + chunks_ * s_.inputs) {
  }

  // Lists the nonzero inputs of each chunk and the start of each block in the list. Packs x as [inputs, kChunk].
  void read_x(int64_t client) {
    const T* rows = static_cast<const T*>(p_.x.data) + client * p_.x.client;
    for (int64_t chunk = 0; chunk < chunks_; ++chunk, rows += kChunk * p_.x.row) {
      const int64_t count = min(kChunk, s_.rows - chunk * kChunk);
      int32_t* begin = begin_ + chunk * (blocks_ + 1);
      begin[0] = 0;
      for (int64_t block = 0; block < blocks_; ++block) {
        begin[block + 1] = begin[block] + read_block(rows, count, chunk, block * kDepth, begin[block]);
      }
    }
  }

  void run(int64_t client, int64_t first) {
    const int64_t end = min(first + kLinearOutputs, s_.outputs);
    for (int64_t o = first; o < end; o += kBlock) {
      run_few(client, o, min(kBlock, end - o));
    }
  }

 private:
  static constexpr int64_t kBlock = kLinearAcrossOutputs;
  static constexpr int64_t kDepth = kLinearAcrossDepth;
  static constexpr int kTileVectors = 2;  // short chunks have more inputs that are zero in all rows
  static constexpr int64_t kChunk = kTileVectors * L::kCount;
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
          copy_row(weights + o * p_.weight.row + begin, min(kDepth, s_.inputs - begin), 0, panel_ + o * kDepth);
        }
        add_block(block, count, panel_, kDepth, begin, next);
      }
    }
    finish(client, first, count);
  }

  // Returns the number of nonzero inputs of the block.
  int64_t read_block(const T* rows, int64_t count, int64_t chunk, int64_t first, int64_t offset) {
    const int64_t depth = min(kDepth, s_.inputs - first);
    A values[kChunk * kDepth], transposed[kDepth * kChunk];
    for (int64_t r = 0; r < count; ++r) {
      copy_row(rows + r * p_.x.row + first, depth, kDepth, values + r * kDepth);
    }
    std::memset(values + count * kDepth, 0, static_cast<size_t>((kChunk - count) * kDepth) * sizeof(A));
    for (int64_t r = 0; r < kChunk; r += L::kCount) {
      for (int64_t k = 0; k < depth; k += L::kCount) {
        transpose<A>(values + r * kDepth + k, kDepth, transposed + k * kChunk + r, kChunk);
      }
    }
    int32_t* list = nonzero_ + chunk * s_.inputs + offset;
    A* to = x_ + (chunk * s_.inputs + offset) * kChunk;
    int64_t found = 0;
    for (int64_t k = 0; k < depth; ++k) {
      const A* from = transposed + k * kChunk;
      if (any_nonzero(from)) {
        std::memcpy(to + found * kChunk, from, kChunk * sizeof(A));
        list[found++] = static_cast<int32_t>(first + k);
      }
    }
    return found;
  }

  static bool any_nonzero(const A* values) {
    int64_t nonzero = 0;
    for (int64_t r = 0; r < kChunk; ++r) {
      nonzero += values[r] != A(0);
    }
    return nonzero > 0;
  }

  // `first`: index of the input at weights[0]. `next`: weights to prefetch.
  void add_block(int64_t block, int64_t count, const A* weights, int64_t pitch, int64_t first, const T* next) {
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      const int32_t* begin = begin_ + chunk * (blocks_ + 1) + block;
      const GatherIndex inputs{nonzero_ + chunk * s_.inputs + begin[0], first, 1};
      const A* x = x_ + (chunk * s_.inputs + begin[0]) * kChunk;
      A* sums = sums_ + chunk * kBlock * kChunk;
      const int64_t vectors = min(kTileVectors, linear_blocks(s_.rows - chunk * kChunk, L::kCount));
      for_groups(count, kRows, [&](int64_t o, int64_t size) {
        if (chunk == 0) {
          for (int64_t i = o; i < o + size; ++i) {
            prefetch_row<kDepth>(next + i * p_.weight.row);
          }
        }
        with_constant(size, [&](auto group) {
          add_tile<decltype(group)::value>(weights + o * pitch, pitch, inputs, x, begin[1] - begin[0], vectors,
                                           sums + o * kChunk);
        });
      });
    }
  }

  // Accumulates a tile of kGroup outputs and the first `vectors` vectors of rows.
  template <int kGroup>
  static void add_tile(const A* weights, int64_t pitch, const GatherIndex& inputs, const A* x, int64_t count,
                       int64_t vectors, A* sums) {
    with_constant(vectors, [&](auto constant) {
      if constexpr (decltype(constant)::value <= kTileVectors) {
        RegisterTile<A, kGroup, decltype(constant)::value> tile;
        tile.load(sums, kChunk);
        tile.add(weights, pitch, inputs, x, StridedIndex{kChunk}, count);
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
      for (int64_t r = row; r < min(row + L::kCount, s_.rows); ++r) {
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
  A* sums_;           // [chunks, kBlock, kChunk]
  A* panel_;          // [kBlock, kDepth] widened weights
  A* x_;              // [chunks, nonzero inputs, kChunk]
  int32_t* nonzero_;  // [chunks, nonzero inputs]
  int32_t* begin_;    // [chunks, blocks + 1]
};

}  // namespace
}  // namespace PFL_CAPABILITY
}  // namespace pfl
