// The contract of `aggregate`: the weighted sum over clients of every tensor of a model.
//
//   stacked  [T] tensors, each [N, *shape_t]: row n is client n's tensor; one floating type, one device
//   weights  [N], [M, N] for M mixtures, or [G, M, N] where tensor t uses weights[t * G / T]; not normalised
//   result   [T] tensors, each [*shape_t], or [M, *shape_t] for weights of two or three dimensions
//   result_t[m] = sum_n weights[g, m, n] * stacked_t[n], accumulated in the order of n in float (double for double)
//   nonfinite  [N] int64, [G, N] with groups: number of NaN or infinite values per client; [0] without count_nonfinite
//
// Each device defines
//
//   struct Kernel {
//     static constexpr int64_t kMaxParts;                       // sets of partial sums in the backward
//     Kernel(const Tensor& on);                                 // runs on the device of this tensor
//     void prepare_rows(AggregateRows&, const AggregatePlan&);  // makes the row table readable on the device
//     void forward(const AggregateForward&);
//     void backward(const AggregateBackward&);                  // leaves the sum in the first part
//   };
#pragma once

#include "common/check.h"
#include "ops/aggregate/problem.h"

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

// Returns the tensor itself if each of its rows is contiguous (rows may be strided), else a contiguous copy.
inline Tensor with_contiguous_rows(const Tensor& tensor) {
  int64_t expected = 1;
  for (int64_t d = tensor.dim() - 1; d >= 1; --d) {
    if (tensor.size(d) != 1 && tensor.stride(d) != expected) {
      return torch::stable::contiguous(tensor);
    }
    expected *= tensor.size(d);
  }
  return tensor;
}

// Inputs as raw pointers and strides; owns the memory that rows() points to.
struct AggregatePlan {
  AggregateSizes sizes;
  Tensor weights;              // [G, M, N] in the accumulation type
  std::vector<Tensor> owners;  // keeps copies of non-contiguous inputs alive
  std::vector<const void*> base, table;
  std::vector<int64_t> stride, numel;
  std::vector<int64_t> out_shape_prefix;  // [] or [M]
  bool grouped;                           // weights have shape [G, M, N]

  AggregatePlan(const std::vector<Tensor>& tensors, const Tensor& given_weights, bool separate_rows) {
    const int64_t dims = given_weights.dim();
    const int64_t clients = given_weights.size(dims - 1);
    const int64_t mixtures = dims > 1 ? given_weights.size(dims - 2) : 1;
    grouped = dims > 2;
    if (dims > 1) {
      out_shape_prefix.push_back(mixtures);
    }
    const ScalarType type = tensors.empty() ? ScalarType::Float : tensors[0].scalar_type();
    weights = torch::stable::contiguous(torch::stable::to(given_weights, accumulate_type(type)));
    const int64_t tensor_count = separate_rows ? tensors.size() / clients : tensors.size();
    sizes = {kernel_type(type), tensor_count, grouped ? given_weights.size(0) : 1, mixtures, clients};
    for (int64_t t = 0; t < tensor_count; ++t) {
      if (separate_rows) {
        add_separate_rows(tensors, t);
      } else {
        add_stacked(tensors[t]);
      }
    }
  }

  AggregateRows rows() const {
    return {base.data(), stride.data(), numel.data(), table.empty() ? nullptr : table.data()};
  }

 private:
  void add_stacked(const Tensor& tensor) {
    owners.push_back(with_contiguous_rows(tensor));
    base.push_back(owners.back().const_data_ptr());
    stride.push_back(owners.back().stride(0));
    numel.push_back(sizes.clients > 0 ? tensor.numel() / sizes.clients : row_numel(tensor));
  }

  void add_separate_rows(const std::vector<Tensor>& tensors, int64_t t) {
    for (int64_t n = 0; n < sizes.clients; ++n) {
      owners.push_back(torch::stable::contiguous(tensors[t * sizes.clients + n]));
      table.push_back(owners.back().const_data_ptr());
    }
    base.push_back(nullptr);
    stride.push_back(0);
    numel.push_back(owners.back().numel());
  }

  static int64_t row_numel(const Tensor& tensor) {
    int64_t count = 1;
    for (int64_t d = 1; d < tensor.dim(); ++d) {
      count *= tensor.size(d);
    }
    return count;
  }
};

// Zeroed counts of non-finite values: [N], [G, N] with groups, [0] without count_nonfinite.
inline Tensor new_counts(const AggregatePlan& plan, bool count_nonfinite) {
  if (!count_nonfinite) {
    return torch::stable::new_empty(plan.weights, std::vector<int64_t>{0}, ScalarType::Long);
  }
  std::vector<int64_t> shape{plan.sizes.clients};
  if (plan.grouped) {
    shape.insert(shape.begin(), plan.sizes.groups);
  }
  return torch::stable::new_zeros(plan.weights, shape, ScalarType::Long);
}

// Uninitialised result: the row shape of `like`, with a leading [M] if weights have mixtures.
template <class Kernel>
Tensor new_aggregate(const AggregatePlan& plan, const Tensor& like, bool like_is_row) {
  std::vector<int64_t> shape = plan.out_shape_prefix;
  shape.insert(shape.end(), like.sizes().begin() + (like_is_row ? 0 : 1), like.sizes().end());
  const Tensor out = torch::stable::new_empty(like, shape);
  Kernel::prepare_result(out);
  return out;
}

