// The operators of pfl_fast: one schema line each. Contracts stand in <op>.h, kernels in cpu/ and cuda/.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(pfl_fast, m) {
  m.def("aggregate(Tensor[] stacked, Tensor weights, bool count_nonfinite) -> (Tensor[], Tensor)");
  m.def("aggregate_into(Tensor(a!)[] out, Tensor[] stacked, Tensor weights, bool count_nonfinite) -> Tensor");
  m.def("aggregate_rows(Tensor[] rows, Tensor weights, bool count_nonfinite) -> (Tensor[], Tensor)");
  m.def(
      "aggregate_backward(Tensor[] grads, Tensor[] stacked, Tensor weights, bool needs_stacked, bool needs_weights)"
      " -> (Tensor[], Tensor)");
  m.def("mmd_rbf(Tensor x, Tensor y, float[] bandwidths) -> (Tensor, Tensor)");
  m.def(
      "mmd_rbf_backward(Tensor grad, Tensor x, Tensor y, Tensor weights, bool needs_x, bool needs_y)"
      " -> (Tensor, Tensor)");
  m.def(
      "orthogonal_project(Tensor f_g, Tensor f_p, Tensor basis_g, Tensor basis_p, float alpha, bool relu)"
      " -> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "orthogonal_project_backward(Tensor? v_g, Tensor? v_p, Tensor? v_fused, Tensor? v_inner, Tensor g, Tensor p,"
      " Tensor basis_g, Tensor basis_p, float alpha, bool relu, bool needs_g, bool needs_p) -> (Tensor, Tensor)");
  m.def("philox_uniform(Tensor seed, int[] shape) -> Tensor");
  m.def("cpu_capability() -> str");
}
