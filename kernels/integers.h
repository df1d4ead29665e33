/* Computes with counts and sizes, which are not negative. For C and for the host's code in CUDA. */
#pragma once

#include <stdint.h>

static inline int64_t lm_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t lm_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t lm_ceil_div(int64_t n, int64_t by) { return (n + by - 1) / by; }
static inline int64_t lm_round_up(int64_t n, int64_t to) { return lm_ceil_div(n, to) * to; }
