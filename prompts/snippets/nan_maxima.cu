// Maxima and minima that pass a NaN on, as torch's do, four and eight values a load.
#include <cmath>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "check.cuh"

// snippet: begin nan_maxima
// fmaxf and fminf drop a NaN, which torch's maxima, minima, pooling and ReLU return. From compute capability 8.0 on
// one instruction keeps it; min.NaN.f32 likewise, and __hmax2_nan, __hmin2_nan for two values of 16 bits at once.
__device__ __forceinline__ float max_nan(float a, float b) {
    float m;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
    return m;
}
// snippet: end

__device__ float min_nan(float a, float b) {
    float m;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
    return m;
}

constexpr int kColumns = 256;  // eight values a lane

// A warp a row: out[row] has maximum, minimum, and the same of the row in 16 bits.
template <class Pair, class Narrow>
__global__ void of_rows(const float* from, float (*out)[5], Narrow narrow) {
    const int row = blockIdx.x, lane = threadIdx.x;
    const float4* mine = reinterpret_cast<const float4*>(from + row * kColumns) + 2 * lane;
    const float4 a = mine[0], b = mine[1];
    const float x[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    float most = x[0], least = x[0], dropped = x[0];
    Pair pair = narrow(x[0], x[1]), most_pair = pair, least_pair = pair;
    for (int i = 0; i < 8; ++i) {
        most = max_nan(most, x[i]), least = min_nan(least, x[i]), dropped = fmaxf(dropped, x[i]);
        pair = narrow(x[i], x[i ^ 1]);
        most_pair = __hmax2_nan(most_pair, pair), least_pair = __hmin2_nan(least_pair, pair);
    }
    for (int step = 16; step; step /= 2) {
        most = max_nan(most, __shfl_xor_sync(~0u, most, step));
        least = min_nan(least, __shfl_xor_sync(~0u, least, step));
        dropped = fmaxf(dropped, __shfl_xor_sync(~0u, dropped, step));
        most_pair = __hmax2_nan(most_pair, __shfl_xor_sync(~0u, most_pair, step));
        least_pair = __hmin2_nan(least_pair, __shfl_xor_sync(~0u, least_pair, step));
    }
    if (lane) return;
    out[row][0] = most, out[row][1] = least, out[row][2] = static_cast<float>(most_pair.y);
    out[row][3] = static_cast<float>(least_pair.x), out[row][4] = dropped;
}

struct ToHalf {
    __device__ __half2 operator()(float a, float b) const { return __floats2half2_rn(a, b); }
};
struct ToBfloat {
    __device__ __nv_bfloat162 operator()(float a, float b) const { return __floats2bfloat162_rn(a, b); }
};

int main(int count, char**) {
    if (count > 1) return verdict();  // nothing here goes without a device
    constexpr int kRows = kColumns + 1;  // row r has its NaN in column r, the last one none
    float* from = both_see<float>(kRows * kColumns);
    auto* out = reinterpret_cast<float(*)[5]>(both_see<float>(kRows * 5));
    for (int kind = 0; kind < 2; ++kind) {
        for (int row = 0; row < kRows; ++row)
            for (int i = 0; i < kColumns; ++i)
                from[row * kColumns + i] = i == row ? NAN : static_cast<float>((i * 37 + row) % kColumns) - 128;
        if (kind == 0) {
            of_rows<__half2><<<kRows, 32>>>(from, out, ToHalf());
        } else {
            of_rows<__nv_bfloat162><<<kRows, 32>>>(from, out, ToBfloat());
        }
        finish();
        for (int row = 0; row < kRows; ++row)
            for (int i = 0; i < 4; ++i) {
                const float found = out[row][i], right = i % 2 ? -128 : 127;
                const bool keeps = row < kColumns ? std::isnan(found) : found == right;
                expect(keeps, "kind %d, result %d of row %d is %g", kind, i, row, found);
            }
        for (int row = 0; row < kRows; ++row)
            expect(!std::isnan(out[row][4]), "fmaxf keeps the NaN of row %d", row);
    }
    return verdict();
}
