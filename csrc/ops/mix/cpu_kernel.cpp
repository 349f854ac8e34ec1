// CPU kernels of `mix`, compiled once per instruction set. Every product and sum is rounded separately, and dot
// products have a fixed number of lanes, so results do not depend on the instruction set or the number of threads.
#include "ops/mix/problem.h"

#include "cpu/simd/convert.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

constexpr int64_t kTile = kMixTile;
constexpr int64_t kLanes = 16;  // lanes of a dot product

// At most kTile columns of one row of one tensor.
struct Tile {
  int64_t tensor, row, column, count;
};

class Tiles {
 public:
  Tiles(const MixTensors& in, const int64_t* first_tile) : in_(in), first_tile_(first_tile) {
  }

  // Tile of this index; indices must not decrease between calls.
  Tile operator[](int64_t index) {
    while (first_tile_[tensor_ + 1] <= index) {
      ++tensor_;
    }
    const int64_t per_row = (in_.columns[tensor_] + kTile - 1) / kTile;
    const int64_t row = (index - first_tile_[tensor_]) / per_row;
    const int64_t column = (index - first_tile_[tensor_]) % per_row * kTile;
    const int64_t left = in_.columns[tensor_] - column;
    return {tensor_, row, column, left < kTile ? left : kTile};
  }

 private:
  const MixTensors& in_;
  const int64_t* first_tile_;
  int64_t tensor_ = 0;
};

// Start of the tile; kind 0 to 3 selects the stride of local, global, choices or grads.
template <class T>
const T* at(const MixTensors& in, const void* const* tensors, int kind, const Tile& tile) {
  return static_cast<const T*>(tensors[tile.tensor]) + tile.row * in.stride[4 * tile.tensor + kind] + tile.column;
}

template <class T>
T* out_at(const MixTensors& in, void* const* tensors, const Tile& tile) {
  return static_cast<T*>(tensors[tile.tensor]) + tile.row * in.columns[tile.tensor] + tile.column;
}

template <class A>
A harden(A choice) {
  return choice >= A(0.5) ? A(1) : A(0);
}

template <class A>
A choice_of(const MixTensors& in, const Tile& tile) {
  const A choice = static_cast<const A*>(in.choice)[tile.row * in.segments + in.segment[tile.tensor]];
  return in.hard ? harden(choice) : choice;
}

template <class T>
void copy(const T* from, int64_t count, T* to) {
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof(T));
}

template <class T>
void clear(int64_t count, T* to) {
  std::memset(static_cast<void*>(to), 0, static_cast<size_t>(count) * sizeof(T));
}

template <class A>
void harden(const A* __restrict choice, int64_t count, A* __restrict out) {
  for (int64_t j = 0; j < count; ++j) {
    out[j] = harden(choice[j]);
  }
}

template <class A>
void blend(A c, const A* __restrict local, const A* __restrict global, int64_t count, A* __restrict out) {
  for (int64_t j = 0; j < count; ++j) {
    out[j] = local[j] + c * (global[j] - local[j]);
  }
}

template <class A>
void blend(const A* __restrict c, const A* __restrict local, const A* __restrict global, int64_t count,
           A* __restrict out) {
  for (int64_t j = 0; j < count; ++j) {
    const A mixed = local[j] + c[j] * (global[j] - local[j]);
    const A upper = c[j] == A(1) ? global[j] : mixed;
    out[j] = c[j] == A(0) ? local[j] : upper;
  }
}

template <class A>
void scale(A factor, const A* __restrict grad, int64_t count, A* __restrict out) {
  for (int64_t j = 0; j < count; ++j) {
    out[j] = factor * grad[j];
  }
}

template <class A>
void scale(const A* __restrict factor, const A* __restrict grad, int64_t count, A* __restrict out) {
  for (int64_t j = 0; j < count; ++j) {
    const A scaled = factor[j] * grad[j];
    out[j] = factor[j] == A(0) ? A(0) : scaled;
  }
}

template <class A>
void complement(const A* __restrict c, int64_t count, A* __restrict out) {
  for (int64_t j = 0; j < count; ++j) {
    out[j] = A(1) - c[j];
  }
}

template <class A>
void choice_gradient(const A* __restrict grad, const A* __restrict local, const A* __restrict global, int64_t count,
                     A* __restrict out) {
  for (int64_t j = 0; j < count; ++j) {
    out[j] = grad[j] * (global[j] - local[j]);
  }
}

template <class A>
A choice_gradient_sum(const A* __restrict grad, const A* __restrict local, const A* __restrict global, int64_t count) {
  A lanes[kLanes] = {};
  int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = lanes[lane] + grad[j + lane] * (global[j + lane] - local[j + lane]);
    }
  }
  for (int64_t lane = 0; j < count; ++j, ++lane) {
    lanes[lane] = lanes[lane] + grad[j] * (global[j] - local[j]);
  }
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t lane = 0; lane < width; ++lane) {
      lanes[lane] = lanes[lane] + lanes[lane + width];
    }
  }
  return lanes[0];
}

// Calls function(out) to write values of the accumulation type, through a buffer if T is narrower.
template <class A, class T, class Function>
void write(int64_t count, T* out, Function function) {
  if constexpr (sizeof(T) == sizeof(A)) {
    function(out);
  } else {
    A buffer[kTile];
    function(buffer);
    narrow(buffer, count, out);
  }
}

