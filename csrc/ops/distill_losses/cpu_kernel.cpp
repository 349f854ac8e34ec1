// CPU kernels of `distill_losses`, compiled once per instruction set into namespace PFL_CAPABILITY. Sums have as many
// lanes as CUDA uses threads per row, so CUDA and every vector width give the same bits.
#include "ops/distill_losses/problem.h"

#include "common/elementary.h"
#include "cpu/simd/convert.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

constexpr int64_t kLanes = kDistillLanes;
constexpr int64_t kTile = kDistillTile;

template <class A>
using LaneSums = A[kLanes];

template <class A>
A reduce(LaneSums<A>& lanes) {
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t lane = 0; lane < width; ++lane) {
      lanes[lane] = lanes[lane] + lanes[lane + width];
    }
  }
  return lanes[0];
}

// Adds whole groups of lanes; the last group is zero-padded.
template <class A>
void add(LaneSums<A>& __restrict lanes, const A* __restrict x, int64_t padded) {
  for (int64_t j = 0; j < padded; j += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = lanes[lane] + x[j + lane];
    }
  }
}

template <class A>
void add_products(LaneSums<A>& __restrict lanes, const A* __restrict x, const A* __restrict y, int64_t padded) {
  for (int64_t j = 0; j < padded; j += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = lanes[lane] + x[j + lane] * y[j + lane];
    }
  }
}

template <class A>
A tile_max(const A* __restrict x, int64_t padded, A initial) {
  LaneSums<A> lanes;
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    lanes[lane] = initial;
  }
  for (int64_t j = 0; j < padded; j += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = x[j + lane] > lanes[lane] ? x[j + lane] : lanes[lane];
    }
  }
  A max = initial;
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    max = lanes[lane] > max ? lanes[lane] : max;
  }
  return max;
}

// d = y - max, e = exp(d); the padding of the last group of lanes is set to 0.
template <class A>
void exponentials(A* __restrict d, A* __restrict e, A max, int64_t count, int64_t padded) {
  for (int64_t j = 0; j < padded; ++j) {
    d[j] = d[j] - max;
  }
  for (int64_t j = 0; j < padded; ++j) {
    e[j] = exp_of(d[j]);
  }
  for (int64_t j = count; j < padded; ++j) {
    d[j] = e[j] = A(0);
  }
}

template <class A>
void subtract(const A* __restrict x, const A* __restrict y, int64_t padded, A* __restrict out) {
  for (int64_t j = 0; j < padded; ++j) {
    out[j] = x[j] - y[j];
  }
}

// log_of does not handle NaN; sum - sum restores it.
template <class A>
A log_of_sum(A sum) {
  return log_of(sum) + (sum - sum);
}

enum Logits : int { kG = 0, kP = 1, kU = 2 };

// One row of the three logits: measure() computes maxima and sums, tile() the d, e and q of one tile.
template <class T>
struct Row {
  using A = accumulate_t<T>;
  const DistillInputs& in;
  const T* y[3];
  A max[3], s[3], u, x_g, x_p;
  A d[3][kTile], e[3][kTile], q[kTile];
  int64_t count, padded;  // values of the tile, without and with padding

  explicit Row(const DistillInputs& inputs) : in(inputs) {
  }

  void measure(int64_t row) {
    y[kG] = static_cast<const T*>(in.y_g) + row * in.classes;
    y[kP] = static_cast<const T*>(in.y_p) + row * in.classes;
    y[kU] = static_cast<const T*>(in.y_u) + row * in.classes;
    for (int64_t begin = 0; begin < in.classes; begin += kTile) {
      read(begin);
      for (int k = 0; k < 3; ++k) {
        max[k] = tile_max(d[k], padded, begin == 0 ? d[k][0] : max[k]);
      }
    }
    LaneSums<A> s_lanes[3] = {}, u_lanes = {}, x_g_lanes = {}, x_p_lanes = {};
    for (int64_t begin = 0; begin < in.classes; begin += kTile) {
      if (in.classes > kTile) {
        read(begin);
      }
      shift();
      for (int k = 0; k < 3; ++k) {
        add(s_lanes[k], e[k], padded);
      }
      add_products(u_lanes, e[kU], d[kU], padded);
      add_products(x_g_lanes, e[kG], q, padded);
      add_products(x_p_lanes, e[kP], q, padded);
    }
    for (int k = 0; k < 3; ++k) {
      s[k] = reduce(s_lanes[k]);
    }
    u = reduce(u_lanes);
    x_g = reduce(x_g_lanes);
    x_p = reduce(x_p_lanes);
  }

  // Computes the tile from class `begin` on for the gradients; a row with one tile still holds it from measure().
  void tile(int64_t begin) {
    if (in.classes > kTile) {
      read(begin);
      shift();
    }
  }

  // -log p[target]
  A cross_entropy(int k, int64_t target) const {
    A value;
    const A* logit = widen(y[k] + target, 1, &value);
    return log_of_sum(s[k]) - (*logit - max[k]);
  }

 private:
  // Reads the logits of a tile into d; pads the last group of lanes with the first value of the tile.
  void read(int64_t begin) {
    count = in.classes - begin < kTile ? in.classes - begin : kTile;
    padded = (count + kLanes - 1) / kLanes * kLanes;
    for (int k = 0; k < 3; ++k) {
      const A* values = widen(y[k] + begin, count, d[k]);
      if (values != d[k]) {
        std::memcpy(d[k], values, static_cast<size_t>(count) * sizeof(A));
      }
      for (int64_t j = count; j < padded; ++j) {
        d[k][j] = d[k][0];
      }
    }
  }

