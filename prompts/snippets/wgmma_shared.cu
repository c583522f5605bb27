// wgmma with both operands in shared memory: every layout, and the three kinds of operands.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "check.cuh"
#include "wgmma.cuh"

// snippet: begin wgmma
// D (64 x N) += A (64 x 16) B (16 x N), N a multiple of 8 up to 256; here N = 16: N / 2 floats a thread. Thread t of
// 128 has in d[4 * j + i] row t / 32 * 16 + t % 32 / 4 + i / 2 * 8, column 8 * j + t % 4 * 2 + i % 2. `add` 0: D = A
// B. The last two immediates: 0 K-major, 1 MN-major, of A and of B. fp16: .f32.f16.f16. TF32: m64nNk8.f32.tf32.tf32,
// K-major alone, ends in "p, 1, 1;".
__device__ __forceinline__ void multiply(float (&d)[8], uint64_t a, uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\nwgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, p, 1, 1, 0, 0;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "l"(a), "l"(b), "r"(add));
}
// snippet: end

#define EIGHT(d, i)                                                                                           \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])

template <class T>
__device__ void multiply_as(float (&d)[8], uint64_t a, uint64_t b) {
    if constexpr (sizeof(T) == 4) {
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\nwgmma.mma_async.sync.aligned.m64n16k8.f32.tf32.tf32 "
            "{%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, p, 1, 1;\n}"
            : EIGHT(d, 0) : "l"(a), "l"(b));
    } else if constexpr (std::is_same_v<T, __half>) {
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\nwgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 "
            "{%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, p, 1, 1, 0, 0;\n}"
            : EIGHT(d, 0) : "l"(a), "l"(b));
    } else {
        multiply(d, a, b, 1);
    }
}

template <bool kMnA, bool kMnB>
__device__ void multiply_wide(float (&d)[128], uint64_t a, uint64_t b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\nwgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
        "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
        "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, "
        "%65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "
        "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, "
        "%106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, "
        "%124, %125, %126, %127}, "
        "%128, %129, p, 1, 1, %130, %131;\n}"
        : EIGHT(d, 0), EIGHT(d, 8), EIGHT(d, 16), EIGHT(d, 24), EIGHT(d, 32), EIGHT(d, 40), EIGHT(d, 48),
          EIGHT(d, 56), EIGHT(d, 64), EIGHT(d, 72), EIGHT(d, 80), EIGHT(d, 88), EIGHT(d, 96), EIGHT(d, 104),
          EIGHT(d, 112), EIGHT(d, 120)
        : "l"(a), "l"(b), "n"(kMnA), "n"(kMnB));
}

constexpr int kM = 64, kN = 256, kK = 64, kFewN = 16;

template <int N>
__device__ void write_out(const float (&d)[N], float* out) {
    const int t = threadIdx.x;
    for (int r = 0; r < N; ++r) {
        const int j = r / 4, i = r % 4;
        out[(t / 32 * 16 + t % 32 / 4 + i / 2 * 8) * (2 * N) + 8 * j + t % 4 * 2 + i % 2] = d[r];
    }
}

// Without swizzle A begins at its fourth line of 72.
template <int S, bool kMnA, bool kMnB>
__global__ void in_every_layout(const float* a, const float* b, float* out) {
    __shared__ alignas(1024) unsigned char tile_a[72 * 128], tile_b[kN * 128];
    constexpr int kFirst = S == 16 && !kMnA ? 3 : 0, kLines = S == 16 && !kMnA ? 72 : kM;
    for (int i = threadIdx.x; i < kM * kK; i += blockDim.x) {
        const int m = i / kK, k = i % kK;
        const uint32_t at = kMnA ? place<S>(kK, k, 2 * m) : place<S>(kLines, m + kFirst, 2 * k);
        *reinterpret_cast<__nv_bfloat16*>(tile_a + at) = __float2bfloat16(a[i]);
    }
    for (int i = threadIdx.x; i < kK * kN; i += blockDim.x) {
        const int k = i / kN, n = i % kN;
        const uint32_t at = kMnB ? place<S>(kK, k, 2 * n) : place<S>(kN, n, 2 * k);
        *reinterpret_cast<__nv_bfloat16*>(tile_b + at) = __float2bfloat16(b[i]);
    }
    show_stores();
    __syncthreads();
    float d[kN / 2] = {};
    begin_products();
    for (int k = 0; k < kK; k += 16) {
        const uint32_t from_a = shared_address(tile_a) + kFirst * 16, from_b = shared_address(tile_b);
        const uint64_t of_a = kMnA ? mn_major<S>(from_a, kK, k) : k_major<S>(from_a, kLines, 2 * k);
        const uint64_t of_b = kMnB ? mn_major<S>(from_b, kK, k) : k_major<S>(from_b, kN, 2 * k);
        multiply_wide<kMnA, kMnB>(d, of_a, of_b);
    }
    commit_products();
    wait_products<0>(d);
    write_out(d, out);
}

