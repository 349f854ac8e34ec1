// The contract of `gumbel_mask`: z times a stochastic mask m and z times 1 - m, with a straight-through gradient.
//
//   z, logits  [*batch, *shape] with the same shape, floating type and device
//   seed       [*batch] int64, one per client; none disables the noise
//   eps        log(u / (1 - u)), u = philox_uniform(seed, shape): the difference of two Gumbel variables is logistic
//   m_s        sigmoid((logits + eps) / tau)
//   m          soft: m_s. hard: 1 where m_s >= threshold, else 0; evaluated without rounding m_s as
//              logits + eps >= tau * log(threshold / (1 - threshold)), which for threshold 1/2 does not depend on tau
//   selected   z * m
//   rest       z * (1 - m); in hard mode each value of z goes unchanged to one result and 0 to the other
//   noisy      logits + eps in float (double for double): the backward needs neither logits nor seed
//
//   grad_z      = m * grad_selected + (1 - m) * grad_rest
//   grad_logits = m_s * (1 - m_s) / tau * z * (grad_selected - grad_rest), in hard mode too (straight-through)
#pragma once

#include "common/check.h"
#include "ops/gumbel_mask/problem.h"
#include "ops/philox_uniform/contract.h"

namespace pfl {

inline void check_gumbel_options(const char* op, double tau, double threshold) {
  PFL_CHECK(tau >= 1e-30 && tau <= 1e30, op, ": tau must be positive, from 1e-30 to 1e30, got ", tau);
  PFL_CHECK(threshold > 0 && threshold < 1, op, ": threshold must be between 0 and 1, got ", threshold);
}

inline void check_like_z(const char* op, const char* name, const Tensor& tensor, const Tensor& z) {
  check_dtype(op, name, tensor, "z", z);
  check_device(op, name, tensor, "z", z);
  check_shape(op, name, tensor, "z", z);
}

inline void check_gumbel_mask(const char* op, const Tensor& z, const Tensor& logits,
                              const std::optional<Tensor>& seed) {
  check_float(op, "z", z);
  check_like_z(op, "logits", logits, z);
  if (seed) {
    check_seed(op, *seed);
    check_device(op, "seed", *seed, "z", z);
    bool is_prefix = seed->dim() <= z.dim();
    for (int64_t d = 0; is_prefix && d < seed->dim(); ++d) {
      is_prefix = seed->size(d) == z.size(d);
    }
    PFL_CHECK(is_prefix, op, ": seed must have the leading dimensions of z, ", shape_of(z), ", got shape ",
              shape_of(*seed));
  }
}

// Contiguous values per client with a fixed client stride.
struct ClientRows {
  Tensor tensor;
  int64_t stride;

  // Holds the tensor itself if it has this layout (including one row expanded to all clients), else a copy.
  ClientRows(const Tensor& given, int64_t batch_dims, int64_t numel) : tensor(given), stride(numel) {
    int64_t expected = 1;
    bool in_place = true;
    for (int64_t d = given.dim() - 1; d >= 0; --d) {
      if (d == batch_dims - 1) {
        stride = expected = given.stride(d);
      }
      in_place = in_place && (given.size(d) == 1 || given.stride(d) == expected);
      expected *= given.size(d);
    }
    if (!in_place) {
      tensor = torch::stable::contiguous(given);
      stride = numel;
    }
  }
};

inline GumbelMask mask_of(const Tensor& z, double tau, double threshold, bool hard) {
  return {kernel_type(z.scalar_type()), hard, tau * std::log(threshold / (1 - threshold)), 1 / tau};
}

template <class Run>
std::tuple<Tensor, Tensor, Tensor> gumbel_mask(const Tensor& z, const Tensor& logits, const std::optional<Tensor>& seed,
                                               double tau, double threshold, bool hard, Run run) {
  const char* op = "pfl_fast::gumbel_mask";
  check_gumbel_mask(op, z, logits, seed);
  check_gumbel_options(op, tau, threshold);
  const int64_t batch_dims = seed ? seed->dim() : 0;
  int64_t numel = 1;  // values per client
  for (int64_t d = batch_dims; d < z.dim(); ++d) {
    numel *= z.size(d);
  }
  const ClientRows zs(z, batch_dims, numel), all_logits(logits, batch_dims, numel);
  std::optional<Tensor> seeds;
  if (seed) {
    seeds = torch::stable::contiguous(*seed);
  }
  Tensor selected = torch::stable::new_empty(z, z.sizes());
  Tensor rest = torch::stable::new_empty(z, z.sizes());
  Tensor noisy = torch::stable::new_empty(z, z.sizes(), accumulate_type(z.scalar_type()));
  run(GumbelMaskForward{mask_of(z, tau, threshold, hard), seeds ? seeds->numel() : 1, numel,
                        seeds ? seeds->const_data_ptr<int64_t>() : nullptr, zs.tensor.const_data_ptr(),
                        all_logits.tensor.const_data_ptr(), zs.stride, all_logits.stride, selected.mutable_data_ptr(),
                        rest.mutable_data_ptr(), noisy.mutable_data_ptr()});
  return {std::move(selected), std::move(rest), std::move(noisy)};
}

template <class Run>
std::tuple<Tensor, Tensor> gumbel_mask_backward(const Tensor& grad_selected, const Tensor& grad_rest, const Tensor& z,
                                                const Tensor& noisy, double tau, double threshold, bool hard, Run run) {
  const char* op = "pfl_fast::gumbel_mask_backward";
  check_float(op, "z", z);
  check_like_z(op, "grad_selected", grad_selected, z);
  check_like_z(op, "grad_rest", grad_rest, z);
  const ScalarType sum_type = accumulate_type(z.scalar_type());
  PFL_CHECK(noisy.scalar_type() == sum_type, op, ": noisy must be ", sum_type, ", got ", noisy.scalar_type());
  check_device(op, "noisy", noisy, "z", z);
  check_shape(op, "noisy", noisy, "z", z);
  check_gumbel_options(op, tau, threshold);
  const Tensor zs = torch::stable::contiguous(z), all_noisy = torch::stable::contiguous(noisy);
  const Tensor g_selected = torch::stable::contiguous(grad_selected);
  const Tensor g_rest = torch::stable::contiguous(grad_rest);
  Tensor grad_z = torch::stable::new_empty(z, z.sizes());
  Tensor grad_logits = torch::stable::new_empty(z, z.sizes());
  run(GumbelMaskBackward{mask_of(z, tau, threshold, hard), z.numel(), zs.const_data_ptr(), all_noisy.const_data_ptr(),
                         g_selected.const_data_ptr(), g_rest.const_data_ptr(), grad_z.mutable_data_ptr(),
                         grad_logits.mutable_data_ptr()});
  return {std::move(grad_z), std::move(grad_logits)};
}

}  // namespace pfl