  void shift() {
    for (int k = 0; k < 3; ++k) {
      exponentials(d[k], e[k], max[k], count, padded);
    }
    subtract(d[kP], d[kG], padded, q);
  }
};

template <class T>
void forward(const DistillForward& p, int64_t begin, int64_t end) {
  using A = accumulate_t<T>;
  const int64_t parts = distill_parts(p.in.rows);
  Row<T> row(p.in);
  for (int64_t index = begin; index < end; ++index) {
    const int64_t first = index % parts * kDistillPartRows;
    const int64_t left = p.in.rows - first;
    const int64_t count = left < kDistillPartRows ? left : kDistillPartRows;
    LaneSums<double> sums[kDistillTerms] = {};
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = index / parts * p.in.rows + first + i;
      row.measure(at);
      const A terms[kDistillTerms] = {row.cross_entropy(kG, p.in.target[at]), row.cross_entropy(kP, p.in.target[at]),
                                      row.u / row.s[kU] - log_of_sum(row.s[kU]),
                                      row.x_p / row.s[kP] - row.x_g / row.s[kG]};
      for (int term = 0; term < kDistillTerms; ++term) {
        sums[term][i % kLanes] += static_cast<double>(terms[term]);
      }
    }
    for (int term = 0; term < kDistillTerms; ++term) {
      p.partial[index * kDistillTerms + term] = reduce(sums[term]);
    }
  }
}

// Coefficients of the gradients of one row.
template <class A>
struct Coefficients {
  A gce, lce, ent, dis;               // gradients of the losses divided by the number of rows
  A inverse_g, inverse_p, inverse_u;  // 1 / S
  A mean_g, mean_p, mean_u;           // X_g / S_g, X_p / S_p, U / S_u
};

template <class A>
void gradients_g(const Coefficients<A>& c, const A* __restrict e_g, const A* __restrict e_p, const A* __restrict q,
                 int64_t padded, A* __restrict out) {
  for (int64_t j = 0; j < padded; ++j) {
    const A g = e_g[j] * c.inverse_g, p = e_p[j] * c.inverse_p;
    out[j] = c.gce * g + c.dis * ((g - p) - g * (q[j] - c.mean_g));
  }
}

template <class A>
void gradients_p(const Coefficients<A>& c, const A* __restrict e_g, const A* __restrict e_p, const A* __restrict q,
                 int64_t padded, A* __restrict out) {
  for (int64_t j = 0; j < padded; ++j) {
    const A g = e_g[j] * c.inverse_g, p = e_p[j] * c.inverse_p;
    out[j] = c.lce * p + c.dis * ((p - g) + p * (q[j] - c.mean_p));
  }
}

template <class A>
void gradients_u(const Coefficients<A>& c, const A* __restrict e_u, const A* __restrict d_u, int64_t padded,
                 A* __restrict out) {
  for (int64_t j = 0; j < padded; ++j) {
    out[j] = c.ent * ((e_u[j] * c.inverse_u) * (d_u[j] - c.mean_u));
  }
}

template <class T>
void backward(const DistillBackward& p, int64_t begin, int64_t end) {
  using A = accumulate_t<T>;
  Row<T> row(p.in);
  A out[kTile];
  const A inverse_rows = A(1) / static_cast<A>(p.in.rows);
  for (int64_t at = begin; at < end; ++at) {
    const auto cotangent = [&](int term) {
      return static_cast<const A*>(p.grads[term])[at / p.in.rows] * inverse_rows;
    };
    row.measure(at);
    const Coefficients<A> c = {cotangent(0),        cotangent(1),     cotangent(2),     cotangent(3),
                               A(1) / row.s[kG],    A(1) / row.s[kP], A(1) / row.s[kU], row.x_g / row.s[kG],
                               row.x_p / row.s[kP], row.u / row.s[kU]};
    for (int64_t first = 0; first < p.in.classes; first += kTile) {
      row.tile(first);
      const int64_t offset = at * p.in.classes + first;
      const int64_t target = p.in.target[at] - first;
      const bool holds_target = target >= 0 && target < row.count;
      gradients_g(c, row.e[kG], row.e[kP], row.q, row.padded, out);
      if (holds_target) {
        out[target] = out[target] - c.gce;
      }
      narrow(out, row.count, static_cast<T*>(p.grad_g) + offset);
      gradients_p(c, row.e[kG], row.e[kP], row.q, row.padded, out);
      if (holds_target) {
        out[target] = out[target] - c.lce;
      }
      narrow(out, row.count, static_cast<T*>(p.grad_p) + offset);
      gradients_u(c, row.e[kU], row.d[kU], row.padded, out);
      narrow(out, row.count, static_cast<T*>(p.grad_u) + offset);
    }
  }
}

}  // namespace

void distill_losses_forward(const DistillForward& p, int64_t begin, int64_t end) {
  with_type(p.in.dtype, [&](auto type) { forward<decltype(type)>(p, begin, end); });
}

void distill_losses_backward(const DistillBackward& p, int64_t begin, int64_t end) {
  with_type(p.in.dtype, [&](auto type) { backward<decltype(type)>(p, begin, end); });
}

}  // namespace PFL_CAPABILITY
}  // namespace pfl
