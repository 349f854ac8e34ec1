// The contract of `aggregate`: the weighted sum over clients of every tensor of a model.
//
//   stacked  [T] tensors, each [N, *shape_t]: row n is client n's tensor; one floating type, one device
//   weights  [N], [M, N] for M mixtures, or [G, M, N] where tensor t uses weights[t * G / T]; not normalised
//   result   [T] tensors, each [*shape_t], or [M, *shape_t] for weights of two or three dimensions
//   result_t[m] = sum_n weights[g, m, n] * stacked_t[n], accumulated in the order of n in float (double for double)
//   nonfinite  [N] int64, [G, N] with groups: number of NaN or infinite values per client; [0] without count_nonfinite
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cmath>
#include <vector>

#include "check.h"

namespace pfl {

inline void check_weights(const char* op, const Tensor& weights) {
  check_float(op, "weights", weights);
  PFL_CHECK(weights.dim() >= 1 && weights.dim() <= 3, op,
            ": weights must be [clients] or [mixtures, clients], got shape ", shape_of(weights));
  // Only weights in host memory are inspected: reading values from a GPU would synchronise the stream.
  if (weights.is_cpu()) {
    const Tensor values = torch::stable::contiguous(torch::stable::to(weights, accumulate_type(weights.scalar_type())));
    const bool is_double = values.scalar_type() == ScalarType::Double;
    for (int64_t i = 0; i < values.numel(); ++i) {
      const double w = is_double ? values.const_data_ptr<double>()[i] : values.const_data_ptr<float>()[i];
      PFL_CHECK(std::isfinite(w), op, ": weights must be finite, got ", w, " at flat index ", i);
    }
  }
}

inline std::string indexed(const char* name, size_t index) {
  return concatenate(name, "[", index, "]");
}

inline void check_tensor(const char* op, const char* name, size_t index, const Tensor& tensor, const Tensor& first,
                         const Tensor& weights) {
  check_float(op, indexed(name, index), tensor);
  check_dtype(op, indexed(name, index), tensor, indexed(name, 0), first);
  check_device(op, indexed(name, index), tensor, "weights", weights);
}

inline void check_aggregate(const char* op, const std::vector<Tensor>& stacked, const Tensor& weights) {
  check_weights(op, weights);
  const int64_t clients = weights.size(weights.dim() - 1);
  for (size_t t = 0; t < stacked.size(); ++t) {
    check_tensor(op, "stacked", t, stacked[t], stacked[0], weights);
    PFL_CHECK(stacked[t].dim() >= 1 && stacked[t].size(0) == clients, op, ": stacked[", t, "] must have ", clients,
              " rows, one per client as in weights, got shape ", shape_of(stacked[t]));
  }
  PFL_CHECK(weights.dim() < 3 || (weights.size(0) > 0 && stacked.size() % weights.size(0) == 0), op,
            ": weights [groups, mixtures, clients] must have groups that divide the ", stacked.size(),
            " stacked tensors, got shape ", shape_of(weights));
}

inline void check_out(const char* op, const char* name, const std::vector<Tensor>& out,
                      const std::vector<Tensor>& stacked, const Tensor& weights) {
  PFL_CHECK(out.size() == stacked.size(), op, ": ", name, " must hold ", stacked.size(),
            " tensors, one per stacked tensor, got ", out.size());
  for (size_t t = 0; t < out.size(); ++t) {
    std::vector<int64_t> expected;
    if (weights.dim() > 1) {
      expected.push_back(weights.size(weights.dim() - 2));
    }
    expected.insert(expected.end(), stacked[t].sizes().begin() + 1, stacked[t].sizes().end());
    const auto sizes = out[t].sizes();
    PFL_CHECK(std::vector<int64_t>(sizes.begin(), sizes.end()) == expected, op, ": ", name, "[", t,
              "] must have the shape of one aggregate of stacked[", t, "] ", shape_of(stacked[t]), ", got shape ",
              shape_of(out[t]));
    check_tensor(op, name, t, out[t], stacked[0], weights);
  }
}

inline void check_rows(const char* op, const std::vector<Tensor>& rows, const Tensor& weights) {
  check_weights(op, weights);
  PFL_CHECK(weights.dim() < 3, op, ": weights must be [clients] or [mixtures, clients], got shape ", shape_of(weights));
  const size_t clients = weights.size(weights.dim() - 1);
  PFL_CHECK(clients > 0 && rows.size() % clients == 0, op, ": rows must hold one tensor per client and parameter for ",
            clients, " clients as in weights, got ", rows.size(), " tensors");
  for (size_t i = 0; i < rows.size(); ++i) {
    const Tensor& first = rows[i - i % clients];
    check_tensor(op, "rows", i, rows[i], rows[0], weights);
    check_shape(op, indexed("rows", i), rows[i], indexed("rows", i - i % clients), first);
  }
}

}  // namespace pfl
