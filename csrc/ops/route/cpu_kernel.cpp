// CPU kernels of `route`, compiled once per instruction set into namespace PFL_CAPABILITY. Elements are independent, so
// any split of rows over threads gives the same bits.
#include "ops/route/problem.h"

#include "cpu/simd/rows.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

// Consecutive columns of one row.
struct Tile {
  int64_t client;
  int64_t element;  // first element in [b, K], the counter of the noise
  int64_t h;        // first element in [C, b, K]
  int64_t a;        // first logit in [C, b, 2K]
  int64_t count;
};

template <class Work>
inline void for_each_tile(const RouteSizes& sizes, int64_t begin, int64_t end, Work work) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t client = row / sizes.rows;
    for (int64_t j = 0; j < sizes.features; j += kRowTile) {
      work(Tile{client, (row - client * sizes.rows) * sizes.features + j, row * sizes.features + j,
                row * 2 * sizes.features + j, tile_count(sizes.features, j)});
    }
  }
}

template <bool kNoise, class Real>
void split(const Real* __restrict h, const Real* __restrict a0, const Real* __restrict a1, const Real* __restrict noise,
           Real scale, int64_t count, Real* __restrict global_part, Real* __restrict personal_part) {
  for (int64_t j = 0; j < count; ++j) {
    const Real difference = kNoise ? (a0[j] - a1[j]) + noise[j] : a0[j] - a1[j];
    const Shares<Real> share = shares_of(difference * scale);
    global_part[j] = share.global * h[j];
    personal_part[j] = share.personal * h[j];
  }
}

template <bool kNoise, class Real>
void split_backward(const Real* __restrict grad_global, const Real* __restrict grad_personal, const Real* __restrict h,
                    const Real* __restrict a0, const Real* __restrict a1, const Real* __restrict noise, Real scale,
                    int64_t count, Real* __restrict grad_h, Real* __restrict grad_a0, Real* __restrict grad_a1) {
  for (int64_t j = 0; j < count; ++j) {
    const Real difference = kNoise ? (a0[j] - a1[j]) + noise[j] : a0[j] - a1[j];
    const Shares<Real> share = shares_of(difference * scale);
    const Real g = grad_global[j], p = grad_personal[j];
    grad_h[j] = share.global * g + share.personal * p;
    const Real d = (share.global * share.personal * scale) * (h[j] * (g - p));
    grad_a0[j] = d;
    grad_a1[j] = -d;
  }
}

template <class T, bool kNoise>
void forward(const RouteForward& p, int64_t begin, int64_t end) {
  using A = accumulate_t<T>;
  const A scale = static_cast<A>(1.0 / p.inputs.tau);
  for_each_tile(p.sizes, begin, end, [&](const Tile& tile) {
    A noise[kNoise ? kRowTile : 1], buffers[5][sizeof(T) < sizeof(A) ? kRowTile : 1];
    if (kNoise) {
      logistic_noise(p.inputs.seeds[tile.client], tile.element, tile.count, noise);
    }
    const T* a = static_cast<const T*>(p.inputs.a) + tile.a;
    T* global_part = static_cast<T*>(p.global_part) + tile.h;
    T* personal_part = static_cast<T*>(p.personal_part) + tile.h;
    A* wide_global = wide_row(global_part, buffers[3]);
    A* wide_personal = wide_row(personal_part, buffers[4]);
    split<kNoise>(widen(static_cast<const T*>(p.inputs.h) + tile.h, tile.count, buffers[0]),
                  widen(a, tile.count, buffers[1]), widen(a + p.sizes.features, tile.count, buffers[2]), noise, scale,
                  tile.count, wide_global, wide_personal);
    round_row(wide_global, tile.count, global_part);
    round_row(wide_personal, tile.count, personal_part);
  });
}

template <class T, bool kNoise>
void backward(const RouteBackward& p, int64_t begin, int64_t end) {
  using A = accumulate_t<T>;
  const A scale = static_cast<A>(1.0 / p.inputs.tau);
  for_each_tile(p.sizes, begin, end, [&](const Tile& tile) {
    A noise[kNoise ? kRowTile : 1], buffers[8][sizeof(T) < sizeof(A) ? kRowTile : 1];
    if (kNoise) {
      logistic_noise(p.inputs.seeds[tile.client], tile.element, tile.count, noise);
    }
    const T* a = static_cast<const T*>(p.inputs.a) + tile.a;
    T* grad_h = static_cast<T*>(p.grad_h) + tile.h;
    T* grad_a = static_cast<T*>(p.grad_a) + tile.a;
    A* wide_h = wide_row(grad_h, buffers[5]);
    A* wide_a0 = wide_row(grad_a, buffers[6]);
    A* wide_a1 = wide_row(grad_a + p.sizes.features, buffers[7]);
    split_backward<kNoise>(widen(static_cast<const T*>(p.grad_global) + tile.h, tile.count, buffers[0]),
                           widen(static_cast<const T*>(p.grad_personal) + tile.h, tile.count, buffers[1]),
                           widen(static_cast<const T*>(p.inputs.h) + tile.h, tile.count, buffers[2]),
                           widen(a, tile.count, buffers[3]), widen(a + p.sizes.features, tile.count, buffers[4]), noise,
                           scale, tile.count, wide_h, wide_a0, wide_a1);
    round_row(wide_h, tile.count, grad_h);
    round_row(wide_a0, tile.count, grad_a);
    round_row(wide_a1, tile.count, grad_a + p.sizes.features);
  });
}

template <class T>
void dispatch(const RouteForward& p, int64_t begin, int64_t end) {
  p.inputs.seeds ? forward<T, true>(p, begin, end) : forward<T, false>(p, begin, end);
}
template <class T>
void dispatch(const RouteBackward& p, int64_t begin, int64_t end) {
  p.inputs.seeds ? backward<T, true>(p, begin, end) : backward<T, false>(p, begin, end);
}

template <class Problem>
void dispatch_type(const Problem& p, int64_t begin, int64_t end) {
  with_type(p.sizes.dtype, [&](auto type) { dispatch<decltype(type)>(p, begin, end); });
}

}  // namespace

void route_forward(const RouteForward& p, int64_t begin, int64_t end) {
  dispatch_type(p, begin, end);
}

void route_backward(const RouteBackward& p, int64_t begin, int64_t end) {
  dispatch_type(p, begin, end);
}

}  // namespace PFL_CAPABILITY
}  // namespace pfl
