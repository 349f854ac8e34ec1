// CPU kernels of `sgd_`, compiled once per instruction set. Explicit fused multiply-adds, as in torch's add(x, alpha),
// give the bits of torch.optim.SGD on every instruction set; without hardware FMA the C library computes them.
#include "ops/sgd/problem.h"

#include "cpu/simd/convert.h"
#include "cpu/simd/lanes.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

enum class Momentum { kNone, kPlain, kNesterov };

template <class A>
struct Step {
  A minus_lr, momentum, one_minus_dampening, weight_decay, proximal;
};

template <bool kProximal, bool kDecay, Momentum kMomentum, bool kFirst, class A>
void update(const Step<A>& step, A* __restrict p, const A* __restrict grad, A* __restrict momenta,
            const A* __restrict center, int64_t count) {
  for (int64_t j = 0; j < count; ++j) {
    A g = grad[j];
    if (kProximal) {
      g = multiply_add(step.proximal, p[j] - center[j], g);
    }
    if (kDecay) {
      g = multiply_add(step.weight_decay, p[j], g);
    }
    if (kMomentum != Momentum::kNone) {
      const A m = kFirst ? g : multiply_add(step.one_minus_dampening, g, step.momentum * momenta[j]);
      momenta[j] = m;
      g = kMomentum == Momentum::kNesterov ? multiply_add(step.momentum, m, g) : m;
    }
    p[j] = multiply_add(step.minus_lr, g, p[j]);
  }
}

template <class A>
using Update = void (*)(const Step<A>&, A*, const A*, A*, const A*, int64_t);

template <bool kProximal, bool kDecay, class A>
Update<A> choose_momentum(const Sgd& p) {
  if (p.momenta == nullptr) {
    return &update<kProximal, kDecay, Momentum::kNone, false, A>;
  }
  if (p.nesterov) {
    return p.first_step ? &update<kProximal, kDecay, Momentum::kNesterov, true, A>
                        : &update<kProximal, kDecay, Momentum::kNesterov, false, A>;
  }
  return p.first_step ? &update<kProximal, kDecay, Momentum::kPlain, true, A>
                      : &update<kProximal, kDecay, Momentum::kPlain, false, A>;
}

template <class A>
Update<A> choose(const Sgd& p) {
  if (p.centers) {
    return p.weight_decay != 0 ? choose_momentum<true, true, A>(p) : choose_momentum<true, false, A>(p);
  }
  return p.weight_decay != 0 ? choose_momentum<false, true, A>(p) : choose_momentum<false, false, A>(p);
}

template <class T>
void update_widened(Update<float> update, const Step<float>& step, T* p, const T* g, T* m, const T* c, int64_t count) {
  float params[kSgdTile], grads[kSgdTile], momenta[kSgdTile], centers[kSgdTile];
  widen(p, count, params);
  widen(g, count, grads);
  if (m) {
    widen(m, count, momenta);
  }
  if (c) {
    widen(c, count, centers);
  }
  update(step, params, grads, momenta, centers, count);
  narrow(params, count, p);
  if (m) {
    narrow(momenta, count, m);
  }
}

// Updates tensors of the accumulation type in place, others through widened copies.
template <class A, class T>
void update_run(Update<A> update, const Step<A>& step, T* p, const T* g, T* m, const T* c, int64_t count) {
  if constexpr (sizeof(T) == sizeof(A)) {
    return update(step, p, g, m, c, count);
  } else {
    update_widened(update, step, p, g, m, c, count);
  }
}

template <class T>
void run(const Sgd& p, const int64_t* first_tile, int64_t begin, int64_t end) {
  using A = accumulate_t<T>;
  const Step<A> step{static_cast<A>(-p.lr), static_cast<A>(p.momentum), static_cast<A>(1 - p.dampening),
                     static_cast<A>(p.weight_decay), static_cast<A>(p.proximal)};
  const Update<A> chosen = choose<A>(p);
  int64_t t = 0;
  for (int64_t tile = begin; tile < end; ++tile) {
    while (first_tile[t + 1] <= tile) {
      ++t;
    }
    const int64_t tiles_per_row = (p.columns[t] + kSgdTile - 1) / kSgdTile;
    const int64_t row = (tile - first_tile[t]) / tiles_per_row;
    const int64_t column = (tile - first_tile[t]) % tiles_per_row * kSgdTile;
    const int64_t count = p.columns[t] - column < kSgdTile ? p.columns[t] - column : kSgdTile;
    const int64_t* stride = p.stride + 4 * t;
    update_run(chosen, step, static_cast<T*>(p.params[t]) + row * stride[0] + column,
               static_cast<const T*>(p.grads[t]) + row * stride[1] + column,
               p.momenta ? static_cast<T*>(p.momenta[t]) + row * stride[2] + column : nullptr,
               p.centers ? static_cast<const T*>(p.centers[t]) + row * stride[3] + column : nullptr, count);
  }
}

}  // namespace

void sgd(const Sgd& p, const int64_t* first_tile, int64_t begin, int64_t end) {
  with_type(p.dtype, [&](auto type) { run<decltype(type)>(p, first_tile, begin, end); });
}

}  // namespace PFL_CAPABILITY
}  // namespace pfl
