// CPU kernels of `gumbel_mask`, compiled once per instruction set into namespace PFL_CAPABILITY. Each step is one
// simple loop over a tile, so the compiler vectorises every step.
#include "ops/gumbel_mask/problem.h"

#include "common/elementary.h"
#include "cpu/simd/convert.h"
#include "cpu/simd/noise.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

constexpr int64_t kTile = kGumbelTile;

// At most kTile values of one client.
struct Tile {
  int64_t client;
  int64_t begin;  // offset in the client's values
  int64_t count;
};

Tile find_tile(const GumbelMask& mask, int64_t index) {
  const int64_t per_client = gumbel_tiles_per_client(mask.numel);
  const int64_t begin = index % per_client * kTile;
  const int64_t left = mask.numel - begin;
  return {index / per_client, begin, left < kTile ? left : kTile};
}

// Where results in the accumulation type are written: the row itself if it has that type, else the buffer.
inline double* stage(double* row, double*) {
  return row;
}
inline float* stage(float* row, float*) {
  return row;
}
template <class T>
float* stage(T*, float* buffer) {
  return buffer;
}
// Rounds the buffer to the type of the row.
inline void unstage(const double*, int64_t, double*) {
}
inline void unstage(const float*, int64_t, float*) {
}
template <class T>
void unstage(const float* values, int64_t count, T* row) {
  narrow(values, count, row);
}

template <class A>
void add_logistic_noise(const A* __restrict logits, const float* __restrict uniform, int64_t count, A* __restrict out) {
  for (int64_t j = 0; j < count; ++j) {
    const A u = uniform[j];  // u and 1 - u are exact and at least 2^-24
    out[j] = logits[j] + log_of(u / (A(1) - u));
  }
}

template <class A>
void soft_mask(const A* __restrict noisy, A inverse_tau, int64_t count, A* __restrict soft) {
  for (int64_t j = 0; j < count; ++j) {
    soft[j] = sigmoid_of(noisy[j] * inverse_tau);
  }
}

template <class A>
void split_hard(const A* __restrict z, const A* __restrict noisy, A logit_threshold, int64_t count,
                A* __restrict selected, A* __restrict rest) {
  for (int64_t j = 0; j < count; ++j) {
    const bool selects = noisy[j] >= logit_threshold;
    selected[j] = selects ? z[j] : A(0);
    rest[j] = selects ? A(0) : z[j];
  }
}

template <class A>
void split_soft(const A* __restrict z, const A* __restrict soft, int64_t count, A* __restrict selected,
                A* __restrict rest) {
  for (int64_t j = 0; j < count; ++j) {
    selected[j] = z[j] * soft[j];
    rest[j] = z[j] * (A(1) - soft[j]);
  }
}

template <class A>
void choose_hard(const A* __restrict g_selected, const A* __restrict g_rest, const A* __restrict noisy,
                 A logit_threshold, int64_t count, A* __restrict grad_z) {
  for (int64_t j = 0; j < count; ++j) {
    grad_z[j] = noisy[j] >= logit_threshold ? g_selected[j] : g_rest[j];
  }
}

template <class A>
void blend_soft(const A* __restrict g_selected, const A* __restrict g_rest, const A* __restrict soft, int64_t count,
                A* __restrict grad_z) {
  for (int64_t j = 0; j < count; ++j) {
    grad_z[j] = soft[j] * g_selected[j] + (A(1) - soft[j]) * g_rest[j];
  }
}

template <class A>
void mask_gradient(const A* __restrict g_selected, const A* __restrict g_rest, const A* __restrict z,
                   const A* __restrict soft, A inverse_tau, int64_t count, A* __restrict grad_logits) {
  for (int64_t j = 0; j < count; ++j) {
    const A derivative = soft[j] * (A(1) - soft[j]) * inverse_tau;
    grad_logits[j] = derivative * (z[j] * (g_selected[j] - g_rest[j]));
  }
}

// A tile of z and of logits + noise, with the buffers they may point to.
template <class T>
struct Inputs {
  using A = accumulate_t<T>;
  A z_buffer[kTile], noisy_buffer[kTile], logits_buffer[kTile];
  float uniform[kTile];
  const A* z;
  const A* noisy;