template <class T>
std::vector<T*> pointers_to(const std::vector<Tensor>& tensors) {
  std::vector<T*> pointers;
  for (const Tensor& tensor : tensors) {
    pointers.push_back(static_cast<T*>(tensor.mutable_data_ptr()));
  }
  return pointers;
}

template <class Kernel>
Tensor run_forward(const AggregatePlan& plan, const std::vector<Tensor>& out, bool count_nonfinite) {
  Kernel kernel(plan.weights);
  Tensor nonfinite = new_counts(plan, count_nonfinite);
  const std::vector<void*> destinations = pointers_to<void>(out);
  AggregateForward problem{plan.sizes, plan.rows(), plan.weights.const_data_ptr(), destinations.data(),
                           count_nonfinite ? nonfinite.mutable_data_ptr<int64_t>() : nullptr};
  kernel.prepare_rows(problem.rows, plan);
  kernel.forward(problem);
  return nonfinite;
}

template <class Kernel>
std::tuple<std::vector<Tensor>, Tensor> aggregate(std::vector<Tensor> stacked, Tensor weights, bool count_nonfinite) {
  check_aggregate("pfl_fast::aggregate", stacked, weights);
  const AggregatePlan plan(stacked, weights, false);
  std::vector<Tensor> out;
  for (const Tensor& tensor : stacked) {
    out.push_back(new_aggregate<Kernel>(plan, tensor, false));
  }
  Tensor nonfinite = run_forward<Kernel>(plan, out, count_nonfinite);
  return {std::move(out), std::move(nonfinite)};
}

template <class Kernel>
Tensor aggregate_into(std::vector<Tensor> out, std::vector<Tensor> stacked, Tensor weights, bool count_nonfinite) {
  check_aggregate("pfl_fast::aggregate", stacked, weights);
  check_out("pfl_fast::aggregate", "out", out, stacked, weights);
  const AggregatePlan plan(stacked, weights, false);
  std::vector<Tensor> contiguous;
  for (const Tensor& tensor : out) {
    contiguous.push_back(torch::stable::contiguous(tensor));
  }
  Tensor nonfinite = run_forward<Kernel>(plan, contiguous, count_nonfinite);
  for (size_t t = 0; t < out.size(); ++t) {
    if (!out[t].is_contiguous()) {
      torch::stable::copy_(out[t], contiguous[t]);
    }
  }
  return nonfinite;
}

template <class Kernel>
std::tuple<std::vector<Tensor>, Tensor> aggregate_rows(std::vector<Tensor> rows, Tensor weights, bool count_nonfinite) {
  check_rows("pfl_fast::aggregate_rows", rows, weights);
  const AggregatePlan plan(rows, weights, true);
  std::vector<Tensor> out;
  for (int64_t t = 0; t < plan.sizes.tensors; ++t) {
    out.push_back(new_aggregate<Kernel>(plan, rows[t * plan.sizes.clients], true));
  }
  Tensor nonfinite = run_forward<Kernel>(plan, out, count_nonfinite);
  return {std::move(out), std::move(nonfinite)};
}

template <class Kernel>
std::tuple<std::vector<Tensor>, Tensor> aggregate_backward(std::vector<Tensor> grads, std::vector<Tensor> stacked,
                                                           Tensor weights, bool needs_stacked, bool needs_weights) {
  check_aggregate("pfl_fast::aggregate_backward", stacked, weights);
  check_out("pfl_fast::aggregate_backward", "grads", grads, stacked, weights);
  const AggregatePlan plan(stacked, weights, false);
  Kernel kernel(plan.weights);
  std::vector<Tensor> contiguous, grad_stacked;
  for (size_t t = 0; t < stacked.size(); ++t) {
    contiguous.push_back(torch::stable::contiguous(grads[t]));
    if (needs_stacked) {
      // Without mixtures the kernel writes nothing.
      grad_stacked.push_back(plan.sizes.mixtures > 0 ? torch::stable::new_empty(stacked[t], stacked[t].sizes())
                                                     : torch::stable::new_zeros(stacked[t], stacked[t].sizes()));
    }
  }
  const std::vector<const void*> sources = pointers_to<const void>(contiguous);
  const std::vector<void*> destinations = pointers_to<void>(grad_stacked);
  const int64_t parts = aggregate_parts(plan.sizes, Kernel::kMaxParts);
  const std::vector<int64_t> part_shape{needs_weights ? parts : 0, plan.weights.numel()};
  const Tensor partial = torch::stable::new_zeros(weights, part_shape, ScalarType::Double);
  AggregateBackward problem{plan.sizes,
                            plan.rows(),
                            plan.weights.const_data_ptr(),
                            sources.data(),
                            needs_stacked ? destinations.data() : nullptr,
                            needs_weights ? partial.mutable_data_ptr<double>() : nullptr,
                            parts};
  kernel.backward(problem);
  if (!needs_weights) {
    return {std::move(grad_stacked), torch::stable::new_empty(weights, std::vector<int64_t>{0})};
  }
  const Tensor sum = torch::stable::reshape(torch::stable::select(partial, 0, 0), weights.sizes());
  return {std::move(grad_stacked), torch::stable::to(sum, weights.scalar_type())};
}

template <class Kernel, class Library>
void register_aggregate(Library& m) {
  m.impl("aggregate", TORCH_BOX(&aggregate<Kernel>));
  m.impl("aggregate_into", TORCH_BOX(&aggregate_into<Kernel>));
  m.impl("aggregate_rows", TORCH_BOX(&aggregate_rows<Kernel>));
  m.impl("aggregate_backward", TORCH_BOX(&aggregate_backward<Kernel>));
}

}  // namespace pfl
