// Vectors of floats as wide as the level that this is compiled for has them, and what all kernels
// do with them. No intrinsics where the compiler's own vectors do, so that every CPU has a level.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float Floats __attribute__((vector_size(LANES * 4)));
typedef uint32_t Words __attribute__((vector_size(LANES * 4)));
typedef int32_t Ints __attribute__((vector_size(LANES * 4)));
typedef uint16_t Halves __attribute__((vector_size(LANES * 2)));
typedef uint16_t Bf16;

static inline Floats load(const float* from) {
    Floats values;
    memcpy(&values, from, sizeof values);
    return values;
}

static inline void store(float* to, Floats values) { memcpy(to, &values, sizeof values); }

static inline Floats fill(float value) { return Floats{} + value; }

static inline Floats choose(Ints condition, Floats yes, Floats no) {
    return (Floats)((condition & (Ints)yes) | (~condition & (Ints)no));
}

static inline Floats largest(Floats a, Floats b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_max_ps((__m512)a, (__m512)b); // b where either is a NaN, as below
#else
    return choose(a > b, a, b);
#endif
}

static inline float widen(Bf16 value) {
    uint32_t bits = (uint32_t)value << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

// GCC widens a vector by halves, in five steps instead of one.
static inline Floats load(const Bf16* from) {
#if defined(__AVX512F__)
    return (Floats)((Words)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from)) << 16);
#elif defined(__AVX2__)
    return (Floats)((Words)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from)) << 16);
#else
    Halves halves;
    memcpy(&halves, from, sizeof halves);
    return (Floats)(__builtin_convertvector(halves, Words) << 16);
#endif
}

// Rounds to the nearest, ties to even; a NaN stays one. The instruction, which takes the place of
// nine, makes a zero of what is too small for a normal number.
static inline void store(Bf16* to, Floats values) {
#if defined(__AVX512BF16__)
    _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh((__m512)values));
#else
    Words bits = (Words)values;
    Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    Words quiet = (bits >> 16) | 0x40;
    Words is_nan = (Words)((bits & 0x7fffffff) > 0x7f800000);
    Halves halves = __builtin_convertvector((is_nan & quiet) | (~is_nan & rounded), Halves);
    memcpy(to, &halves, sizeof halves);
#endif
}

// Two vectors, one behind the other.
static inline void store_two(Bf16* to, Floats first, Floats second) {
#if defined(__AVX512BF16__)
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
#else
    store(to, first);
    store(to + LANES, second);
#endif
}

// e^x for x up to 0, and exactly 1 at 0; below -87 what is left of it. Of a NaN it is one.
static inline Floats exponential(Floats x) {
    constexpr float magic = 12582912.0f; // 1.5 · 2^23: what is added to it is rounded to a whole
    x = largest(fill(-87.0f), x); // the second where one is a NaN
    Floats shifted = x * 1.44269504f + magic;
    Floats power = shifted - magic;
    Floats rest = x - power * 0.693359375f;
    rest = rest - power * -2.12194440e-4f;
    Floats sum = fill(1.0f / 720);
    sum = sum * rest + 1.0f / 120;
    sum = sum * rest + 1.0f / 24;
    sum = sum * rest + 1.0f / 6;
    sum = sum * rest + 0.5f;
    sum = sum * rest + 1.0f;
    sum = sum * rest + 1.0f;
    return sum * (Floats)(((Words)shifted + 127) << 23);
}

template <int STEP> static inline Floats turn(Floats values) {
    Ints order;
    for (int lane = 0; lane < LANES; lane++) order[lane] = (lane + STEP) % LANES;
    return __builtin_shuffle(values, order);
}

template <int STEP = LANES / 2> static inline float find_largest(Floats values) {
    values = largest(values, turn<STEP>(values));
    if constexpr (STEP > 1) return find_largest<STEP / 2>(values);
    return values[0];
}

template <int STEP = LANES / 2> static inline float add_lanes(Floats values) {
    values = values + turn<STEP>(values);
    if constexpr (STEP > 1) return add_lanes<STEP / 2>(values);
    return values[0];
}

static inline void store_one(Bf16* to, float value) {
    Bf16 all[LANES];
    store(all, fill(value));
    *to = all[0];
}

static inline float widen(float value) { return value; }

// Memory of the calling thread that only ever grows: nothing is allocated in the loop.
template <typename T> static T* reserve(std::vector<T>& buffer, size_t size) {
    if (buffer.size() < size + 64 / sizeof(T)) buffer.resize(size + 64 / sizeof(T));
    uintptr_t address = (uintptr_t)buffer.data();
    return (T*)((address + 63) / 64 * 64);
}
