// Rows of 16-bit values, eight a load, with sums in fp32 that are rounded once.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "check.cuh"

// snippet: begin bf16_rows
// - bf16 data: `<cuda_bf16.h>`; load 16 bytes as a `uint4` of four `__nv_bfloat162`, widen by `__bfloat1622float2` and
// round by `__float22bfloat162_rn`, to nearest even.
// snippet: end
// snippet: begin fp16_rows
// - fp16 data: `<cuda_fp16.h>`; load 16 bytes as a `uint4` of four `__half2`, widen by `__half22float2` and round by
// `__float22half2_rn`, to nearest even.
// snippet: end

struct Bfloat {
    using Pair = __nv_bfloat162;
    static constexpr int kFraction = 7;
    static __device__ float2 widened(Pair pair) { return __bfloat1622float2(pair); }
    static __device__ Pair rounded(float2 two) { return __float22bfloat162_rn(two); }
};
struct Half {
    using Pair = __half2;
    static constexpr int kFraction = 10;
    static __device__ float2 widened(Pair pair) { return __half22float2(pair); }
    static __device__ Pair rounded(float2 two) { return __float22half2_rn(two); }
};

constexpr int kColumns = 256, kRows = 64;

// A warp a row: every value plus the row's sum, rounded once.
template <class Kind>
__global__ void plus_sum(const uint4* from, uint4* out) {
    const int at = blockIdx.x * 32 + threadIdx.x;
    uint4 bits = from[at];
    auto* pairs = reinterpret_cast<typename Kind::Pair*>(&bits);
    float sum = 0;
    for (int i = 0; i < 4; ++i) {
        const float2 two = Kind::widened(pairs[i]);
        sum += two.x + two.y;
    }
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    for (int i = 0; i < 4; ++i) {
        const float2 two = Kind::widened(pairs[i]);
        pairs[i] = Kind::rounded(make_float2(two.x + sum, two.y + sum));
    }
    out[at] = bits;
}

// To nearest even at `fraction` bits, for what is no subnormal.
float nearest(float x, int fraction) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const int drop = 23 - fraction;
    bits += (1u << (drop - 1)) - 1 + (bits >> drop & 1);
    bits = bits >> drop << drop;
    memcpy(&x, &bits, 4);
    return x;
}

template <class T, class Kind>
void check(const char* what) {
    T *from = both_see<T>(kRows * kColumns), *out = both_see<T>(kRows * kColumns);
    Draw draw;
    for (int i = 0; i < kRows * kColumns; ++i) from[i] = static_cast<T>(draw.whole() + (i / kColumns) / 8.0f);
    plus_sum<Kind><<<kRows, 32>>>(reinterpret_cast<uint4*>(from), reinterpret_cast<uint4*>(out));
    finish();
    for (int row = 0; row < kRows; ++row) {
        float sum = 0;  // of multiples of an eighth or a 32nd: exact in any order
        for (int i = 0; i < kColumns; ++i) sum += static_cast<float>(from[row * kColumns + i]);
        for (int i = 0; i < kColumns; ++i) {
            const float found = static_cast<float>(out[row * kColumns + i]);
            const float right = nearest(static_cast<float>(from[row * kColumns + i]) + sum, Kind::kFraction);
            expect(found == right, "%s: row %d has %g at %d, not %g", what, row, found, i, right);
        }
    }
}

int main(int count, char**) {
    if (count > 1) return verdict();  // nothing here goes without a device
    check<__nv_bfloat16, Bfloat>("bf16");
    check<__half, Half>("fp16");
    return verdict();
}
