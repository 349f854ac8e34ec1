// Problem structs passed from the tensor code of `cpn_route` to its raw kernels.
#pragma once

#include "ops/route/problem.h"

namespace pfl {

struct CpnRouteInputs {
  RouteInputs route;
  const void* gamma;     // [C, 2K] with row stride gamma_stride, 0 if all clients share one row
  const void* beta;      // [C, 2K] with row stride beta_stride
  int64_t gamma_stride;  // in elements
  int64_t beta_stride;
};

struct CpnRouteForward {
  RouteSizes sizes;
  CpnRouteInputs inputs;
  double eps;
  void* global_part;    // [C, b, K]
  void* personal_part;  // [C, b, K]
  void* stats;          // [C, b, 2] mean and 1 / sqrt(var + eps) of each row, in the accumulation type
};

// The rows of a client are split into parts. Each part has its own sums for gamma and beta, which are then added in the
// order of the parts. The split depends on the number of rows only, never on threads or other clients.
struct CpnRouteBackward {
  RouteSizes sizes;
  CpnRouteInputs inputs;
  const void* stats;          // [C, b, 2], from the forward
  const void* grad_global;    // [C, b, K]
  const void* grad_personal;  // [C, b, K]
  void* grad_h;               // [C, b, K]
  void* grad_a;               // [C, b, 2K]
  void* gamma_parts;          // [C, parts, 2K] in the accumulation type
  void* beta_parts;           // [C, parts, 2K]
  int64_t parts;
  int64_t rows_per_part;
  void* grad_gamma;  // [C, 2K]; aliases gamma_parts if one part in the result type is the result
  void* grad_beta;   // [C, 2K]
};

// [begin, end): range of the C * b rows.
PFL_DECLARE_CPU_KERNEL(cpn_route_forward, (const CpnRouteForward& p, int64_t begin, int64_t end))

// [begin, end): range of the C * parts parts. scratch: 2K doubles.
PFL_DECLARE_CPU_KERNEL(cpn_route_backward, (const CpnRouteBackward& p, int64_t begin, int64_t end, double* scratch))

// [begin, end): range of clients whose parts are added up.
PFL_DECLARE_CPU_KERNEL(cpn_route_add_parts, (const CpnRouteBackward& p, int64_t begin, int64_t end))

}  // namespace pfl

extern "C" {
int pfl_cuda_cpn_route(const pfl::CpnRouteForward* problem, void* stream);
int pfl_cuda_cpn_route_backward(const pfl::CpnRouteBackward* problem, void* stream);
}
