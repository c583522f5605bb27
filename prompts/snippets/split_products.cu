// fp32 products out of pieces of 16 bits or TF32 on tensor cores, and the error that they make over a long k.
#include <cmath>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "check.cuh"
#include "wgmma.cuh"

// snippet: begin split
// fp32 products from pieces, the largest first; the products of pieces i and j with i + j below the number of pieces:
// fp16, 2 pieces, 3 products, values scaled by a power of two (for each row, channel or image) to a largest magnitude
// of about 2^14, undone at the end. TF32, 2 pieces, 3 products of half that rate, no scale. bf16, 3 pieces, 6
// products, no scale.
__device__ __forceinline__ void split(float x, __half (&h)[2]) {
    h[0] = __float2half_rn(x), h[1] = __float2half_rn(x - __half2float(h[0]));
}
__device__ __forceinline__ void split(float x, __nv_bfloat16 (&h)[3]) {
    for (int i = 0; i < 3; ++i) h[i] = __float2bfloat16_rn(x), x -= __bfloat162float(h[i]);
}
__device__ __forceinline__ void split(float x, uint32_t (&h)[2]) {  // TF32
    for (int i = 0; i < 2; ++i) {
        asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(h[i]) : "f"(x));
        x -= __uint_as_float(h[i]);
    }
}
// Tensor cores cut off where they add: a sum of terms of one sign gets too small by about k / 16 * 2^-23 of itself,
// over k = 16384 more than 2^-15, with the small products in sums of their own too. So: after every 16 instructions'
// worth of k (256; TF32 128) take the sum out, in each such stretch all small products first, then the large one,
// into the same registers, then sum += d by plain additions. The error stays below 2^-18 of the sum of magnitudes at
// any k.
// snippet: end

// How a kind of piece is held and multiplied: a fragment of A has four registers, one of B two.
struct Half {
    static constexpr int kPieces = 2, kStep = 16;
    static constexpr float kScale = 4096;  // of both factors, whose largest magnitudes are about 4
    using Piece = __half;
    static __device__ void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
};

struct HalfByWarpgroup : Half {
    static __device__ void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
        __shared__ alignas(128) uint32_t tile[64];  // 8 columns of 16 k
        const int lane = threadIdx.x;
        if (lane < 32)
            for (int i = 0; i < 2; ++i) tile[place<16>(8, lane / 4, (lane % 4 * 2 + 8 * i) * 2) / 4] = b[i];
        show_stores();
        __syncthreads();
        begin_products();
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\nwgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, p, 1, 1, 0;\n}"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(k_major<16>(shared_address(tile), 8, 0)));
        commit_products();
        wait_products<0>(d);
        __syncthreads();
    }
};

struct Bfloat {
    static constexpr int kPieces = 3, kStep = 16;
    static constexpr float kScale = 1;
    using Piece = __nv_bfloat16;
    static __device__ void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
};

