// CPU kernels of `gumbel_mask`, compiled once per instruction set into namespace PFL_CAPABILITY. Each step is one
// simple loop over a tile, so the compiler vectorises every step. The steps are compiled for float and double only;
// half types are converted tile by tile.
#include "ops/gumbel_mask/problem.h"

#include "cpu/simd/rows.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

constexpr int64_t kTile = kGumbelTile;

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

template <class A>
void forward(const GumbelMaskForward& p, int64_t begin, int64_t end) {
  const Float dtype = p.mask.dtype;
  const int64_t per_client = gumbel_tiles(p.numel);
  A z_buffer[kTile], logits_buffer[kTile], selected_buffer[kTile], rest_buffer[kTile], soft[kTile];
  float uniform[kTile];
  for (int64_t index = begin; index < end; ++index) {
    const int64_t client = index / per_client, first = index % per_client * kTile;
    const int64_t count = p.numel - first < kTile ? p.numel - first : kTile, start = client * p.numel + first;
    const A* z = widen(dtype, p.z, client * p.z_stride + first, count, z_buffer);
    const A* logits = widen(dtype, p.logits, client * p.logits_stride + first, count, logits_buffer);
    A* const noisy = static_cast<A*>(p.noisy) + start;
    if (p.seeds) {
      uniforms(static_cast<uint64_t>(p.seeds[client]), static_cast<uint64_t>(first), count, uniform);
      add_logistic_noise(logits, uniform, count, noisy);
    } else {
      narrow(logits, count, noisy);
    }
    A* const selected = wide_row(dtype, p.selected, start, selected_buffer);
    A* const rest = wide_row(dtype, p.rest, start, rest_buffer);
    if (p.mask.hard) {
      split_hard(z, noisy, static_cast<A>(p.mask.logit_threshold), count, selected, rest);
    } else {
      soft_mask(noisy, static_cast<A>(p.mask.inverse_tau), count, soft);
      split_soft(z, soft, count, selected, rest);
    }
    round_row(dtype, selected, count, p.selected, start);
    round_row(dtype, rest, count, p.rest, start);
  }
}

template <class A>
void backward(const GumbelMaskBackward& p, int64_t begin, int64_t end) {
  const Float dtype = p.mask.dtype;
  const A inverse_tau = static_cast<A>(p.mask.inverse_tau);
  A z_buffer[kTile], g_selected_buffer[kTile], g_rest_buffer[kTile], grad_z_buffer[kTile], grad_logits_buffer[kTile];
  A soft[kTile];
  for (int64_t start = begin * kTile; start < end * kTile; start += kTile) {
    const int64_t count = p.numel - start < kTile ? p.numel - start : kTile;
    const A* z = widen(dtype, p.z, start, count, z_buffer);
    const A* g_selected = widen(dtype, p.grad_selected, start, count, g_selected_buffer);
    const A* g_rest = widen(dtype, p.grad_rest, start, count, g_rest_buffer);
    const A* noisy = static_cast<const A*>(p.noisy) + start;
    A* const grad_z = wide_row(dtype, p.grad_z, start, grad_z_buffer);
    A* const grad_logits = wide_row(dtype, p.grad_logits, start, grad_logits_buffer);
    soft_mask(noisy, inverse_tau, count, soft);
    if (p.mask.hard) {
      choose_hard(g_selected, g_rest, noisy, static_cast<A>(p.mask.logit_threshold), count, grad_z);
    } else {
      blend_soft(g_selected, g_rest, soft, count, grad_z);
    }
    mask_gradient(g_selected, g_rest, z, soft, inverse_tau, count, grad_logits);
    round_row(dtype, grad_z, count, p.grad_z, start);
    round_row(dtype, grad_logits, count, p.grad_logits, start);
  }
}

}  // namespace

void gumbel_mask_forward(const GumbelMaskForward& p, int64_t begin, int64_t end) {
  p.mask.dtype == Float::kDouble ? forward<double>(p, begin, end) : forward<float>(p, begin, end);
}

void gumbel_mask_backward(const GumbelMaskBackward& p, int64_t begin, int64_t end) {
  p.mask.dtype == Float::kDouble ? backward<double>(p, begin, end) : backward<float>(p, begin, end);
}

}  // namespace PFL_CAPABILITY
}  // namespace pfl
