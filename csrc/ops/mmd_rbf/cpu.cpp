// `mmd_rbf` on CPU tensors: splits the work over threads, and chooses a path for each client. The kernels are in
// cpu_kernel.cpp and cpu_product_kernel.cpp.
#include "ops/mmd_rbf/contract.h"

namespace pfl {
namespace {

int64_t grain(int64_t enough, int64_t work) {
  return std::max<int64_t>(1, enough / std::max<int64_t>(1, work));
}

// Adds in the order of the rows.
template <class A>
void sum_rows(const MmdRbf& p) {
  const A pairs = static_cast<A>(p.points * p.points);
  for (int64_t client = 0; client < p.clients; ++client) {
    A sum = 0;
    for (int64_t i = 0; i < p.points; ++i) {
      sum += static_cast<const A*>(p.sums)[client * p.points + i];
    }
    static_cast<A*>(p.out)[client] = sum / pairs;
  }
}

// Whether matrix products are faster and accurate enough, by client. curvature(client) = sum_a 1 / a.
template <class Problem, class Curvature>
std::vector<char> use_products(const Problem& p, Curvature curvature) {
  std::vector<char> found(p.clients, 0);
  if (p.points < kMmdProductPoints) {
    return found;
  }
  std::vector<double> spread(p.clients);
  torch::stable::parallel_for(
      0, p.clients, grain(kMmdWorkPerThread, p.points * p.features), [&](int64_t i, int64_t end) {
        PFL_CPU_KERNEL(mmd_rbf_spread)({p.dtype, p.points, p.features, p.x, p.y}, i, end, spread.data());
      });
  for (int64_t client = 0; client < p.clients; ++client) {
    found[client] = spread[client] * curvature(client) <= kMmdProductSpread;  // false for NaN
  }
  return found;
}

// Calls with_products(client, first point) or differences(begin, end) for all tasks: `rows` points per client, in
// `blocks` blocks of kMmdRows points.
template <class WithProducts, class Differences>
void for_each_task(const std::vector<char>& products, int64_t rows, int64_t work_per_row, WithProducts with_products,
                   Differences differences) {
  const int64_t tasks = mmd_product_tasks(rows), blocks = mmd_row_blocks(rows);
  const int64_t clients = static_cast<int64_t>(products.size());
  torch::stable::parallel_for(
      0, clients * tasks, grain(kMmdWorkPerThread, rows / tasks * work_per_row), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t client = i / tasks, task = i % tasks;
          if (products[client]) {
            with_products(client, task * kMmdProductTaskPoints);
          } else {
            differences(client * blocks + blocks * task / tasks, client * blocks + blocks * (task + 1) / tasks);
          }
        }
      });
}

void forward(const MmdRbf& p) {
  double curvature = 0;
  for (int64_t i = 0; i < p.count; ++i) {
    curvature += 1 / p.bandwidths[i];
  }
  for_each_task(
      use_products(p, [&](int64_t) { return curvature; }), 2 * p.points, p.points * p.features,
      [&](int64_t client, int64_t first) { PFL_CPU_KERNEL(mmd_rbf_product_distances)(p, client, first); },
      [&](int64_t begin, int64_t end) { PFL_CPU_KERNEL(mmd_rbf_distances)(p, begin, end); });
  torch::stable::parallel_for(0, p.clients * p.points, grain(kMmdPairsPerThread, p.points * p.count),
                              [&](int64_t begin, int64_t end) { PFL_CPU_KERNEL(mmd_rbf_rows)(p, begin, end); });
  p.dtype == Float::kDouble ? sum_rows<double>(p) : sum_rows<float>(p);
}

// The weight of a point and itself: sum_a 1 / a.
template <class A>
double first_weight(const MmdRbfBackward& p, int64_t client) {
  return static_cast<double>(static_cast<const A*>(p.weights)[client * 3 * p.points * p.points]);
}

void backward(const MmdRbfBackward& p) {
  const std::vector<char> products = use_products(p, [&](int64_t client) {
    return p.dtype == Float::kDouble ? first_weight<double>(p, client) : first_weight<float>(p, client);
  });
  for (const bool of_y : {false, true}) {
    if (of_y ? p.grad_y : p.grad_x) {
      const int64_t blocks = of_y ? p.clients * mmd_row_blocks(p.points) : 0;
      for_each_task(
          products, p.points, p.points * p.features,
          [&](int64_t client, int64_t first) { PFL_CPU_KERNEL(mmd_rbf_product_backward)(p, of_y, client, first); },
          [&](int64_t begin, int64_t end) { PFL_CPU_KERNEL(mmd_rbf_backward)(p, blocks + begin, blocks + end); });
    }
  }
}

std::tuple<Tensor, Tensor> mmd_rbf_cpu(Tensor x, Tensor y, std::vector<double> bandwidths) {
  return mmd_rbf(x, y, bandwidths, forward);
}

std::tuple<Tensor, Tensor> mmd_rbf_backward_cpu(Tensor grad, Tensor x, Tensor y, Tensor weights, bool needs_x,
                                                bool needs_y) {
  return mmd_rbf_backward(grad, x, y, weights, needs_x, needs_y, backward);
}

}  // namespace
}  // namespace pfl

STABLE_TORCH_LIBRARY_IMPL(pfl_fast, CPU, m) {
  m.impl("mmd_rbf", TORCH_BOX(&pfl::mmd_rbf_cpu));
  m.impl("mmd_rbf_backward", TORCH_BOX(&pfl::mmd_rbf_backward_cpu));
}
