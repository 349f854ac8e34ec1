"""Mutants that cannot change results: by kernel, a part of the rule or changed line, and the reason."""

EQUIVALENT: dict[str, dict[str, str]] = {
    "aggregate/cpu_kernel.cpp": {
        "kept = mixtures < kMixtures": "gradients that are not kept are widened again",
    },
    "aggregate/cuda_kernel.cu": {
        "int64_t{kThreads} + Pack<T>::kCount": "surplus blocks have no columns",
        "? backward<T, kManyMixtures>(p, stream) : backward<T, 1>": "both compute any number of mixtures",
        "m <= kMixtures": "the guard inside the loop skips it",
        "tile <= tiles": "a tile past the end has no columns",
        "first <= shape.mixtures": "a group of mixtures past the end is empty",
        "first <= sizes.tensors": "a tensor list past the end is empty and not launched",
        "value - value >= 0": "no comparison with NaN holds",
    },
    "conv_relu_pool/cpu_backward_kernel.cpp": {
        "kConvCacheLine < kConvCacheLine - kConvRowLanes ?": "both copies of the image hold the same values",
        "Lanes<A>::kCount <= kConvRowLanes ?": "both choices are equal then",
        "grad + Piece{}": "a gradient of -0 becomes 0, which adds the same",
        "kKernel < 5 ?": "sums do not depend on the channels per register tile",
        "image_.size + kConvRowLanes": "the copy still fits, with the same alignment",
        "i % p.sizes.samples >= 0": "kernels are read again for every sample",
    },
    "conv_relu_pool/cpu_kernel.cpp": {
        "sums[2][2 + kTileWindows]": "the array is not smaller",
        "x + kConvWindows < s_.pooled_width": "the loop for single windows computes the last ones",
        "i == begin || sample >= 0": "weights are read again for every sample",
    },
    "conv_relu_pool/cpu_winograd_backward_kernel.cpp": {
        "most = min(end + begin, blocks)": "more scratch memory than needed",
        "count < 0": "without channels, no element is read and the gradient is 0",
        "output > s.outputs": "no element is written past the last channel",
        "i == begin || first >= 0": "kernels are read again for every group of samples",
    },
    "conv_relu_pool/cpu_winograd_kernel.cpp": {
        "i == begin || first >= 0": "kernels are read again for every block of tiles",
    },
    "conv_relu_pool/cuda_kernel.cu": {
        "tap <= kMaxKernel": "no kernel has that many taps in a row",
        "if (tap <= k) {": "one tap more is summed and not stored",
    },
    "cpn_route/cpu_kernel.cpp": {
        "buffers[4][sizeof(T) <= sizeof(A)": "the larger buffer is not used",
    },
    "cpn_route/cuda_kernel.cu": {
        "shift = widen(row[1])": "any value of the row can be the shift",
    },
    "distill_losses/cpu_kernel.cpp": {
        "begin == 0 ? d[k][1]": "any value of the row can start its maximum",
        "log_of(sum) - (sum - sum)": "the second term is 0 or NaN",
    },
    "distill_losses/cuda_kernel.cu": {
        "i - group <= count": "a pass without rows has no results",
    },
    "gumbel_mask/cpu_kernel.cpp": {
        "left <= kTile ? left : kTile": "both choices are equal then",
    },
    "gumbel_mask/cuda_kernel.cu": {
        "(numel + kValues<T> + 1)": "surplus threads return before they write",
        "kValues<T> - 1) * kValues<T>": "surplus threads return before they write",
    },
    "mix/cpu_kernel.cpp": {
        "j + kLanes < count": "the loop for the rest adds the last group to the same lanes",
    },
    "mix/cuda_kernel.cu": {
        "first <= in.tensors": "a tensor list past the end is empty and not launched",
        "column <= tile.end": "nothing of a pack that begins at the end is stored, and it is loaded as zeros",
    },
    "mmd_rbf/cpu_kernel.cpp": {
        "k + kStep < count": "the code for the rest adds the last group in the same order",
        "first <= b": "a chunk past the end is empty",
    },
    "mmd_rbf/cpu_product_kernel.cpp": {
        "squares_[i] < found ?": "both choices are equal then",
        "min(kMmdProductRows, rows_ + r)": "rows past the end are computed and not read",
    },
    "mmd_rbf/cuda_kernel.cu": {
        "blockIdx.z >= blockIdx.y": "a tile on the diagonal then writes its own values twice",
        "begin <= p.features": "features past the end are zeros",
        "begin <= b": "no pairs past the end",
    },
    "orthogonal_project/cuda_kernel.cu": {
        "(sizes.samples + kSamples + 1)": "surplus blocks have no samples",
        "begin <= space.rank": "no columns past the end",
        "first <= space.rank": "no columns past the end",
        "begin <= sizes.features": "no features past the end",
    },
    "philox_uniform/cpu_kernel.cpp": {
        "p.numel - element <= end - begin": "both choices are equal then",
        "p.numel - element < end + begin": "numbers past the end of a chunk are written twice, with the same value",
    },
    "philox_uniform/cuda_kernel.cu": {
        "(problem->numel + 3) * 4": "surplus threads return before they write",
        "(threads + pfl::kThreads + 1)": "surplus threads return before they write",
    },
    "route/cpu_kernel.cpp": {
        "j <= sizes.features": "a tile past the end has no columns",
        "wide_row(global_part, buffers[0])": "h is declared __restrict and read once, before the result replaces it",
        "wide_row(grad_a + p.sizes.features, buffers[0])": "grad_global is read before the result replaces it",
    },
    "sgd/cpu_kernel.cpp": {
        "p.columns[t] - column <= kSgdTile": "both choices are equal then",
    },
    "simd/tile_kernel.cpp": {
        "first + kWide < columns": "the loop for narrower tiles adds the same products in the same order",
    },
    "take_normalized/cpu_kernel.cpp": {
        "length * 2 < kMaxChannelsInOrder": "every multiple of the channels is a period",
    },
    "take_normalized/cuda_kernel.cu": {
        "- 1) * Pack<T>::kCount": "surplus threads return before they write",
    },
}
