// What this processor can do at most, in short bursts of which the best counts: load from others makes a burst slow,
// never fast. Arguments: threads, then the bytes that one thread uses in the first and second level, and the bytes
// that all use together in the third level and in memory. Prints one "name rate" a line: bytes or operations a second.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <vector>

#if defined(__AVX512F__)
constexpr int WIDTH = 64;
#elif defined(__AVX__)
constexpr int WIDTH = 32;
#else
constexpr int WIDTH = 16;
#endif
typedef float Floats __attribute__((vector_size(WIDTH), aligned(WIDTH)));
typedef double Doubles __attribute__((vector_size(WIDTH), aligned(WIDTH)));

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Independent chains: as many as hide the latency of a multiply-add and fit into 16 registers beside two operands.
constexpr int CHAINS = 12;
template <class Vector> double chains(long rounds) {
    Vector acc[CHAINS], scale = Vector{} + 0.999f, shift = Vector{} + 0.001f;
    for (int i = 0; i < CHAINS; ++i) acc[i] = Vector{} + (0.1f * i);
    for (long r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; ++i) acc[i] = acc[i] * scale + shift;
        asm volatile("" : "+x"(scale), "+x"(shift));
    }
    Vector sum = acc[0];
    for (int i = 1; i < CHAINS; ++i) sum += acc[i];
    volatile double sink = sum[0];
    (void)sink;
    return 2.0 * rounds * CHAINS * sizeof(Vector) / sizeof(sum[0]);
}

struct Buffers {
    Floats *a, *b, *c;
    size_t count;
    // As many equal parts of the same memory as a way needs.
    Buffers parted(int parts) const {
        size_t each = count / parts / 8 * 8;
        return {a, a + each, a + 2 * each, each};
    }
};

static double reading(const Buffers& s) {
    Floats acc[8] = {};
    for (size_t i = 0; i + 8 <= s.count; i += 8)
#pragma GCC unroll 8
        for (int k = 0; k < 8; ++k) acc[k] += s.a[i + k];
    Floats sum = acc[0] + acc[1] + acc[2] + acc[3] + acc[4] + acc[5] + acc[6] + acc[7];
    volatile float sink = sum[0];
    (void)sink;
    return double(s.count) * WIDTH;
}
static double writing(const Buffers& s) { memset(s.b, 1, s.count * WIDTH); return double(s.count) * WIDTH; }
static double copying(const Buffers& s) { memcpy(s.b, s.a, s.count * WIDTH); return 2.0 * s.count * WIDTH; }
static double adding(const Buffers& s) {
    const Floats *a = s.a, *b = s.b;
    Floats* c = s.c;
    for (size_t i = 0; i + 4 <= s.count; i += 4)
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) c[i + k] = a[i + k] + b[i + k];
    return 3.0 * s.count * WIDTH;
}
struct Way { double (*run)(const Buffers&); int buffers; };
static const Way WAYS[] = {{reading, 1}, {writing, 2}, {copying, 2}, {adding, 3}};

static Buffers room(size_t bytes) {
    size_t whole = (bytes + (2u << 20)) & ~size_t((2u << 20) - 1);
    void* base = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) { fprintf(stderr, "no memory\n"); exit(1); }
    madvise(base, whole, MADV_HUGEPAGE);
    memset(base, 0, whole);
    return Buffers{(Floats*)base, nullptr, nullptr, bytes / WIDTH}.parted(1);
}

// One core alone: the rate of what every core has for itself.
static double alone(size_t bytes) {
    Buffers whole = room(bytes);
    double best = 0;
    for (const Way& way : WAYS) {
        const Buffers part = whole.parted(way.buffers);
        int passes = int(1 + 4e6 / bytes);
        for (int burst = 0; burst < 100; ++burst) {
            double moved = 0, start = now();
            for (int p = 0; p < passes; ++p) {
                moved += way.run(part);
                asm volatile("" ::: "memory");
            }
            double rate = moved / (now() - start);
            best = rate > best ? rate : best;
        }
    }
    munmap(whole.a, bytes);
    return best;
}

// Long bursts on much memory end after so long, if each way had two; many short ones fill it.
constexpr double ENOUGH_S = 2.0;

// All threads at once, each on its part of what is shared. From the first start to the last end.
static double together(int threads, size_t bytes, int bursts, double* copied = nullptr) {
    std::vector<double> starts(threads), ends(threads), moved(threads);
    double best = 0;
    const int rounds = bursts * 4;
    std::atomic<int> generation{0}, arrived{0};
    std::atomic<bool> enough{false};
    auto meet = [&]() {
        int mine = generation.load();
        if (arrived.fetch_add(1) + 1 == threads) { arrived.store(0); generation.fetch_add(1); }
        else while (generation.load() == mine) std::this_thread::yield();
    };
    auto loop = [&](int me) {
        size_t share = bytes / threads;
        Buffers whole = room(share);
        const double begun = now();
        for (int r = 0; r < rounds && !enough; ++r) {
            const Way& way = WAYS[r % 4];
            const Buffers part = whole.parted(way.buffers);
            meet();
            starts[me] = now();
            moved[me] = way.run(part);
            ends[me] = now();
            meet();
            if (me == 0) {
                double first = starts[0], last = ends[0], sum = 0;
                for (int t = 0; t < threads; ++t) {
                    first = starts[t] < first ? starts[t] : first;
                    last = ends[t] > last ? ends[t] : last;
                    sum += moved[t];
                }
                double rate = sum / (last - first);
                best = rate > best ? rate : best;
                if (copied && way.run == copying) *copied = rate > *copied ? rate : *copied;
                enough = r >= 7 && now() - begun > ENOUGH_S;
            }
            meet();
        }
        munmap(whole.a, share);
    };
    std::vector<std::thread> all;
    for (int t = 1; t < threads; ++t) all.emplace_back(loop, t);
    loop(0);
    for (auto& one : all) one.join();
    return best;
}

static double fastest(const std::function<double()>& burst) {
    double best = 0;
    for (int i = 0; i < 200; ++i) {
        double start = now();
        double done = burst();
        double rate = done / (now() - start);
        best = rate > best ? rate : best;
    }
    return best;
}

int main(int argc, char** argv) {
    if (argc != 6) return 2;
    int threads = atoi(argv[1]);
    size_t first = strtoull(argv[2], 0, 10), second = strtoull(argv[3], 0, 10);
    size_t third = strtoull(argv[4], 0, 10), memory = strtoull(argv[5], 0, 10);
    printf("float32 %.6e\n", threads * fastest([] { return chains<Floats>(40000); }));
    printf("float64 %.6e\n", threads * fastest([] { return chains<Doubles>(40000); }));
    printf("first %.6e\n", threads * alone(first));
    if (second) printf("second %.6e\n", threads * alone(second));
    // What is shared, one core alone may draw on as fast as all: more so where the others are busy with something else.
    double copied = 0;
    auto shared = [&](size_t bytes, int bursts) {
        copied = 0;
        double all = together(threads, bytes, bursts, &copied), one = together(1, bytes, bursts, &copied);
        return all > one ? all : one;
    };
    if (third) printf("third %.6e\n", shared(third, 40));
    if (memory) printf("memory %.6e\n", shared(memory, 8));
    if (memory) printf("copy %.6e\n", copied);
    return 0;
}
