/* Reductions in int64, for every integer dtype and bool. */
#include <stdint.h>

typedef int64_t num;
typedef int64_t total;
#define LM_REDUCE_TABLE lm_reduce_i64
#define LOWEST INT64_MIN
#define HIGHEST INT64_MAX
#define ISNAN(v) 0

#include "backend/cpu/isa/templates/reduce.inc"