template <class T>
void forward_segment(const MixForward& p, const Tile& tile) {
  using A = accumulate_t<T>;
  const A c = choice_of<A>(p.in, tile);
  const T* local = at<T>(p.in, p.in.local, 0, tile);
  const T* global = at<T>(p.in, p.in.global, 1, tile);
  T* out = out_at<T>(p.in, p.out, tile);
  if (c == A(0) || c == A(1)) {
    return copy(c == A(0) ? local : global, tile.count, out);
  }
  A local_buffer[kTile], global_buffer[kTile];
  const A* l = widen(local, tile.count, local_buffer);
  const A* g = widen(global, tile.count, global_buffer);
  write<A>(tile.count, out, [&](A* to) { blend(c, l, g, tile.count, to); });
}

template <class T>
void forward_elementwise(const MixForward& p, const Tile& tile) {
  using A = accumulate_t<T>;
  A local_buffer[kTile], global_buffer[kTile], choice_buffer[kTile], hard_buffer[kTile];
  const A* l = widen(at<T>(p.in, p.in.local, 0, tile), tile.count, local_buffer);
  const A* g = widen(at<T>(p.in, p.in.global, 1, tile), tile.count, global_buffer);
  const A* c = widen(at<T>(p.in, p.in.choices, 2, tile), tile.count, choice_buffer);
  if (p.in.hard) {
    harden(c, tile.count, hard_buffer);
    c = hard_buffer;
  }
  write<A>(tile.count, out_at<T>(p.in, p.out, tile), [&](A* to) { blend(c, l, g, tile.count, to); });
}

// factor * grad; exactly 0 if the factor is 0 and exactly grad if it is 1.
template <class A, class T>
void scale_row(A factor, const T* given, const A* grad, int64_t count, T* out) {
  if (factor == A(0)) {
    clear(count, out);
  } else if (factor == A(1)) {
    copy(given, count, out);
  } else {
    write<A>(count, out, [&](A* to) { scale(factor, grad, count, to); });
  }
}

template <class T>
void backward_segment(const MixBackward& p, const Tile& tile, double* partial) {
  using A = accumulate_t<T>;
  A grad_buffer[kTile], local_buffer[kTile], global_buffer[kTile];
  const T* given = at<T>(p.in, p.grads, 3, tile);
  const A* grad = widen(given, tile.count, grad_buffer);
  const A c = choice_of<A>(p.in, tile);
  if (p.grad_local) {
    scale_row(A(1) - c, given, grad, tile.count, out_at<T>(p.in, p.grad_local, tile));
  }
  if (p.grad_global) {
    scale_row(c, given, grad, tile.count, out_at<T>(p.in, p.grad_global, tile));
  }
  if (partial) {
    const A* l = widen(at<T>(p.in, p.in.local, 0, tile), tile.count, local_buffer);
    const A* g = widen(at<T>(p.in, p.in.global, 1, tile), tile.count, global_buffer);
    *partial = static_cast<double>(choice_gradient_sum(grad, l, g, tile.count));
  }
}

template <class T>
void backward_elementwise(const MixBackward& p, const Tile& tile) {
  using A = accumulate_t<T>;
  A grad_buffer[kTile], first_buffer[kTile], second_buffer[kTile];
  const int64_t count = tile.count;
  const A* grad = widen(at<T>(p.in, p.grads, 3, tile), count, grad_buffer);
  if (p.grad_choices) {
    const A* l = widen(at<T>(p.in, p.in.local, 0, tile), count, first_buffer);
    const A* g = widen(at<T>(p.in, p.in.global, 1, tile), count, second_buffer);
    write<A>(count, out_at<T>(p.in, p.grad_choices, tile), [&](A* to) { choice_gradient(grad, l, g, count, to); });
  }
  const A* c = widen(at<T>(p.in, p.in.choices, 2, tile), count, first_buffer);
  if (p.in.hard) {
    harden(c, count, second_buffer);
    c = second_buffer;
  }
  if (p.grad_global) {
    write<A>(count, out_at<T>(p.in, p.grad_global, tile), [&](A* to) { scale(c, grad, count, to); });
  }
  if (p.grad_local) {
    A rest[kTile];
    complement(c, count, rest);
    write<A>(count, out_at<T>(p.in, p.grad_local, tile), [&](A* to) { scale(rest, grad, count, to); });
  }
}

template <class T>
void forward(const MixForward& p, const int64_t* first_tile, int64_t begin, int64_t end) {
  Tiles tiles(p.in, first_tile);
  for (int64_t index = begin; index < end; ++index) {
    if (p.in.choices) {
      forward_elementwise<T>(p, tiles[index]);
    } else {
      forward_segment<T>(p, tiles[index]);
    }
  }
}

template <class T>
void backward(const MixBackward& p, const int64_t* first_tile, int64_t begin, int64_t end) {
  Tiles tiles(p.in, first_tile);
  for (int64_t index = begin; index < end; ++index) {
    if (p.in.choices) {
      backward_elementwise<T>(p, tiles[index]);
    } else {
      backward_segment<T>(p, tiles[index], p.partial ? p.partial + index : nullptr);
    }
  }
}

}  // namespace

void mix_forward(const MixForward& p, const int64_t* first_tile, int64_t begin, int64_t end) {
  with_type(p.in.dtype, [&](auto type) { forward<decltype(type)>(p, first_tile, begin, end); });
}

void mix_backward(const MixBackward& p, const int64_t* first_tile, int64_t begin, int64_t end) {
  with_type(p.in.dtype, [&](auto type) { backward<decltype(type)>(p, first_tile, begin, end); });
}

}  // namespace PFL_CAPABILITY
}  // namespace pfl
