// CPU kernels of `orthogonal_project`, compiled once per instruction set into namespace PFL_CAPABILITY.
// Both products, f A and (f A) A^T, are those of cpu/simd/tile.h.
#include "ops/orthogonal_project/problem.h"

#include "cpu/simd/convert.h"
#include "cpu/simd/tile.h"
#include "cpu/simd/transpose.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

template <class A>
int64_t whole_vectors(int64_t count) {
  return (count + Lanes<A>::kCount - 1) / Lanes<A>::kCount * Lanes<A>::kCount;
}

// Copies `depth` rows and `count` columns of a basis, columns zero-padded to whole vectors.
template <class T, class A>
void pack(const T* basis, int64_t rank, int64_t depth, int64_t count, A* panel) {
  for (int64_t i = 0; i < depth; ++i) {
    A buffer[kProjectBlock];
    const A* row = widen(basis + i * rank, count, buffer);
    for (int64_t k = 0; k < count; k += Lanes<A>::kCount) {
      Lanes<A>::store(Lanes<A>::load(row + k, count - k), panel + i * kProjectBlock + k);
    }
  }
}

// Transposes `count` rows and `depth` columns of a basis, zero-padded to whole vectors of rows.
template <class T, class A>
void pack_transposed(const T* basis, int64_t rank, int64_t count, int64_t depth, A* panel) {
  constexpr int64_t kCount = Lanes<A>::kCount;
  for (int64_t first = 0; first < count; first += kCount) {
    A buffers[kCount][kProjectDepth];
    const A* row[kCount];
    for (int64_t r = 0; r < kCount; ++r) {
      row[r] = buffers[r];
      if (first + r < count) {
        row[r] = widen(basis + (first + r) * rank, depth, buffers[r]);
      } else {
        std::memset(buffers[r], 0, sizeof buffers[r]);
      }
    }
    transpose_rows(row, depth, panel + first, kProjectBlock);
  }
}

// Projection of a block of samples of one client onto one subspace.
template <class T>
struct Projection {
  using A = accumulate_t<T>;
  static constexpr int64_t kCount = Lanes<A>::kCount;
  const T* basis;
  int64_t rank, features, rows;
  Matrix<A> coordinates;  // [rows, padded rank]

  Projection(const ProjectSizes& sizes, const Subspace& space, int64_t client, int64_t first)
      : basis(static_cast<const T*>(space.basis) + client * space.stride),
        rank(space.rank),
        features(sizes.features),
        rows(min(kProjectRows, sizes.samples - first)),
        coordinates{static_cast<A*>(space.coordinates) + (client * sizes.samples + first) * space.padded_rank,
                    space.padded_rank, 1} {
  }

  // coordinates = values * basis. load(feature, count) returns the values of all samples from `feature` on.
  template <class Load>
  void find_coordinates(Load load) const {
    if (rank == 0) {
      return;
    }
    std::memset(coordinates.data, 0, static_cast<size_t>(rows * coordinates.row) * sizeof(A));
    for (int64_t begin = 0; begin < features; begin += kProjectDepth) {
      const int64_t depth = min(kProjectDepth, features - begin);
      const Matrix<const A> values = load(begin, depth);
      int64_t k = 0;
      if constexpr (sizeof(T) == sizeof(A)) {
        k = rank / kCount * kCount;
        multiply(values, {basis + begin * rank, rank, 1}, rows, depth, k, coordinates, true);
      }
      for (; k < rank; k += kProjectBlock) {
        const int64_t count = min(kProjectBlock, rank - k);
        A panel[kProjectDepth * kProjectBlock];
        pack(basis + begin * rank + k, rank, depth, count, panel);
        multiply(values, {panel, kProjectBlock, 1}, rows, depth, whole_vectors<A>(count), shifted(k), true);
      }
    }
  }

  // block[r][0 .. kProjectBlock) = coordinates * basis^T from feature `begin` on, zero-padded.
  void expand(int64_t begin, A (*block)[kProjectBlock]) const {
    const int64_t count = min(kProjectBlock, features - begin), columns = whole_vectors<A>(count);
    std::memset(block, 0, static_cast<size_t>(rows) * sizeof *block);
    for (int64_t k = 0; k < rank; k += kProjectDepth) {
      const int64_t depth = min(kProjectDepth, rank - k);
      A panel[kProjectDepth * kProjectBlock];
      pack_transposed(basis + begin * rank + k, rank, count, depth, panel);
      const Matrix<A> left = shifted(k);
      multiply({left.data, left.row, 1}, {panel, kProjectBlock, 1}, rows, depth, columns, {block[0], kProjectBlock, 1},
               true);
    }
  }

