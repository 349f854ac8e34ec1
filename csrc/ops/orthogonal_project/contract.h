// The contract of `orthogonal_project`: projects the features of two extractors onto their subspaces and blends them.
//
//   f_g, f_p          [*batch, b, d], same shape, dtype and device
//   basis_g, basis_p  [*batch, d, r], or [d, r] shared by the batch; ranks r may differ; constants without gradient
//   alpha             finite
//   g, p              [*batch, b, d]: (f A) A^T, with relu max(0, (f A) A^T)
//   fused             [*batch, b, d]: alpha g + (1 - alpha) p
//   inner             [*batch, b]: dot product g . p of each sample
#pragma once

#include "common/check.h"
#include "ops/orthogonal_project/problem.h"

namespace pfl {

inline void check_basis(const char* op, const char* name, const Tensor& basis, const char* features_name,
                        const Tensor& features) {
  check_float(op, name, basis);
  check_dtype(op, name, basis, features_name, features);
  check_device(op, name, basis, features_name, features);
  const int64_t dims = features.dim();
  bool fits = basis.dim() == 2 || basis.dim() == dims;
  for (int64_t i = 0; fits && basis.dim() > 2 && i < dims - 2; ++i) {
    fits = basis.size(i) == features.size(i);
  }
  PFL_CHECK(fits && basis.size(basis.dim() - 2) == features.size(dims - 1), op, ": ", name,
            " must be [features, rank] or [*batch, features, rank] for ", features_name, " ", shape_of(features),
            ", got shape ", shape_of(basis));
}

inline void check_projected(const char* op, const char* name, const Tensor& tensor, const char* other_name,
                            const Tensor& other) {
  check_dtype(op, name, tensor, other_name, other);
  check_device(op, name, tensor, other_name, other);
  check_shape(op, name, tensor, other_name, other);
}

inline void check_alpha(const char* op, double alpha) {
  PFL_CHECK(std::isfinite(alpha), op, ": alpha must be finite, got ", alpha);
}

inline void check_orthogonal_project(const char* op, const Tensor& f_g, const Tensor& f_p, const Tensor& basis_g,
                                     const Tensor& basis_p, double alpha) {
  check_float(op, "f_g", f_g);
  PFL_CHECK(f_g.dim() >= 2, op, ": f_g must be [*batch, samples, features], got shape ", shape_of(f_g));
  check_float(op, "f_p", f_p);
  check_projected(op, "f_p", f_p, "f_g", f_g);
  check_basis(op, "basis_g", basis_g, "f_g", f_g);
  check_basis(op, "basis_p", basis_p, "f_g", f_g);
  check_alpha(op, alpha);
}

inline ProjectSizes project_sizes(const Tensor& f, double alpha, bool relu) {
  const int64_t samples = f.size(f.dim() - 2), features = f.size(f.dim() - 1);
  int64_t clients = 1;
  for (int64_t i = 0; i < f.dim() - 2; ++i) {
    clients *= f.size(i);
  }
  return {kernel_type(f.scalar_type()), clients, samples, features, alpha, relu ? 1 : 0};
}

// Contiguous basis and scratch memory for coordinates; owns the memory that raw() points to.
struct SubspacePlan {
  Tensor basis, coordinates;
  int64_t rank, padded_rank, stride;

  SubspacePlan(const Tensor& given, const ProjectSizes& sizes)
      : basis(torch::stable::contiguous(given)), rank(given.size(given.dim() - 1)) {
    padded_rank = (rank + kProjectLanes - 1) / kProjectLanes * kProjectLanes;
    stride = given.dim() > 2 ? sizes.features * rank : 0;
    coordinates = torch::stable::new_empty(given, std::vector<int64_t>{sizes.clients, sizes.samples, padded_rank},
                                           accumulate_type(given.scalar_type()));
  }

