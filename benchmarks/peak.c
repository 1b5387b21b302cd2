/* Arithmetic peaks of the threads, with all operands in registers:
 *   int8  u8 x s8 dot products added into s32 (VPDPBUSD, or VPMADDUBSW without VNNI)
 *   f32   fused multiply-adds
 * Two operations a multiply-add. The best of five runs counts.
 *
 *     cc -O3 -march=native -fopenmp peak.c -o peak && OMP_NUM_THREADS=2 ./peak
 */
#include <immintrin.h>
#include <omp.h>
#include <stdio.h>

#define SUMS 12 /* independent sums hide the latency of one instruction */
#define LOOPS 4000000L
#define REPEATS 5

#if defined(__AVX512F__)
typedef __m512 float_t_;
#define FLOATS 16
#define SET_F(x) _mm512_set1_ps(x)
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#else
typedef __m256 float_t_;
#define FLOATS 8
#define SET_F(x) _mm256_set1_ps(x)
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#endif

#if defined(__AVX512VNNI__)
#define KIND "avx512-vnni"
typedef __m512i int_t_;
#define BYTES 64
#define SET_I(x) _mm512_set1_epi8(x)
#define DOT(sum, a, b) _mm512_dpbusd_epi32(sum, a, b)
#elif defined(__AVXVNNI__)
#define KIND "avx-vnni"
typedef __m256i int_t_;
#define BYTES 32
#define SET_I(x) _mm256_set1_epi8(x)
#define DOT(sum, a, b) _mm256_dpbusd_avx_epi32(sum, a, b)
#else
#define KIND "avx2"
typedef __m256i int_t_;
#define BYTES 32
#define SET_I(x) _mm256_set1_epi8(x)
#define DOT(sum, a, b)                                                                             \
    _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)))
#endif

static volatile char one = 1;
static volatile float almost_one = 0.999f;
static volatile long sink;

/* Each sum is a variable of its own, so that it lives in a register; the empty asm statements
 * keep every instruction in the loop. */
#define ALL(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

static void dots(void) {
    int_t_ a = SET_I(one), b = SET_I(one);
#define DECLARE(i) int_t_ s##i = SET_I(0);
#define STEP(i) s##i = DOT(s##i, a, b); __asm__ volatile("" : "+v"(s##i));
#define USE(i) sink += *(int *)&s##i;
    ALL(DECLARE)
    for (long loop = 0; loop < LOOPS; loop++) { ALL(STEP) }
    ALL(USE)
#undef DECLARE
#undef STEP
}

static void multiplies(void) {
    float_t_ a = SET_F(almost_one), b = SET_F(0.001f);
#define DECLARE(i) float_t_ s##i = SET_F(0.5f);
#define STEP(i) s##i = FMA(s##i, a, b); __asm__ volatile("" : "+v"(s##i));
    ALL(DECLARE)
    for (long loop = 0; loop < LOOPS; loop++) { ALL(STEP) }
    ALL(USE)
}

static double best_seconds(void (*work)(void)) {
    double best = 1e9;
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        double start = omp_get_wtime();
#pragma omp parallel
        work();
        double took = omp_get_wtime() - start;
        best = took < best ? took : best;
    }
    return best;
}

int main(void) {
    double each = 2.0 * SUMS * LOOPS * omp_get_max_threads() / 1e9;
    double int8 = each * BYTES / best_seconds(dots), f32 = each * FLOATS / best_seconds(multiplies);
    printf("threads %d  kind %s  int8 %.1f GOP/s  f32 %.1f GFLOP/s\n", omp_get_max_threads(), KIND, int8, f32);
    return 0;
}
