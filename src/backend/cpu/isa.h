/* Declares code that is compiled for several instruction levels and chosen at load.
 *
 * A family of loops is a file isa/<family>.c that defines one table of function pointers,
 *   const struct lm_pooling_loops LM_ISA_NAME(lm_pooling_loops) = {...};
 * and a header isa/<family>.h that declares the struct and LM_ISA_DECLARE(struct lm_pooling_loops, lm_pooling_loops).
 * Callers outside isa/ write LM_ISA_PICK(lm_pooling_loops)->forward(...). Everything else in isa/<family>.c is
 * static. */
#pragma once

#define LM_ISA_JOIN_(a, b) a##_##b
#define LM_ISA_JOIN(a, b) LM_ISA_JOIN_(a, b)
#define LM_ISA_NAME(name) LM_ISA_JOIN(name, LM_ISA)

/* Returns the instruction level that backend.c found. 0: the base level (x86-64-v2, or the machine's own elsewhere), 1:
 * v3 (AVX2, FMA), 2: v4 (AVX-512). LM_CPU_LEVEL=0..2 in the environment lowers it. */
int lm_cpu_level(void);

#if !defined(__x86_64__) && !defined(LM_ONLY_ISA)
#define LM_ONLY_ISA v2
#endif
#ifndef LM_ONLY_ISA
#define LM_ISA_DECLARE(type, name) extern const type name##_v2, name##_v3, name##_v4
#define LM_ISA_PICK(name) (lm_cpu_level() == 2 ? &name##_v4 : lm_cpu_level() == 1 ? &name##_v3 : &name##_v2)
#define LM_NEEDED_LEVEL 0 /* the least level of a CPU that this build runs on */
#else
#define LM_ISA_DECLARE(type, name) extern const type LM_ISA_JOIN(name, LM_ONLY_ISA)
#define LM_ISA_PICK(name) (&LM_ISA_JOIN(name, LM_ONLY_ISA))
#define LM_LEVEL_v2 0
#define LM_LEVEL_v3 1
#define LM_LEVEL_v4 2
#define LM_NEEDED_LEVEL LM_ISA_JOIN(LM_LEVEL, LM_ONLY_ISA)
#endif

/* Declares tables for float32 and float64, and name_of, which returns the one for a dtype of these. */
#define LM_ISA_DECLARE_REAL(type, name)                                         \
  LM_ISA_DECLARE(type, name##_F32);                                             \
  LM_ISA_DECLARE(type, name##_F64);                                             \
  static inline const type *name##_of(lm_dtype dtype) {                         \
    return dtype == LM_F64 ? LM_ISA_PICK(name##_F64) : LM_ISA_PICK(name##_F32); \
  }
