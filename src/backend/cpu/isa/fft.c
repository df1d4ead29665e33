#include "backend/cpu/isa/fft.h"

#include <math.h>

enum { W = LM_FFT_LANES };
#define SIMD _Pragma("omp simd")
#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define FN(name) JOIN(name, REAL)

#define REAL float
#define TABLE lm_fft_F32
#include "backend/cpu/isa/templates/fft.inc"
#undef REAL
#undef TABLE
#define REAL double
#define TABLE lm_fft_F64
#include "backend/cpu/isa/templates/fft.inc"