  Matrix<A> shifted(int64_t k) const {
    return {coordinates.data + k, coordinates.row, 1};
  }
};

template <class A>
void relu(A* values) {
  for (int64_t j = 0; j < kProjectBlock; ++j) {
    values[j] = values[j] < A(0) ? A(0) : values[j];
  }
}

template <class A>
void blend(const A* __restrict g, const A* __restrict p, A share_g, A share_p, A* __restrict fused) {
  for (int64_t j = 0; j < kProjectBlock; ++j) {
    fused[j] = share_g * g[j] + share_p * p[j];
  }
}

// Sums 64 bytes of lanes on every instruction set, so all give the same bits.
template <class A>
A dot(const A* g, const A* p) {
  constexpr int64_t kLanes = 64 / sizeof(A), kCount = Lanes<A>::kCount;
  typename Lanes<A>::Vector sum[kLanes / kCount] = {};
  for (int64_t j = 0; j < kProjectBlock; j += kLanes) {
    for (int64_t v = 0; v < kLanes / kCount; ++v) {
      const int64_t at = j + v * kCount;
      sum[v] = multiply_add(Lanes<A>::load(g + at), Lanes<A>::load(p + at), sum[v]);
    }
  }
  A lanes[kLanes], total = A(0);
  std::memcpy(lanes, sum, sizeof lanes);
  for (const A lane : lanes) {
    total = total + lane;
  }
  return total;
}

template <class T>
void forward_block(const OrthogonalProject& problem, int64_t client, int64_t first) {
  using A = accumulate_t<T>;
  const ProjectSizes& sizes = problem.sizes;
  const int64_t offset = (client * sizes.samples + first) * sizes.features;
  const Projection<T> onto_g(sizes, problem.of_g, client, first), onto_p(sizes, problem.of_p, client, first);
  const int64_t rows = onto_g.rows;
  A buffers[kProjectRows][kProjectDepth];
  const auto features_of = [&](const void* f) {
    return [&, f](int64_t begin, int64_t count) -> Matrix<const A> {
      const T* values = static_cast<const T*>(f) + offset + begin;
      if constexpr (sizeof(T) == sizeof(A)) {
        return {values, sizes.features, 1};
      } else {
        for (int64_t r = 0; r < rows; ++r) {
          widen(values + r * sizes.features, count, buffers[r]);
        }
        return {buffers[0], kProjectDepth, 1};
      }
    };
  };
  onto_g.find_coordinates(features_of(problem.f_g));
  onto_p.find_coordinates(features_of(problem.f_p));
  const A share_g = static_cast<A>(sizes.alpha), share_p = static_cast<A>(1 - sizes.alpha);
  A inner[kProjectRows] = {};
  for (int64_t begin = 0; begin < sizes.features; begin += kProjectBlock) {
    const int64_t count = min(kProjectBlock, sizes.features - begin);
    A g[kProjectRows][kProjectBlock], p[kProjectRows][kProjectBlock], fused[kProjectBlock];
    onto_g.expand(begin, g);
    onto_p.expand(begin, p);
    for (int64_t r = 0; r < rows; ++r) {
      if (sizes.relu) {
        relu(g[r]);
        relu(p[r]);
      }
      blend(g[r], p[r], share_g, share_p, fused);
      inner[r] = inner[r] + dot(g[r], p[r]);
      const int64_t at = offset + r * sizes.features + begin;
      narrow(g[r], count, static_cast<T*>(problem.g) + at);
      narrow(p[r], count, static_cast<T*>(problem.p) + at);
      narrow(fused, count, static_cast<T*>(problem.fused) + at);
    }
  }
  narrow(inner, rows, static_cast<T*>(problem.inner) + client * sizes.samples + first);
}

