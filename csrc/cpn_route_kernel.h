// What tensor code and the raw kernels of `cpn_route` agree on.
#pragma once

#include "route_kernel.h"

namespace pfl {

struct CpnRouteInputs {
  RouteInputs route;
  const void* gamma;     // [C, 2K], rows gamma_stride elements apart: 0 where all clients share one
  const void* beta;      // [C, 2K], likewise
  int64_t gamma_stride;  // in elements
  int64_t beta_stride;
  double eps;
};

struct CpnRouteForward {
  RouteSizes sizes;
  CpnRouteInputs inputs;
  void* global_part;    // [C, b, K]
  void* personal_part;  // [C, b, K]
};

// The rows of a client are cut into parts, each with its own sums for gamma and beta, which are then added in the order
// of the parts. The cut depends on the number of rows alone, so that threads and neighbours do not change a bit.
struct CpnRouteBackward {
  RouteSizes sizes;
  CpnRouteInputs inputs;
  const void* grad_global;    // [C, b, K]
  const void* grad_personal;  // [C, b, K]
  void* grad_h;               // [C, b, K]
  void* grad_a;               // [C, b, 2K]
  void* gamma_parts;          // [C, parts, 2K] in the type sums are kept in
  void* beta_parts;           // [C, parts, 2K]
  int64_t parts;
  int64_t rows_per_part;
  void* grad_gamma;  // [C, 2K]; the same memory as gamma_parts where one part is already the result
  void* grad_beta;   // [C, 2K]
};

// [begin, end): the rows to do, of all C * b.
PFL_DECLARE_CPU_KERNEL(cpn_route_forward, (const CpnRouteForward& p, int64_t begin, int64_t end))

// [begin, end): the parts to do, of all C * parts. scratch: room for 2K doubles.
PFL_DECLARE_CPU_KERNEL(cpn_route_backward, (const CpnRouteBackward& p, int64_t begin, int64_t end, double* scratch))

// [begin, end): the clients whose parts to add up.
PFL_DECLARE_CPU_KERNEL(cpn_route_add_parts, (const CpnRouteBackward& p, int64_t begin, int64_t end))

}  // namespace pfl

extern "C" {
int pfl_cuda_cpn_route(const pfl::CpnRouteForward* problem, void* stream);
int pfl_cuda_cpn_route_backward(const pfl::CpnRouteBackward* problem, void* stream);
}
