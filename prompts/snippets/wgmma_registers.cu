// wgmma with A in registers, and the sums of one product as A of the next.
#include <cuda_bf16.h>

#include "check.cuh"
#include "wgmma.cuh"

// snippet: begin wgmma_registers
// A (64 x 16) from registers, two values in each, the lower k in the lower half; one transposition left, that of B.
// Thread t: row = t / 32 * 16 + t % 32 / 4, k = t % 4 * 2: a[0] (row, k) and (row, k + 1), a[1] row + 8, a[2] k + 8,
// a[3] both. TF32 (k8): one value in each, k = t % 4, the others at row + 8, k + 4, both.
__device__ __forceinline__ void multiply(float (&d)[8], const uint32_t (&a)[4], uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %13, 0;\nwgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, p, 1, 1, 0;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
// The sums of columns 16 * s to 16 * s + 15 lie as A of another product has them (softmax between two products).
__device__ __forceinline__ uint32_t pair(float low, float high) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&both);
}
template <int N>
__device__ __forceinline__ void as_operand(const float (&d)[N], int s, uint32_t (&a)[4]) {
    for (int i = 0; i < 4; ++i) a[i] = pair(d[8 * s + 2 * i], d[8 * s + 2 * i + 1]);
}
// snippet: end

__device__ void multiply_tf32(float (&d)[8], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\nwgmma.mma_async.sync.aligned.m64n16k8.f32.tf32.tf32 "
        "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, p, 1, 1;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

constexpr int kM = 64, kN = 16, kK = 16;

template <class T>
__device__ void put(unsigned char* tile, const float* b) {  // b is (k, n); K-major without swizzle
    for (int i = threadIdx.x; i < kN * kK; i += blockDim.x)
        *reinterpret_cast<T*>(tile + place<16>(kN, i % kN, i / kN * sizeof(T))) = static_cast<T>(b[i]);
}

__device__ void write_out(const float (&d)[8], float* out) {
    const int t = threadIdx.x;
    for (int r = 0; r < 8; ++r)
        out[(t / 32 * 16 + t % 32 / 4 + r % 4 / 2 * 8) * kN + 8 * (r / 4) + t % 4 * 2 + r % 2] = d[r];
}

// A B, and (A B) B with A B rounded to bf16.
__global__ void in_16_bits(const float* a, const float* b, float* once, float* twice) {
    __shared__ alignas(128) unsigned char tile[kN * kK * 2];
    put<__nv_bfloat16>(tile, b);
    show_stores();
    __syncthreads();
    const int t = threadIdx.x, row = t / 32 * 16 + t % 32 / 4, k = t % 4 * 2;
    uint32_t of_a[4];
    for (int i = 0; i < 4; ++i) {
        const float* from = a + (row + i % 2 * 8) * kK + k + i / 2 * 8;
        of_a[i] = pair(from[0], from[1]);
    }
    float first[8] = {}, second[8];
    begin_products();
    multiply(first, of_a, k_major<16>(shared_address(tile), kN, 0), 1);
    commit_products();
    wait_products<0>(first);
    as_operand(first, 0, of_a);
    begin_products();
    multiply(second, of_a, k_major<16>(shared_address(tile), kN, 0), 0);
    commit_products();
    wait_products<0>(second);
    write_out(first, once);
    write_out(second, twice);
}

__global__ void in_tf32(const float* a, const float* b, float* out) {
    __shared__ alignas(128) unsigned char tile[kN * kK * 4];
    put<float>(tile, b);
    show_stores();
    __syncthreads();
    const int t = threadIdx.x, row = t / 32 * 16 + t % 32 / 4, k = t % 4;
    uint32_t of_a[2][4];
    for (int step = 0; step < 2; ++step)
        for (int i = 0; i < 4; ++i)
            of_a[step][i] = __float_as_uint(a[(row + i % 2 * 8) * kK + 8 * step + k + i / 2 * 4]);
    float d[8] = {};
    begin_products();
    for (int step = 0; step < 2; ++step) multiply_tf32(d, of_a[step], k_major<16>(shared_address(tile), kN, 32 * step));
    commit_products();
    wait_products<0>(d);
    write_out(d, out);
}

void compare(const float* left, const float* right, const float* out, const char* what) {
    for (int m = 0; m < kM; ++m)
        for (int n = 0; n < kN; ++n) {
            float sum = 0;
            for (int k = 0; k < kK; ++k) sum += left[m * kK + k] * right[k * kN + n];
            expect(out[m * kN + n] == sum, "%s: (%d, %d) is %g, not %g", what, m, n, out[m * kN + n], sum);
        }
}

int main(int count, char**) {
    if (count > 1) return verdict();  // nothing here goes without a device
    Draw draw;
    float *a = both_see<float>(kM * kK), *b = both_see<float>(kK * kN);
    float *once = both_see<float>(kM * kN), *twice = both_see<float>(kM * kN);
    for (int i = 0; i < kM * kK; ++i) a[i] = draw.whole();
    for (int i = 0; i < kK * kN; ++i) b[i] = draw.whole();  // sums of A B stay below 257, so bf16 holds them
    in_16_bits<<<1, 128>>>(a, b, once, twice);
    finish();
    compare(a, b, once, "bf16");
    compare(once, b, twice, "a product's sums as A of the next");
    in_tf32<<<1, 128>>>(a, b, once);
    finish();
    compare(a, b, once, "TF32");
    return verdict();
}
