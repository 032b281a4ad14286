// Vectors of fp32 as wide as the processor has them, and what attention over a paged pool does with them.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#ifdef __FMA__
#include <immintrin.h>
#endif

namespace {

#ifdef __AVX512F__
constexpr int WIDE = 16;
typedef int32_t Ints __attribute__((vector_size(4 * WIDE)));
constexpr Ints EVEN = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
#else
constexpr int WIDE = 8;
typedef int32_t Ints __attribute__((vector_size(4 * WIDE)));
constexpr Ints EVEN = {0, 2, 4, 6, 8, 10, 12, 14};
#endif
typedef float Floats __attribute__((vector_size(4 * WIDE), aligned(4), may_alias));
typedef int8_t Bytes __attribute__((vector_size(WIDE), aligned(1), may_alias));

inline Floats load(const float* at) { return *reinterpret_cast<const Floats*>(at); }
inline Floats load(const int8_t* at) {
#ifdef __AVX512F__  // of what stands below gcc makes five instructions
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
#else
    return __builtin_convertvector(__builtin_convertvector(*reinterpret_cast<const Bytes*>(at), Ints), Floats);
#endif
}
// By its name, since a compiler may leave some products of one loop unfused, and then their bits differ.
inline Floats fused(Floats a, Floats b, Floats sum) {
#ifdef __AVX512F__
    return _mm512_fmadd_ps(a, b, sum);
#elif defined __FMA__
    return _mm256_fmadd_ps(a, b, sum);
#else
    return a * b + sum;
#endif
}
inline void store(float* at, Floats values) { *reinterpret_cast<Floats*>(at) = values; }

// The sums of COUNT vectors, in their order, as the first numbers of one: neighbours are added, and again.
template <int COUNT>
inline Floats sums_of(Floats* of) {
#pragma GCC unroll 4
    for (int left = COUNT, width = WIDE; width > 1; width /= 2, left = (left + 1) / 2)
#pragma GCC unroll 16
        for (int i = 0; i < left; i += 2) {
            Floats one = of[i], other = i + 1 < left ? of[i + 1] : one;
            of[i / 2] = __builtin_shuffle(one, other, EVEN) + __builtin_shuffle(one, other, EVEN + 1);
        }
    return of[0];
}

// e^x to a rounding or two, between e^-87 and e^88
inline Floats exp_of(Floats x) {
    const Floats least = Floats{} - 87.0f, most = Floats{} + 88.0f;
    x = x < least ? least : x > most ? most : x;
    const float magic = 12582912.0f;  // added and taken off again, it leaves the nearest integer
    Floats whole = (x * 1.44269504f + magic) - magic;
    Floats rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    Floats power = rest * 1.9875691500e-4f + 1.3981999507e-3f;
    power = power * rest + 8.3334519073e-3f;
    power = power * rest + 4.1665795894e-2f;
    power = power * rest + 1.6666665459e-1f;
    power = power * rest + 5.0000001201e-1f;
    power = power * rest * rest + rest + 1.0f;
    Ints exponent = (__builtin_convertvector(whole, Ints) + 127) << 23;
    Floats scale;
    std::memcpy(&scale, &exponent, sizeof scale);
    return power * scale;
}

inline void turn(float* x, const float* cosine, const float* sine, int64_t size) {
    for (int64_t i = 0, j = size / 2; j < size; i++, j++) {
        const float one = x[i], other = x[j];
        x[i] = one * cosine[i] + other * sine[i];
        x[j] = other * cosine[j] + one * sine[j];
    }
}

// Into e^(x - most) of the first `count` scores; zeros up to a whole vector. Returns their sum.
inline float exponents(float* scores, int64_t count) {
    const int64_t end = (count + WIDE - 1) / WIDE * WIDE;
    Floats most = load(scores), total = {};
    for (int64_t t = WIDE; t < end; t += WIDE) most = load(scores + t) > most ? load(scores + t) : most;
    float one = most[0];
    for (int lane = 1; lane < WIDE; lane++) one = most[lane] > one ? most[lane] : one;
    for (int64_t t = 0; t < end; t += WIDE) store(scores + t, exp_of(load(scores + t) - one));
    for (int64_t t = count; t < end; t++) scores[t] = 0;
    for (int64_t t = 0; t < end; t += WIDE) total += load(scores + t);
    return sums_of<1>(&total)[0];
}

// What a table names, slot after slot, of one key head.
struct Walk {
    const float* pool;
    const int64_t* table;
    int64_t block_size, slot, inside;  // numbers of a slot; of the block, the next
    const float* at;
    Walk(const float* pool, const int64_t* table, int64_t block_size, int64_t slot)
        : pool(pool), table(table), block_size(block_size), slot(slot), inside(block_size), at(pool) {}
    const float* next() {
        if (inside == block_size) {
            at = pool + *table++ * block_size * slot;
            inside = 0;
        }
        inside++;
        const float* found = at;
        at += slot;
        return found;
    }
};

}  // namespace
