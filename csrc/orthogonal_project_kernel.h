// What tensor code and the raw kernels of `orthogonal_project` agree on.
#pragma once

#include <cstdint>

#include "cpu/capability.h"
#include "dtype.h"

namespace pfl {

// One of the two subspaces: columns of an orthonormal basis, and room for the coordinates of every sample in it.
struct Subspace {
  const void* basis;  // [C, d, rank] or, shared by all clients, [d, rank]
  int64_t rank;       // r
  int64_t stride;     // elements from one client's basis to the next, 0 if shared
  void* coordinates;  // [C, b, room] in the type sums are kept in, overwritten
  int64_t room;       // r rounded up to whole vectors
};

struct ProjectSizes {
  Float dtype;
  int64_t clients;   // C
  int64_t samples;   // b
  int64_t features;  // d
  double alpha;
  int64_t relu;  // 0 or 1
};

// g = (f_g A_g) A_g^T, p = (f_p A_p) A_p^T, each max(0, .) with relu; fused = alpha g + (1 - alpha) p; inner = g . p
struct OrthogonalProject {
  ProjectSizes sizes;
  Subspace of_g, of_p;
  const void *f_g, *f_p;  // [C, b, d]
  void *g, *p, *fused;    // [C, b, d]
  void* inner;            // [C, b]
};

// With u_g = v_g + alpha v_fused + v_inner p, with relu only where g > 0: grad_g = (u_g A_g) A_g^T; the same for p with
// 1 - alpha. Cotangents that are null count as zero; gradients that are null are not wanted.
struct OrthogonalProjectBackward {
  ProjectSizes sizes;
  Subspace of_g, of_p;
  const void *g, *p;                          // [C, b, d]
  const void *v_g, *v_p, *v_fused, *v_inner;  // [C, b, d], the last one [C, b]
  void *grad_g, *grad_p;                      // [C, b, d]
};

constexpr int64_t kProjectRows = 32;   // samples of one task of the CPU: each value of a basis is loaded once for all
constexpr int64_t kProjectLanes = 16;  // what the room for coordinates is rounded up to

namespace {  // a copy for each instruction set
inline int64_t project_row_blocks(int64_t samples) {
  return (samples + kProjectRows - 1) / kProjectRows;
}
}  // namespace

// [begin, end) of the C * project_row_blocks(b) blocks of samples.
PFL_DECLARE_CPU_KERNEL(orthogonal_project, (const OrthogonalProject& p, int64_t begin, int64_t end))
PFL_DECLARE_CPU_KERNEL(orthogonal_project_backward, (const OrthogonalProjectBackward& p, int64_t begin, int64_t end))

}  // namespace pfl

extern "C" {
int pfl_cuda_orthogonal_project(const pfl::OrthogonalProject* problem, void* stream);
int pfl_cuda_orthogonal_project_backward(const pfl::OrthogonalProjectBackward* problem, void* stream);
}
