// CPU kernels of `orthogonal_project`, compiled once per instruction set into namespace PFL_CAPABILITY.
// Both products, f A and (f A) A^T, use the register tiles of cpu_tiles.h.
#include "ops/orthogonal_project/cpu_tiles.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

// Projection of a block of samples of one client onto one subspace.
template <class T>
struct Projection {
  using A = accumulate_t<T>;
  static constexpr int64_t kPanel = Lanes<A>::kPanel;
  const T* basis;
  int64_t rank, features, rows;
  A* coordinates[kRows];

  Projection(const ProjectSizes& sizes, const Subspace& space, int64_t client, int64_t first)
      : basis(static_cast<const T*>(space.basis) + client * space.stride),
        rank(space.rank),
        features(sizes.features),
        rows(min(kRows, sizes.samples - first)) {
    for (int64_t r = 0; r < rows; ++r) {
      coordinates[r] = static_cast<A*>(space.coordinates) + (client * sizes.samples + first + r) * space.padded_rank;
      for (int64_t k = 0; k < space.padded_rank; ++k) {
        coordinates[r][k] = A(0);
      }
    }
  }

  // coordinates = values * basis. load(feature, count, row) sets row[r] to values of sample r from `feature` on.
  template <class Load>
  void find_coordinates(Load load) const {
    for (int64_t begin = 0; begin < features; begin += kDepth) {
      const int64_t depth = min(kDepth, features - begin);
      const A* row[kRows];
      load(begin, depth, row);
      for (int64_t k = 0; k < rank; k += kPanel) {
        add_coordinates(row, begin, depth, k);
      }
    }
  }

  void add_coordinates(const A* const* row, int64_t begin, int64_t depth, int64_t k) const {
    const int64_t count = min(kPanel, rank - k);
    const T* columns = basis + begin * rank + k;
    A* out[kRows];
    for (int64_t r = 0; r < rows; ++r) {
      out[r] = coordinates[r] + k;
    }
    if constexpr (!kNarrow<T>) {
      if (count == kPanel) {
        return add_products_of_rows<A, 2>(row, rows, columns, rank, depth, out);
      }
      if (count == kPanel / 2) {
        return add_products_of_rows<A, 1>(row, rows, columns, rank, depth, out);
      }
    }
    A panel[kDepth * kPanel];
    pack(columns, rank, depth, count, panel);
    if (count <= kPanel / 2) {
      add_products_of_rows<A, 1>(row, rows, panel, kPanel, depth, out);
    } else {
      add_products_of_rows<A, 2>(row, rows, panel, kPanel, depth, out);
    }
  }

  // block[r][0 .. kBlock) = coordinates * basis^T from feature `begin` on, zero-padded.
  void expand(int64_t begin, A (*block)[kBlock]) const {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < kBlock; ++j) {
        block[r][j] = A(0);
      }
    }
    A panel[kDepth * kPanel];
    for (int64_t j = 0; j < kBlock && begin + j < features; j += kPanel) {
      A* out[kRows];
      for (int64_t r = 0; r < rows; ++r) {
        out[r] = block[r] + j;
      }
      for (int64_t k = 0; k < rank; k += kDepth) {
        const int64_t depth = min(kDepth, rank - k);
        const A* row[kRows];
        for (int64_t r = 0; r < rows; ++r) {
          row[r] = coordinates[r] + k;
        }
        pack_transposed(basis + (begin + j) * rank + k, rank, min(kPanel, features - begin - j), depth, panel);
        add_products_of_rows<A, 2>(row, rows, panel, kPanel, depth, out);
      }
    }
  }
};

template <class A>
void relu(A* values) {
  for (int64_t j = 0; j < kBlock; ++j) {
    values[j] = values[j] < A(0) ? A(0) : values[j];
  }
}

template <class A>
void blend(const A* __restrict g, const A* __restrict p, A share_g, A share_p, A* __restrict fused) {
  for (int64_t j = 0; j < kBlock; ++j) {
    fused[j] = share_g * g[j] + share_p * p[j];
  }
}

template <class A>
A dot(const A* g, const A* p) {
  using Vector = typename Lanes<A>::Vector;
  using Unaligned = typename Lanes<A>::Unaligned;
  Vector sum = {};
  for (int64_t j = 0; j < kBlock; j += Lanes<A>::kCount) {
    sum = sum + *reinterpret_cast<const Unaligned*>(g + j) * *reinterpret_cast<const Unaligned*>(p + j);
  }
  A total = A(0);
  for (int64_t lane = 0; lane < Lanes<A>::kCount; ++lane) {
    total = total + sum[lane];
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
  A buffers[kRows][kDepth];
  const auto features_of = [&](const void* f) {
    return [&, f](int64_t begin, int64_t count, const A** row) {
      for (int64_t r = 0; r < rows; ++r) {
        row[r] = widen(static_cast<const T*>(f) + offset + r * sizes.features + begin, count, buffers[r]);
      }
    };
  };
  onto_g.find_coordinates(features_of(problem.f_g));
  onto_p.find_coordinates(features_of(problem.f_p));
  const A share_g = static_cast<A>(sizes.alpha), share_p = static_cast<A>(1 - sizes.alpha);
  A inner[kRows] = {};
  for (int64_t begin = 0; begin < sizes.features; begin += kBlock) {
    const int64_t count = min(kBlock, sizes.features - begin);
    A g[kRows][kBlock], p[kRows][kBlock], fused[kBlock];
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
    A buffer[kDepth];
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
    A buffer[kDepth];
    const A* values = widen(row, count, buffer);
    for (int64_t j = 0; j < count; ++j) {
      out[j] = out[j] + factor * values[j];
    }
  }

  void run(const Subspace& space, int64_t client, int64_t first, void* grad) const {
    const ProjectSizes& sizes = problem.sizes;
    const Projection<T> onto(sizes, space, client, first);
    const int64_t sample = client * sizes.samples + first;
    A buffers[kRows][kDepth];
    onto.find_coordinates([&](int64_t begin, int64_t count, const A** row) {
      for (int64_t r = 0; r < onto.rows; ++r) {
        find_cotangent(sample + r, (sample + r) * sizes.features + begin, count, buffers[r]);
        row[r] = buffers[r];
      }
    });
    for (int64_t begin = 0; begin < sizes.features; begin += kBlock) {
      A block[kRows][kBlock];
      onto.expand(begin, block);
      for (int64_t r = 0; r < onto.rows; ++r) {
        narrow(block[r], min(kBlock, sizes.features - begin),
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
    const int64_t client = task / blocks, first = task % blocks * kRows;
    switch (p.sizes.dtype) {
      case Float::kDouble:
        run_block<double>(p, client, first);
        break;
      case Float::kFloat:
        run_block<float>(p, client, first);
        break;
      case Float::kBFloat16:
        run_block<BFloat16>(p, client, first);
        break;
      case Float::kHalf:
        run_block<Half>(p, client, first);
        break;
    }
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
