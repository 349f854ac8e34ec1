// CPU kernels of `aggregate`, compiled once per instruction set into namespace PFL_CAPABILITY.
// Products are added client by client and never fused (-ffp-contract=off), so all instruction sets, all thread counts
// and the CUDA kernel give the same bits.
#include "ops/aggregate/problem.h"

#include "cpu/simd/convert.h"
#include "cpu/simd/lanes.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

constexpr int64_t kTile = kAggregateTile;
constexpr int64_t kRows = 4;      // client rows per pass: each sum is loaded and stored once per four rows
constexpr int64_t kMixtures = 8;  // mixtures per read of a row
constexpr int64_t kLanes = 16;    // lanes of a dot product, for every vector width

// Not std::fill: an inline function that all instruction sets would share (see convert.h).
template <class A>
void clear(A* values, int64_t count) {
  for (int64_t j = 0; j < count; ++j) {
    values[j] = A(0);
  }
}

// At most kTile columns of one tensor.
struct Tile {
  int64_t tensor;
  int64_t begin;
  int64_t count;
};

Tile find_tile(const AggregateRows& rows, const int64_t* first_tile, int64_t tensors, int64_t index) {
  // Binary search for the last tensor that starts at or before the tile; this skips empty tensors, which have no tiles.
  int64_t tensor = 0;
  for (int64_t beyond = tensors; beyond - tensor > 1;) {
    const int64_t middle = (tensor + beyond) / 2;
    (first_tile[middle] <= index ? tensor : beyond) = middle;
  }
  const int64_t begin = (index - first_tile[tensor]) * kTile;
  return {tensor, begin, min(kTile, rows.numel[tensor] - begin)};
}

template <class T>
const T* row_of(const AggregateRows& rows, int64_t clients, int64_t tensor, int64_t client) {
  if (rows.table) {
    return static_cast<const T*>(rows.table[tensor * clients + client]);
  }
  return static_cast<const T*>(rows.base[tensor]) + client * rows.stride[tensor];
}

template <class A>
void add_rows(A* __restrict sum, const A* const* x, const A* w, int64_t count) {
  const A *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3];
  const A w0 = w[0], w1 = w[1], w2 = w[2], w3 = w[3];
  for (int64_t j = 0; j < count; ++j) {
    sum[j] = (((sum[j] + w0 * x0[j]) + w1 * x1[j]) + w2 * x2[j]) + w3 * x3[j];
  }
}

template <class A>
void add_row(A* __restrict sum, const A* __restrict x, A w, int64_t count) {
  for (int64_t j = 0; j < count; ++j) {
    sum[j] = sum[j] + w * x[j];
  }
}

template <class A>
A dot(const A* __restrict x, const A* __restrict y, int64_t count) {
  A lanes[kLanes] = {};
  int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = lanes[lane] + x[j + lane] * y[j + lane];
    }
  }
  for (int64_t lane = 0; j < count; ++j, ++lane) {
    lanes[lane] = lanes[lane] + x[j] * y[j];
  }
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t lane = 0; lane < width; ++lane) {
      lanes[lane] = lanes[lane] + lanes[lane + width];
    }
  }
  return lanes[0];
}

