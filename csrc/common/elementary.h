// exp, log and sigmoid. In float they use only additions, multiplications and bit operations, so compilers vectorise
// loops over them and host and device return the same bits; the error is at most 2 ulp (tested). In double they call
// the standard library.
#pragma once

#include <math.h>

#include <cstdint>
#include <cstring>

#include "common/philox.h"  // PFL_HOST_DEVICE

namespace pfl {
namespace {

PFL_HOST_DEVICE uint32_t bits_from(float value) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(value);
#else
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
#endif
}

PFL_HOST_DEVICE float float_from(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

// exp(x) = 2^n exp(r) with n = round(x / ln 2), |r| <= ln(2) / 2. Returns exp(r); x is in the range of exp_of or NaN.
PFL_HOST_DEVICE float exp_remainder(float x, int32_t* n) {
  const float shifted = x * 1.44269504f + 12582912.0f;  // adding 1.5 * 2^23 rounds to an integer
  const float rounded = shifted - 12582912.0f;
  const float r = (x - rounded * 0.693359375f) - rounded * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  *n = static_cast<int32_t>(bits_from(shifted)) - 0x4b400000;
  return (p * (r * r) + r) + 1.0f;
}

PFL_HOST_DEVICE float power_of_two(int32_t n) {
  return float_from(static_cast<uint32_t>(n + 127) << 23);
}

// exp(x): about 1e-38 instead of a subnormal for x < -87.3, infinite for x > 88.7; NaN stays NaN.
PFL_HOST_DEVICE float exp_of(float x) {
  const float low = -87.33654f, high = 88.72283f;
  int32_t n;
  const float e = exp_remainder(x < low ? low : (x > high ? high : x), &n);
  // 2^n as two factors, because 2^128 overflows.
  const int32_t half = n >> 1;
  const float scaled = e * power_of_two(half) * power_of_two(n - half);
  const float result = x > high ? float_from(0x7f800000u) : scaled;
  return x != x ? x : result;
}

// Returns the bits of exp_of for x <= 0 or NaN. Skips the overflow handling: nearly twice as fast.
PFL_HOST_DEVICE float exp_of_nonpositive(float x) {
  const float low = -87.33654f;
  int32_t n;
  const float e = exp_remainder(x < low ? low : x, &n);
  return e * power_of_two(n);
}

// log(x) for normal x > 0: exponent * ln 2 + log(mantissa), with the mantissa in [sqrt(1/2), sqrt(2)).
PFL_HOST_DEVICE float log_of(float x) {
  const int32_t bits = static_cast<int32_t>(bits_from(x));
  const int32_t exponent = (bits - 0x3f3504f3) >> 23;
  const float f = float_from(bits_from(x) - (static_cast<uint32_t>(exponent) << 23)) - 1.0f;
  const float e = static_cast<float>(exponent);
  const float z = f * f;
  float p = 7.0376836292e-2f;
  p = p * f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  const float y = (p * (f * z) + e * -2.12194440e-4f) - 0.5f * z;
  return (f + y) + e * 0.693359375f;
}

PFL_HOST_DEVICE double exp_of(double x) {
  return exp(x);
}
PFL_HOST_DEVICE double exp_of_nonpositive(double x) {
  return exp(x);
}
PFL_HOST_DEVICE double log_of(double x) {
  return log(x);
}

template <class Real>
PFL_HOST_DEVICE Real sigmoid_of(Real x) {
  return Real(1) / (Real(1) + exp_of(-x));
}

}  // namespace
}  // namespace pfl