  Inputs(const GumbelMask& mask, const Tile& tile) {
    z = widen(static_cast<const T*>(mask.z) + tile.client * mask.z_stride + tile.begin, tile.count, z_buffer);
    noisy = widen(static_cast<const T*>(mask.logits) + tile.client * mask.logits_stride + tile.begin, tile.count,
                  logits_buffer);
    if (mask.seeds) {
      uniforms(static_cast<uint64_t>(mask.seeds[tile.client]), static_cast<uint64_t>(tile.begin), tile.count, uniform);
      add_logistic_noise(noisy, uniform, tile.count, noisy_buffer);
      noisy = noisy_buffer;
    }
  }
};

template <class T>
void forward(const GumbelMaskForward& p, int64_t begin, int64_t end) {
  using A = accumulate_t<T>;
  A selected_buffer[kTile], rest_buffer[kTile], soft[kTile];
  for (int64_t index = begin; index < end; ++index) {
    const Tile tile = find_tile(p.mask, index);
    const Inputs<T> in(p.mask, tile);
    T* const selected_row = static_cast<T*>(p.selected) + tile.client * p.mask.numel + tile.begin;
    T* const rest_row = static_cast<T*>(p.rest) + tile.client * p.mask.numel + tile.begin;
    A* const selected = stage(selected_row, selected_buffer);
    A* const rest = stage(rest_row, rest_buffer);
    if (p.mask.hard) {
      split_hard(in.z, in.noisy, static_cast<A>(p.mask.logit_threshold), tile.count, selected, rest);
    } else {
      soft_mask(in.noisy, static_cast<A>(p.mask.inverse_tau), tile.count, soft);
      split_soft(in.z, soft, tile.count, selected, rest);
    }
    unstage(selected, tile.count, selected_row);
    unstage(rest, tile.count, rest_row);
  }
}

template <class T>
void backward(const GumbelMaskBackward& p, int64_t begin, int64_t end) {
  using A = accumulate_t<T>;
  A g_selected_buffer[kTile], g_rest_buffer[kTile], grad_z_buffer[kTile], grad_logits_buffer[kTile], soft[kTile];
  const A inverse_tau = static_cast<A>(p.mask.inverse_tau);
  for (int64_t index = begin; index < end; ++index) {
    const Tile tile = find_tile(p.mask, index);
    const Inputs<T> in(p.mask, tile);
    const int64_t offset = tile.client * p.mask.numel + tile.begin;
    const A* g_selected = widen(static_cast<const T*>(p.grad_selected) + offset, tile.count, g_selected_buffer);
    const A* g_rest = widen(static_cast<const T*>(p.grad_rest) + offset, tile.count, g_rest_buffer);
    A* const grad_z = stage(static_cast<T*>(p.grad_z) + offset, grad_z_buffer);
    A* const grad_logits = stage(static_cast<T*>(p.grad_logits) + offset, grad_logits_buffer);
    soft_mask(in.noisy, inverse_tau, tile.count, soft);
    if (p.mask.hard) {
      choose_hard(g_selected, g_rest, in.noisy, static_cast<A>(p.mask.logit_threshold), tile.count, grad_z);
    } else {
      blend_soft(g_selected, g_rest, soft, tile.count, grad_z);
    }
    mask_gradient(g_selected, g_rest, in.z, soft, inverse_tau, tile.count, grad_logits);
    unstage(grad_z, tile.count, static_cast<T*>(p.grad_z) + offset);
    unstage(grad_logits, tile.count, static_cast<T*>(p.grad_logits) + offset);
  }
}

}  // namespace

void gumbel_mask_forward(const GumbelMaskForward& p, int64_t begin, int64_t end) {
  with_type(p.mask.dtype, [&](auto type) { forward<decltype(type)>(p, begin, end); });
}

void gumbel_mask_backward(const GumbelMaskBackward& p, int64_t begin, int64_t end) {
  with_type(p.mask.dtype, [&](auto type) { backward<decltype(type)>(p, begin, end); });
}

}  // namespace PFL_CAPABILITY
}  // namespace pfl
