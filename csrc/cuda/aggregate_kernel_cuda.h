// The CUDA kernels of `aggregate` as the tensor code sees them. Pointers are device pointers, except the arrays [T] of
// pointers and sizes, which are read on the host. Each returns a cudaError_t as a number. C linkage, and one pointer to
// a struct of eight-byte fields, so that the tests can call the emulated kernels without a compiler.
#pragma once

#include "aggregate_kernel.h"

extern "C" {
int pfl_cuda_aggregate(const pfl::AggregateForward* problem, void* stream);

// Leaves the sum over parts in the first part of grad_weights.
int pfl_cuda_aggregate_backward(const pfl::AggregateBackward* problem, void* stream);
}

namespace pfl {

constexpr int64_t kAggregateCudaParts = 512;  // blocks of the backward: each owns one set of partial sums

}  // namespace pfl