// Backward of one side, g or p: its result and output gradient, the other side's result, and its weight in `fused`.
template <class T>
struct Pullback {
  using A = accumulate_t<T>;
  const OrthogonalProjectBackward& problem;
  const void *result, *cotangent, *other;
  A share;

  // Gradient of the projected features of one sample, `count` elements from `at` on.
  void find_cotangent(int64_t sample, int64_t at, int64_t count, A* __restrict out) const {
    A buffer[kProjectDepth];
    for (int64_t j = 0; j < count; ++j) {
      out[j] = A(0);
    }
    if (cotangent) {
      const A* v = widen(static_cast<const T*>(cotangent) + at, count, buffer);
      for (int64_t j = 0; j < count; ++j) {
        out[j] = v[j];
      }
    }
    if (problem.v_fused) {
      add_scaled(static_cast<const T*>(problem.v_fused) + at, share, count, out);
    }
    if (problem.v_inner) {
      A v_buffer;
      const A v = *widen(static_cast<const T*>(problem.v_inner) + sample, 1, &v_buffer);
      add_scaled(static_cast<const T*>(other) + at, v, count, out);
    }
    if (problem.sizes.relu) {
      const A* value = widen(static_cast<const T*>(result) + at, count, buffer);
      for (int64_t j = 0; j < count; ++j) {
        out[j] = value[j] <= A(0) ? A(0) : out[j];
      }
    }
  }

  static void add_scaled(const T* row, A factor, int64_t count, A* __restrict out) {
    A buffer[kProjectDepth];
    const A* values = widen(row, count, buffer);
    for (int64_t j = 0; j < count; ++j) {
      out[j] = out[j] + factor * values[j];
    }
  }

  void run(const Subspace& space, int64_t client, int64_t first, void* grad) const {
    const ProjectSizes& sizes = problem.sizes;
    const Projection<T> onto(sizes, space, client, first);
    const int64_t sample = client * sizes.samples + first;
    A buffers[kProjectRows][kProjectDepth];
    onto.find_coordinates([&](int64_t begin, int64_t count) -> Matrix<const A> {
      for (int64_t r = 0; r < onto.rows; ++r) {
        find_cotangent(sample + r, (sample + r) * sizes.features + begin, count, buffers[r]);
      }
      return {buffers[0], kProjectDepth, 1};
    });
    for (int64_t begin = 0; begin < sizes.features; begin += kProjectBlock) {
      A block[kProjectRows][kProjectBlock];
      onto.expand(begin, block);
      for (int64_t r = 0; r < onto.rows; ++r) {
        narrow(block[r], min(kProjectBlock, sizes.features - begin),
               static_cast<T*>(grad) + (sample + r) * sizes.features + begin);
      }
    }
  }
};

template <class T>
void backward_block(const OrthogonalProjectBackward& p, int64_t client, int64_t first) {
  using A = accumulate_t<T>;
  if (p.grad_g) {
    Pullback<T>{p, p.g, p.v_g, p.p, static_cast<A>(p.sizes.alpha)}.run(p.of_g, client, first, p.grad_g);
  }
  if (p.grad_p) {
    Pullback<T>{p, p.p, p.v_p, p.g, static_cast<A>(1 - p.sizes.alpha)}.run(p.of_p, client, first, p.grad_p);
  }
}

template <class T>
void run_block(const OrthogonalProject& p, int64_t client, int64_t first) {
  forward_block<T>(p, client, first);
}
template <class T>
void run_block(const OrthogonalProjectBackward& p, int64_t client, int64_t first) {
  backward_block<T>(p, client, first);
}

template <class Problem>
void run_blocks(const Problem& p, int64_t begin, int64_t end) {
  const int64_t blocks = project_row_blocks(p.sizes.samples);
  for (int64_t task = begin; task < end; ++task) {
    const int64_t client = task / blocks, first = task % blocks * kProjectRows;
    with_type(p.sizes.dtype, [&](auto type) { run_block<decltype(type)>(p, client, first); });
  }
}

}  // namespace

void orthogonal_project(const OrthogonalProject& p, int64_t begin, int64_t end) {
  run_blocks(p, begin, end);
}

void orthogonal_project_backward(const OrthogonalProjectBackward& p, int64_t begin, int64_t end) {
  run_blocks(p, begin, end);
}

}  // namespace PFL_CAPABILITY
}  // namespace pfl