  Subspace raw() const {
    return {basis.const_data_ptr(), rank, stride, coordinates.mutable_data_ptr(), padded_rank};
  }
};

template <class Run>
std::tuple<Tensor, Tensor, Tensor, Tensor> orthogonal_project(const Tensor& f_g, const Tensor& f_p,
                                                              const Tensor& basis_g, const Tensor& basis_p,
                                                              double alpha, bool relu, Run run) {
  check_orthogonal_project("pfl_fast::orthogonal_project", f_g, f_p, basis_g, basis_p, alpha);
  const ProjectSizes sizes = project_sizes(f_g, alpha, relu);
  const Tensor features_g = torch::stable::contiguous(f_g), features_p = torch::stable::contiguous(f_p);
  const SubspacePlan of_g(basis_g, sizes), of_p(basis_p, sizes);
  const std::vector<int64_t> full(f_g.sizes().begin(), f_g.sizes().end()), per_sample(full.begin(), full.end() - 1);
  Tensor g = torch::stable::new_empty(f_g, full), p = torch::stable::new_empty(f_g, full);
  Tensor fused = torch::stable::new_empty(f_g, full), inner = torch::stable::new_empty(f_g, per_sample);
  if (inner.numel() > 0) {
    run(OrthogonalProject{sizes, of_g.raw(), of_p.raw(), features_g.const_data_ptr(), features_p.const_data_ptr(),
                          g.mutable_data_ptr(), p.mutable_data_ptr(), fused.mutable_data_ptr(),
                          inner.mutable_data_ptr()});
  }
  return {std::move(g), std::move(p), std::move(fused), std::move(inner)};
}

// Optional output gradient: checks it and keeps a contiguous tensor alive.
struct Cotangent {
  std::optional<Tensor> tensor;

  Cotangent(const char* op, const char* name, const std::optional<Tensor>& given, const Tensor& g, bool per_sample) {
    if (!given) {
      return;
    }
    check_dtype(op, name, *given, "g", g);
    check_device(op, name, *given, "g", g);
    const std::vector<int64_t> expected(g.sizes().begin(), g.sizes().end() - (per_sample ? 1 : 0));
    PFL_CHECK(std::vector<int64_t>(given->sizes().begin(), given->sizes().end()) == expected, op, ": ", name,
              " must have the shape of its result for g ", shape_of(g), ", got shape ", shape_of(*given));
    tensor = torch::stable::contiguous(*given);
  }

  const void* data() const {
    return tensor ? tensor->const_data_ptr() : nullptr;
  }
};

template <class Run>
std::tuple<Tensor, Tensor> orthogonal_project_backward(const std::optional<Tensor>& v_g,
                                                       const std::optional<Tensor>& v_p,
                                                       const std::optional<Tensor>& v_fused,
                                                       const std::optional<Tensor>& v_inner, const Tensor& g,
                                                       const Tensor& p, const Tensor& basis_g, const Tensor& basis_p,
                                                       double alpha, bool relu, bool needs_g, bool needs_p, Run run) {
  const char* op = "pfl_fast::orthogonal_project_backward";
  check_float(op, "g", g);
  PFL_CHECK(g.dim() >= 2, op, ": g must be [*batch, samples, features], got shape ", shape_of(g));
  check_projected(op, "p", p, "g", g);
  check_basis(op, "basis_g", basis_g, "g", g);
  check_basis(op, "basis_p", basis_p, "g", g);
  check_alpha(op, alpha);
  const Cotangent of_g(op, "v_g", v_g, g, false), of_p(op, "v_p", v_p, g, false);
  const Cotangent of_fused(op, "v_fused", v_fused, g, false), of_inner(op, "v_inner", v_inner, g, true);
  const ProjectSizes sizes = project_sizes(g, alpha, relu);
  const SubspacePlan space_g(basis_g, sizes), space_p(basis_p, sizes);
  const Tensor gs = torch::stable::contiguous(g), ps = torch::stable::contiguous(p);
  const std::vector<int64_t> full(g.sizes().begin(), g.sizes().end()), nothing{0};
  Tensor grad_g = torch::stable::new_empty(g, needs_g ? full : nothing);
  Tensor grad_p = torch::stable::new_empty(g, needs_p ? full : nothing);
  if (g.numel() > 0 && (needs_g || needs_p)) {
    run(OrthogonalProjectBackward{sizes, space_g.raw(), space_p.raw(), gs.const_data_ptr(), ps.const_data_ptr(),
                                  of_g.data(), of_p.data(), of_fused.data(), of_inner.data(),
                                  needs_g ? grad_g.mutable_data_ptr() : nullptr,
                                  needs_p ? grad_p.mutable_data_ptr() : nullptr});
  }
  return {std::move(grad_g), std::move(grad_p)};
}

}  // namespace pfl
