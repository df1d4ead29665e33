#include "backend/cpu/isa/linalg/fft.h"

#include "backend/cpu/isa/elem.h"
#include "backend/cpu/isa/linalg/transpose.h"
#include "backend/cpu/nontemporal_copy.h"

enum { W = LM_FFT_LANES };
#define ROW (32 / (int)sizeof(LM_ELEM)) /* numbers of a row that is transposed in registers */
#define LM_TEMPLATE "backend/cpu/isa/templates/fft.inc"
#include "backend/cpu/isa/templates/each_real.inc"
