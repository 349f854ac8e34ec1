// Runs the CPU kernel of conv_relu_pool on one small image.
#define PFL_CAPABILITY baseline
#include "ops/conv_relu_pool/cpu_kernel.cpp"

int main() {
  float x[6 * 6] = {}, weight[3 * 3] = {}, bias[1] = {}, out[2 * 2];
  uint8_t index[2 * 2];
  const pfl::ConvReluPoolSizes sizes{pfl::Float::kFloat, 1, 1, 1, 6, 6, 1, 3, 0, 2, 2};
  pfl::baseline::conv_relu_pool({sizes, {x, 0, 36, 36, 6, 1}, {weight, 0, 9, 9, 3, 1}, bias, out, index}, 0, 1);
}
