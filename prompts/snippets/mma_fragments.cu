// mma.sync: which lane holds what, and how ldmatrix brings it there.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "check.cuh"
#include "asynchronous.cuh"

// snippet: begin mma
// A warp: D (16 x 8, fp32) = A (16 x 16) B (16 x 8) + D, two 16-bit values in a register, the lower k in the lower
// half. Lane l: a[0] is (row l / 4, k = l % 4 * 2), a[1] row + 8, a[2] k + 8, a[3] both; b[0] is (k = l % 4 * 2,
// column l / 4), b[1] k + 8; d[0], d[1] are row l / 4, columns l % 4 * 2 and + 1, d[2], d[3] row + 8. fp16:
// .f32.f16.f16.f32. TF32 (m16n8k8, .f32.tf32.tf32.f32): a[0] is (row l / 4, k = l % 4), a[1] row + 8, a[2] k + 4,
// a[3] both; b[0] is (k = l % 4, column l / 4), b[1] k + 4.
__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// snippet: end

// snippet: begin ldmatrix
// 16-bit operands out of shared memory; each lane gives a row of 8 values that starts on 16 bytes (a pitch of an odd
// multiple of 16 bytes has no bank conflicts). A from (row, k): lane l gives row l % 16, k = l / 16 * 8.
// B from (k, column): .trans, lane l < 16 gives row k = l. B from (column, k): .x2 without .trans, lane l < 16 gives
// column l % 8, k = l / 8 * 8.
__device__ __forceinline__ void load_a(uint32_t (&a)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void load_b_of_k_rows(uint32_t (&b)[2], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(b[0]), "=r"(b[1]) : "r"(address) : "memory");
}
// snippet: end

__device__ void load_b_of_columns(uint32_t (&b)[2], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(b[0]), "=r"(b[1]) : "r"(address) : "memory");
}

__device__ void multiply_fp16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ void multiply_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

constexpr int kM = 16, kN = 8, kK = 16, kPitch = 24;

__device__ void write_out(const float (&d)[4], float* out) {
    const int row = threadIdx.x / 4, column = threadIdx.x % 4 * 2;
    for (int i = 0; i < 4; ++i) out[(row + i / 2 * 8) * kN + column + i % 2] = d[i];
}

template <class T>
__device__ uint32_t pair(float low, float high) {
    const T both[2] = {static_cast<T>(low), static_cast<T>(high)};
    uint32_t bits;
    memcpy(&bits, both, 4);
    return bits;
}

template <class T>
__global__ void in_16_bits(const float* a, const float* b, float* out) {
    const int row = threadIdx.x / 4, k = threadIdx.x % 4 * 2;
    uint32_t of_a[4], of_b[2];
    for (int i = 0; i < 4; ++i) {
        const float* from = a + (row + i % 2 * 8) * kK + k + i / 2 * 8;
        of_a[i] = pair<T>(from[0], from[1]);
    }
    for (int i = 0; i < 2; ++i) of_b[i] = pair<T>(b[(k + 8 * i) * kN + row], b[(k + 8 * i + 1) * kN + row]);
    float d[4] = {1, 1, 1, 1};
    if constexpr (std::is_same_v<T, __half>) {
        multiply_fp16(d, of_a, of_b);
    } else {
        multiply(d, of_a, of_b);
    }
    write_out(d, out);
}

__global__ void in_tf32(const float* a, const float* b, float* out) {
    const int row = threadIdx.x / 4, k = threadIdx.x % 4;
    float d[4] = {1, 1, 1, 1};
    for (int step = 0; step < kK; step += 8) {
        uint32_t of_a[4], of_b[2];
        for (int i = 0; i < 4; ++i) of_a[i] = __float_as_uint(a[(row + i % 2 * 8) * kK + step + k + i / 2 * 4]);
        for (int i = 0; i < 2; ++i) of_b[i] = __float_as_uint(b[(step + k + 4 * i) * kN + row]);
        multiply_tf32(d, of_a, of_b);
    }
    write_out(d, out);
}

__global__ void by_ldmatrix(const float* a, const float* b, float* out, bool columns) {
    __shared__ alignas(16) __nv_bfloat16 tile_a[kM * kPitch], tile_b[kK * kPitch];
    const int lane = threadIdx.x;
    for (int i = lane; i < kM * kK; i += 32) tile_a[i / kK * kPitch + i % kK] = __float2bfloat16(a[i]);
    for (int i = lane; i < kK * kN; i += 32)
        tile_b[columns ? i % kN * kPitch + i / kN : i / kN * kPitch + i % kN] = __float2bfloat16(b[i]);
    __syncwarp();
    uint32_t of_a[4], of_b[2];
    load_a(of_a, shared_address(tile_a + lane % 16 * kPitch + lane / 16 * 8));
    if (columns) {
        load_b_of_columns(of_b, shared_address(tile_b + lane % 8 * kPitch + lane / 8 % 2 * 8));
    } else {
        load_b_of_k_rows(of_b, shared_address(tile_b + lane % 16 * kPitch));
    }
    float d[4] = {1, 1, 1, 1};
    multiply(d, of_a, of_b);
    write_out(d, out);
}

float *a, *b, *out;

void compare(const char* what) {
    finish();
    for (int m = 0; m < kM; ++m)
        for (int n = 0; n < kN; ++n) {
            float sum = 1;
            for (int k = 0; k < kK; ++k) sum += a[m * kK + k] * b[k * kN + n];
            expect(out[m * kN + n] == sum, "%s: (%d, %d) is %g, not %g", what, m, n, out[m * kN + n], sum);
        }
}

int main(int count, char**) {
    bool taken[8] = {};  // of the eight places of 16 bytes that the banks have
    for (int row = 0; row < 8; ++row) {
        bool& place = taken[row * kPitch * 2 / 16 % 8];
        expect(!place, "row %d meets another row's banks", row);
        place = true;
    }
    if (count > 1) return verdict();  // what needs no device
    Draw draw;
    a = both_see<float>(kM * kK), b = both_see<float>(kK * kN), out = both_see<float>(kM * kN);
    for (int i = 0; i < kM * kK; ++i) a[i] = draw.whole();
    for (int i = 0; i < kK * kN; ++i) b[i] = draw.whole();
    in_16_bits<__nv_bfloat16><<<1, 32>>>(a, b, out), compare("bf16");
    in_16_bits<__half><<<1, 32>>>(a, b, out), compare("fp16");
    in_tf32<<<1, 32>>>(a, b, out), compare("TF32");
    by_ldmatrix<<<1, 32>>>(a, b, out, false), compare("ldmatrix, B by rows of k");
    by_ldmatrix<<<1, 32>>>(a, b, out, true), compare("ldmatrix, B by columns");
    return verdict();
}