struct Tf32 {
    static constexpr int kPieces = 2, kStep = 8;
    static constexpr float kScale = 1;
    using Piece = uint32_t;
    static __device__ void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
        asm volatile(
            "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
};

// The pieces of the values that a lane holds of one register, from `from` on along k, into their fragments.
template <class Kind, int kRegisters>
__device__ void put(const float* from, int i, uint32_t (&fragment)[Kind::kPieces][kRegisters]) {
    constexpr int kValues = 4 / sizeof(typename Kind::Piece);
    typename Kind::Piece pieces[kValues][Kind::kPieces];
    for (int v = 0; v < kValues; ++v) split(from[v] * Kind::kScale, pieces[v]);
    for (int p = 0; p < Kind::kPieces; ++p) {
        typename Kind::Piece both[kValues];
        for (int v = 0; v < kValues; ++v) both[v] = pieces[v][p];
        memcpy(&fragment[p][i], both, 4);
    }
}

constexpr int kM = 64, kN = 8;
enum Order { kTogether, kApart, kStretches };

// Those products of one instruction's k whose pieces are small, the large one, or both.
template <class Kind, bool kSmall, bool kLarge>
__device__ void multiply_at(const float* a, const float* b, int k, int count, float (&small)[4], float (&large)[4]) {
    constexpr int kAcross = 4 / sizeof(typename Kind::Piece), kHalf = Kind::kStep / 2;
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, at = k + lane % 4 * kAcross;
    uint32_t of_a[Kind::kPieces][4], of_b[Kind::kPieces][2];
    for (int i = 0; i < 4; ++i) put<Kind>(a + (row + i % 2 * 8) * count + at + i / 2 * kHalf, i, of_a);
    for (int i = 0; i < 2; ++i) put<Kind>(b + lane / 4 * count + at + i * kHalf, i, of_b);
    if (kSmall)
        for (int sum = Kind::kPieces - 1; sum > 0; --sum)
            for (int p = 0; p <= sum; ++p) Kind::multiply(small, of_a[p], of_b[sum - p]);
    if (kLarge) Kind::multiply(large, of_a[0], of_b[0]);
}

// a is (m, k), b is (n, k).
template <class Kind, Order kOrder>
__global__ void product(const float* a, const float* b, float* out, int count) {
    float small[4] = {}, large[4] = {}, sum[4] = {};
    constexpr int kStretch = 16 * Kind::kStep;
    for (int from = 0; from < count; from += kStretch) {
        if (kOrder == kStretches) {
            float d[4] = {};
            for (int k = from; k < from + kStretch; k += Kind::kStep)
                multiply_at<Kind, true, false>(a, b, k, count, d, d);
            for (int k = from; k < from + kStretch; k += Kind::kStep)
                multiply_at<Kind, false, true>(a, b, k, count, d, d);
            for (int i = 0; i < 4; ++i) sum[i] += d[i];
        } else {
            for (int k = from; k < from + kStretch; k += Kind::kStep)
                multiply_at<Kind, true, true>(a, b, k, count, kOrder == kApart ? small : large, large);
        }
    }
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
    for (int i = 0; i < 4; ++i)
        out[(row + i / 2 * 8) * kN + lane % 4 * 2 + i % 2] =
            (sum[i] + (large[i] + small[i])) / (Kind::kScale * Kind::kScale);
}

float *a, *b, *out;
double exact[kM * kN], magnitude[kM * kN];

// The largest error as a share of the sum of magnitudes.
template <class Kind, Order kOrder>
double error(int count) {
    product<Kind, kOrder><<<1, 128>>>(a, b, out, count);
    finish();
    double worst = 0;
    for (int i = 0; i < kM * kN; ++i) {
        const double share = std::fabs(out[i] - exact[i]) / magnitude[i];
        worst = share <= worst ? worst : share;  // a NaN counts as the worst
    }
    return worst;
}

template <class Kind>
void check(const char* what, const char* values, bool one_sign, int count) {
    const double together = error<Kind, kTogether>(count), apart = error<Kind, kApart>(count);
    const double stretches = error<Kind, kStretches>(count);
    std::printf("%s, %s, k %d: one sum 2^%.1f, small products apart 2^%.1f, in stretches 2^%.1f\n", what, values, count,
                std::log2(together), std::log2(apart), std::log2(stretches));
    expect(stretches < std::exp2(-18), "%s, %s, k %d: in stretches %g", what, values, count, stretches);
    const double most = (count / 16 + 3) * std::exp2(-22);
    expect(together < 4 * most && apart < most, "%s, %s, k %d: %g and %g", what, values, count, together, apart);
    if (one_sign && count == 16384) expect(apart > std::exp2(-15), "%s: one sum is only %g off", what, apart);
}

int main(int argc, char**) {
    if (argc > 1) return verdict();  // nothing here goes without a device
    constexpr int kMost = 16384;
    Draw draw;
    a = both_see<float>(kM * kMost), b = both_see<float>(kN * kMost), out = both_see<float>(kM * kN);
    for (int one_sign = 0; one_sign < 2; ++one_sign)
        for (int count : {256, 2048, kMost}) {
            const float lift = one_sign ? 0.5f : -0.5f, width = one_sign ? 1.0f : 8.0f;
            for (int i = 0; i < kM * count; ++i) a[i] = (draw.uniform() + lift) * width;
            for (int i = 0; i < kN * count; ++i) b[i] = (draw.uniform() + lift) * width;
            for (int i = 0; i < kM * kN; ++i) {
                exact[i] = magnitude[i] = 0;
                for (int k = 0; k < count; ++k) {
                    const double term = static_cast<double>(a[i / kN * count + k]) * b[i % kN * count + k];
                    exact[i] += term, magnitude[i] += std::fabs(term);
                }
            }
            const char* values = one_sign ? "one sign" : "both signs";
            check<Half>("fp16, mma.sync", values, one_sign, count);
            check<HalfByWarpgroup>("fp16, wgmma", values, one_sign, count);
            check<Bfloat>("bf16, mma.sync", values, one_sign, count);
            check<Tf32>("TF32, mma.sync", values, one_sign, count);
        }
    return verdict();
}
