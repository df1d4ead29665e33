/* Squares of numbers transposed in registers, rows of 32 bytes: 8 of 8 floats, or 4 of 4 doubles. */
#ifndef LM_CPU_ISA_TRANSPOSE_H
#define LM_CPU_ISA_TRANSPOSE_H

typedef float lm_row_float __attribute__((vector_size(32), aligned(4)));
typedef double lm_row_double __attribute__((vector_size(32), aligned(8)));

#define LM_ROW_1_float(a, b, o) __builtin_shufflevector(a, b, o, 8 + o, 2 + o, 10 + o, 4 + o, 12 + o, 6 + o, 14 + o)
#define LM_ROW_2_float(a, b, o) __builtin_shufflevector(a, b, o, 1 + o, 8 + o, 9 + o, 4 + o, 5 + o, 12 + o, 13 + o)
#define LM_ROW_1_double(a, b, o) __builtin_shufflevector(a, b, o, 4 + o, 2 + o, 6 + o)
#define LM_ROW_2_double(a, b, o) __builtin_shufflevector(a, b, o, 1 + o, 4 + o, 5 + o)

/* By 2 and by 4. */
#define LM_TRANSPOSE_4(REAL, ROWS, r)                    \
  do {                                                   \
    lm_row_##REAL t_[ROWS];                              \
    for (int i = 0; i < ROWS; i += 2) {                  \
      t_[i] = LM_ROW_1_##REAL(r[i], r[i + 1], 0);        \
      t_[i + 1] = LM_ROW_1_##REAL(r[i], r[i + 1], 1);    \
    }                                                    \
    for (int i = 0; i < ROWS; i += 4) {                  \
      for (int j = i; j < i + 2; j++) {                  \
        r[j] = LM_ROW_2_##REAL(t_[j], t_[j + 2], 0);     \
        r[j + 2] = LM_ROW_2_##REAL(t_[j], t_[j + 2], 2); \
      }                                                  \
    }                                                    \
  } while (0)

static inline void lm_transpose_float(lm_row_float r[8]) {
  LM_TRANSPOSE_4(float, 8, r);
  for (int i = 0; i < 4; i++) {
    lm_row_float a = r[i], b = r[i + 4];
    r[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
    r[i + 4] = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

static inline void lm_transpose_double(lm_row_double r[4]) { LM_TRANSPOSE_4(double, 4, r); }

#endif