template <class T>
__global__ void of_every_kind(const float* a, const float* b, float* out) {
    __shared__ alignas(1024) unsigned char tile_a[kM * kK * sizeof(T)], tile_b[kFewN * kK * sizeof(T)];
    for (int i = threadIdx.x; i < kM * kK; i += blockDim.x)
        *reinterpret_cast<T*>(tile_a + place<64>(kM, i / kK, i % kK * sizeof(T))) = static_cast<T>(a[i]);
    for (int i = threadIdx.x; i < kFewN * kK; i += blockDim.x)
        *reinterpret_cast<T*>(tile_b + place<64>(kFewN, i / kK, i % kK * sizeof(T))) =
            static_cast<T>(b[i % kK * kN + i / kK]);
    show_stores();
    __syncthreads();
    float d[kFewN / 2] = {};
    begin_products();
    for (int byte = 0; byte < kK * static_cast<int>(sizeof(T)); byte += 32)
        multiply_as<T>(d, k_major<64>(shared_address(tile_a), kM, byte),
                       k_major<64>(shared_address(tile_b), kFewN, byte));
    commit_products();
    wait_products<0>(d);
    write_out(d, out);
}

// From 16-bit rows (m, k) and (n, k) in memory, in pieces of 16 bytes.
__global__ void filled_by_copies(const __nv_bfloat16* a, const __nv_bfloat16* b, float* out) {
    __shared__ alignas(1024) unsigned char tile_a[kM * 128], tile_b[kFewN * 128];
    for (int i = threadIdx.x; i < kM * kK / 8; i += blockDim.x)
        copy_16(tile_a + place<128>(kM, i / 8, i % 8 * 16), a + 8 * i, 16);
    for (int i = threadIdx.x; i < kFewN * kK / 8; i += blockDim.x)
        copy_16(tile_b + place<128>(kFewN, i / 8, i % 8 * 16), b + 8 * i, 16);
    commit_copies();
    wait_copies<0>();
    show_stores();
    __syncthreads();
    float d[kFewN / 2];
    begin_products();
    for (int byte = 0; byte < 2 * kK; byte += 32)
        multiply(d, k_major<128>(shared_address(tile_a), kM, byte), k_major<128>(shared_address(tile_b), kFewN, byte),
                 byte > 0);
    commit_products();
    wait_products<0>(d);
    write_out(d, out);
}

// That `place` is the swizzle of the manuals: a line's 16-byte pieces change places, by the line's number.
template <int S>
void check_places() {
    constexpr int kLines = 72, kPanels = 3;
    static bool taken[kLines * kPanels * S];
    for (int line = 0; line < kLines; ++line)
        for (int byte = 0; byte < kPanels * S; ++byte) {
            const int by = S == 128 ? line % 8 : S == 64 ? line / 2 % 4 : S == 32 ? line / 4 % 2 : 0;
            const int piece = byte % S / 16 ^ by;
            const uint32_t there = (byte / S * kLines + line) * S + piece * 16 + byte % 16;
            const uint32_t found = place<S>(kLines, line, byte);
            expect(found == there && !taken[found], "swizzle %d: line %d byte %d lies at %u", S, line, byte, found);
            taken[found] = true;
        }
}

float *a, *b, *out;

void compare(int columns, const char* what, int swizzle) {
    finish();
    for (int m = 0; m < kM; ++m)
        for (int n = 0; n < columns; ++n) {
            float sum = 0;
            for (int k = 0; k < kK; ++k) sum += a[m * kK + k] * b[k * kN + n];
            const float found = out[m * columns + n];
            expect(found == sum, "%s, %d: (%d, %d) is %g, not %g", what, swizzle, m, n, found, sum);
        }
}

template <int S>
void check_layouts() {
    in_every_layout<S, false, false><<<1, 128>>>(a, b, out), compare(kN, "A and B K-major", S);
    in_every_layout<S, true, false><<<1, 128>>>(a, b, out), compare(kN, "A M-major, B K-major", S);
    in_every_layout<S, false, true><<<1, 128>>>(a, b, out), compare(kN, "A K-major, B N-major", S);
    in_every_layout<S, true, true><<<1, 128>>>(a, b, out), compare(kN, "A M-major, B N-major", S);
}

int main(int count, char**) {
    check_places<128>(), check_places<64>(), check_places<32>(), check_places<16>();
    if (count > 1) return verdict();  // what needs no device
    Draw draw;
    a = both_see<float>(kM * kK), b = both_see<float>(kK * kN), out = both_see<float>(kM * kN);
    for (int i = 0; i < kM * kK; ++i) a[i] = draw.whole();
    for (int i = 0; i < kK * kN; ++i) b[i] = draw.whole();
    check_layouts<128>(), check_layouts<64>(), check_layouts<32>(), check_layouts<16>();
    of_every_kind<__nv_bfloat16><<<1, 128>>>(a, b, out), compare(kFewN, "bf16", 64);
    of_every_kind<__half><<<1, 128>>>(a, b, out), compare(kFewN, "fp16", 64);
    of_every_kind<float><<<1, 128>>>(a, b, out), compare(kFewN, "TF32", 64);
    auto *rows_a = both_see<__nv_bfloat16>(kM * kK), *rows_b = both_see<__nv_bfloat16>(kFewN * kK);
    for (int i = 0; i < kM * kK; ++i) rows_a[i] = __float2bfloat16(a[i]);
    for (int i = 0; i < kFewN * kK; ++i) rows_b[i] = __float2bfloat16(b[i % kK * kN + i / kK]);
    filled_by_copies<<<1, 128>>>(rows_a, rows_b, out), compare(kFewN, "filled by cp.async", 128);
    return verdict();
}
