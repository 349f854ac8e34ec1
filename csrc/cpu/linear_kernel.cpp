// CPU kernel of `linear`, compiled once per instruction set into namespace PFL_CAPABILITY: chooses between lanes along
// inputs, lanes across rows, and sparse rows.
#include "linear_across.h"
#include "linear_along.h"
#include "linear_sparse_rows.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

// Computes the blocks of outputs [begin, end) of one client.
template <class Product>
void run_client(Product product, int64_t client, int64_t begin, int64_t end) {
  product.read_x(client);
  for (int64_t block = begin; block < end; ++block) {
    product.run(client, block * kLinearOutputs);
  }
}

template <class T>
void forward(const Linear& p, int64_t begin, int64_t end, void* scratch) {
  const int64_t blocks = linear_blocks(p.sizes.outputs, kLinearOutputs);
  for (int64_t task = begin; task < end;) {
    const int64_t client = task / blocks, first = task % blocks, last = min(blocks, first + end - task);
    if (!linear_lanes_across_rows(p.sizes.rows)) {
      run_client(LanesAlongInputs<T>(p, scratch), client, first, last);
    } else if (const SparseRows<T> rows(p, scratch); rows.is_worthwhile(client)) {
      run_client(rows, client, first, last);
    } else {
      run_client(LanesAcrossRows<T>(p, scratch), client, first, last);
    }
    task += last - first;
  }
}

}  // namespace

void linear(const Linear& p, int64_t begin, int64_t end, void* scratch) {
  with_type(p.sizes.dtype, [&](auto type) { forward<decltype(type)>(p, begin, end, scratch); });
}

}  // namespace PFL_CAPABILITY
}  // namespace pfl
