/* Declares Householder's reflections H = I - tau v v^T, v[0] = 1, of columns that are each contiguous; float or
 * double. */
#pragma once

#include "backend/cpu/isa.h"
#include "tensor/dtype.h"

struct lm_householder_loops {
  /* Factors `columns` columns of m numbers, ld apart, in place: R of Q R is on and above the diagonal, below it are the
   * v without their first entry. tau: one for each column, up to the m-th. Signs are LAPACK's. */
  void (*factor)(int m, int columns, void *a, int ld, void *tau);
  /* Multiplies `columns` columns of m numbers, ld apart, by H; v's entries after the first follow v[0]. */
  void (*reflect)(int m, const void *v, double tau, int columns, void *a, int ld);
  /* Computes upper triangular T [n, n] with H1 H2 … Hn = I - V T V^T from tau and the v's products, square [n, n]. */
  void (*combine)(int n, const void *square, const void *tau, void *T);
};

LM_ISA_DECLARE_REAL(struct lm_householder_loops, lm_householder_loops)
