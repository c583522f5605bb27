// What the programs of this folder check themselves with; no prompt shows it.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

inline int faults = 0;

// Tells what is wrong; of many faults the first few.
template <class... Values>
void expect(bool is_right, const char* format, Values... values) {
    if (!is_right && ++faults <= 8) std::printf(format, values...), std::printf("\n");
}

inline int verdict() { return faults ? std::printf("%d faults\n", faults), 1 : 0; }

inline void must(cudaError_t code) {
    if (code == cudaSuccess) return;
    std::printf("%s: %s\n", cudaGetErrorName(code), cudaGetErrorString(code));
    std::exit(2);
}

// Waits for the kernels that were launched; a fault of theirs ends the program.
inline void finish() { must(cudaGetLastError()), must(cudaDeviceSynchronize()); }

// Memory that host and device both see, zeroed.
template <class T>
T* both_see(size_t count) {
    T* pointer = nullptr;
    must(cudaMallocManaged(&pointer, count * sizeof(T)));
    for (size_t i = 0; i < count; ++i) pointer[i] = T();
    return pointer;
}

struct Draw {  // the same numbers in each run
    uint32_t state = 12345;
    uint32_t bits() { return (state = state * 1664525u + 1013904223u) >> 8; }
    float uniform() { return bits() / 16777216.0f; }               // from 0 to 1
    float whole() { return static_cast<float>(bits() % 9) - 4; }  // -4 to 4: products and their sums stay exact
};
