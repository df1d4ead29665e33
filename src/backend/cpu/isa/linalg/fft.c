#include "backend/cpu/isa/linalg/fft.h"

#include "backend/cpu/isa/elem.h"
#include "backend/cpu/isa/linalg/transpose.h"
#include "backend/cpu/nontemporal_copy.h"

enum { W = LM_FFT_LANES };
#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define FN(name) JOIN(name, REAL)

#define REAL float
#define ROW 8
#define TABLE lm_fft_F32
#include "backend/cpu/isa/templates/fft.inc"
#undef REAL
#undef TABLE
#undef ROW
#define REAL double
#define ROW 4
#define TABLE lm_fft_F64
#include "backend/cpu/isa/templates/fft.inc"
