#include "backend/cpu/isa/fft.h"

#include <math.h>

enum { W = LM_FFT_LANES };
#define SIMD _Pragma("omp simd")
#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define FN(name) JOIN(name, REAL)

#define REAL float
#define ROW 8
#define SHUFFLE_1(a, b, o) __builtin_shufflevector(a, b, o, 8 + o, 2 + o, 10 + o, 4 + o, 12 + o, 6 + o, 14 + o)
#define SHUFFLE_2(a, b, o) __builtin_shufflevector(a, b, o, 1 + o, 8 + o, 9 + o, 4 + o, 5 + o, 12 + o, 13 + o)
#define TABLE lm_fft_F32
#include "backend/cpu/isa/templates/fft.inc"
#undef REAL
#undef TABLE
#undef ROW
#undef SHUFFLE_1
#undef SHUFFLE_2
#define REAL double
#define ROW 4
#define SHUFFLE_1(a, b, o) __builtin_shufflevector(a, b, o, 4 + o, 2 + o, 6 + o)
#define SHUFFLE_2(a, b, o) __builtin_shufflevector(a, b, o, 1 + o, 4 + o, 5 + o)
#define TABLE lm_fft_F64
#include "backend/cpu/isa/templates/fft.inc"