// Sums of some mixtures for some vectors of columns, in registers. Every sum adds clients in order, as add_row does.
template <class A, int kCount, int kVectors>
void mix_columns(const AggregateForward& p, int64_t tensor, int64_t column, const A* weights, A* out) {
  using L = Lanes<A>;
  const int64_t clients = p.sizes.clients, numel = p.rows.numel[tensor];
  typename L::Vector sum[kCount][kVectors] = {};
  for (int64_t n = 0; n < clients; ++n) {
    const A* x = row_of<A>(p.rows, clients, tensor, n) + column;
    typename L::Vector values[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      values[v] = L::load(x + v * L::kCount);
    }
#pragma GCC unroll 4
    for (int m = 0; m < kCount; ++m) {
      const typename L::Vector weight = L::broadcast(weights + m * clients + n);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        sum[m][v] = sum[m][v] + weight * values[v];
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kCount * kVectors; ++i) {
    L::store(sum[i / kVectors][i % kVectors], out + i / kVectors * numel + i % kVectors * L::kCount);
  }
}

// All mixtures of the columns of a tile that fill whole register tiles. Returns their number.
template <class A>
int64_t mix_tile(const AggregateForward& p, const Tile& tile) {
  constexpr int kTogether = 4, kVectors = kVectorBytes == 64 ? 4 : 2;  // sums and values fit into the registers
  constexpr int64_t kStep = kVectors * Lanes<A>::kCount;
  const int64_t numel = p.rows.numel[tile.tensor], group = tile.tensor / (p.sizes.tensors / p.sizes.groups);
  const A* weights = static_cast<const A*>(p.weights) + group * p.sizes.mixtures * p.sizes.clients;
  int64_t j = 0;
  for (; j + kStep <= tile.count; j += kStep) {
    const int64_t column = tile.begin + j;
    A* out = static_cast<A*>(p.out[tile.tensor]) + column;
    int64_t m = 0;
    for (; m + kTogether <= p.sizes.mixtures; m += kTogether) {
      mix_columns<A, kTogether, kVectors>(p, tile.tensor, column, weights + m * p.sizes.clients, out + m * numel);
    }
    for (; m < p.sizes.mixtures; ++m) {
      mix_columns<A, 1, kVectors>(p, tile.tensor, column, weights + m * p.sizes.clients, out + m * numel);
    }
  }
  return j;
}

// Mixtures [first, first + mixtures) of one tile. Each row is widened once and added to all of them while in cache.
template <class T>
void forward_tile(const AggregateForward& p, const Tile& tile, int64_t first, int64_t mixtures, int64_t* nonfinite) {
  using A = accumulate_t<T>;
  const int64_t clients = p.sizes.clients;
  const int64_t group = tile.tensor / (p.sizes.tensors / p.sizes.groups);
  const A* weights = static_cast<const A*>(p.weights) + (group * p.sizes.mixtures + first) * clients;
  A sums[kMixtures][kTile];
  A buffers[kRows][kTile];
  for (int64_t m = 0; m < mixtures; ++m) {
    clear(sums[m], tile.count);
  }
  for (int64_t n = 0; n < clients; n += kRows) {
    const int64_t rows = min(kRows, clients - n);
    const A* x[kRows];
    for (int64_t r = 0; r < rows; ++r) {
      x[r] = widen(row_of<T>(p.rows, clients, tile.tensor, n + r) + tile.begin, tile.count, buffers[r]);
    }
    for (int64_t m = 0; m < mixtures; ++m) {
      const A* w = weights + m * clients + n;
      if (rows == kRows) {
        add_rows(sums[m], x, w, tile.count);
      } else {
        for (int64_t r = 0; r < rows; ++r) {
          add_row(sums[m], x[r], w[r], tile.count);
        }
      }
    }
    // Counts after the sums, when the rows are in cache: loading four rows at once is twice as fast as one by one.
    for (int64_t r = 0; nonfinite && r < rows; ++r) {
      nonfinite[group * clients + n + r] += count_nonfinite(x[r], tile.count);
    }
  }
  T* out = static_cast<T*>(p.out[tile.tensor]) + first * p.rows.numel[tile.tensor] + tile.begin;
  for (int64_t m = 0; m < mixtures; ++m) {
    narrow(sums[m], tile.count, out + m * p.rows.numel[tile.tensor]);
  }
}

template <class T>
void forward(const AggregateForward& p, const int64_t* first_tile, int64_t begin, int64_t end, int64_t* nonfinite) {
  for (int64_t index = begin; index < end; ++index) {
    Tile tile = find_tile(p.rows, first_tile, p.sizes.tensors, index);
    if constexpr (sizeof(T) == sizeof(accumulate_t<T>)) {
      if (p.sizes.mixtures > 1 && !nonfinite) {
        const int64_t mixed = mix_tile<T>(p, tile);
        tile = {tile.tensor, tile.begin + mixed, tile.count - mixed};
      }
    }
    for (int64_t m = 0; m < p.sizes.mixtures; m += kMixtures) {
      // Counts values once, with the first mixtures: all mixtures read the same rows.
      forward_tile<T>(p, tile, m, min(kMixtures, p.sizes.mixtures - m), m == 0 ? nonfinite : nullptr);
    }
  }
}

template <class T>
void backward_tile(const AggregateBackward& p, const Tile& tile, double* grad_weights) {
  using A = accumulate_t<T>;
  const int64_t clients = p.sizes.clients;
  const int64_t mixtures = p.sizes.mixtures;
  const int64_t numel = p.rows.numel[tile.tensor];
  const int64_t pairs = (tile.tensor / (p.sizes.tensors / p.sizes.groups)) * mixtures * clients;
  const A* weights = static_cast<const A*>(p.weights) + pairs;
  const T* grads = static_cast<const T*>(p.grads[tile.tensor]) + tile.begin;
  A buffers[kMixtures][kTile];
  A row_buffer[kTile];
  A sum[kTile];
  for (int64_t n = 0; n < clients; ++n) {
    const A* x = nullptr;
    if (grad_weights) {
      x = widen(row_of<T>(p.rows, clients, tile.tensor, n) + tile.begin, tile.count, row_buffer);
    }
    if (p.grad_rows) {
      clear(sum, tile.count);
    }
    for (int64_t m = 0; m < mixtures; ++m) {
      // With few mixtures, all clients reuse the widened gradients in the buffers.
      const bool kept = mixtures <= kMixtures && n > 0;
      A* buffer = buffers[mixtures <= kMixtures ? m : 0];
      const A* g = kept && sizeof(T) < sizeof(A) ? buffer : widen(grads + m * numel, tile.count, buffer);
      if (p.grad_rows) {
        add_row(sum, g, weights[m * clients + n], tile.count);
      }
      if (grad_weights) {
        grad_weights[pairs + m * clients + n] += static_cast<double>(dot(g, x, tile.count));
      }
    }
    if (p.grad_rows) {
      narrow(sum, tile.count, static_cast<T*>(p.grad_rows[tile.tensor]) + n * numel + tile.begin);
    }
  }
}

template <class T>
void backward(const AggregateBackward& p, const int64_t* first_tile, int64_t begin, int64_t end) {
  const int64_t tiles = first_tile[p.sizes.tensors];
  const int64_t pairs = p.sizes.groups * p.sizes.mixtures * p.sizes.clients;
  for (int64_t part = begin; part < end; ++part) {
    double* grad_weights = p.grad_weights ? p.grad_weights + part * pairs : nullptr;
    for (int64_t index = tiles * part / p.parts; index < tiles * (part + 1) / p.parts; ++index) {
      backward_tile<T>(p, find_tile(p.rows, first_tile, p.sizes.tensors, index), grad_weights);
    }
  }
}

}  // namespace

void aggregate_forward(const AggregateForward& p, const int64_t* first_tile, int64_t begin, int64_t end,
                       int64_t* nonfinite) {
  with_type(p.sizes.dtype, [&](auto type) { forward<decltype(type)>(p, first_tile, begin, end, nonfinite); });
}

void aggregate_backward(const AggregateBackward& p, const int64_t* first_tile, int64_t begin, int64_t end) {
  with_type(p.sizes.dtype, [&](auto type) { backward<decltype(type)>(p, first_tile, begin, end); });
}

}  // namespace PFL_CAPABILITY
}  // namespace pfl
