/* Defers elementwise ops for pointwise.c (op/elementwise_chain.h). */
#pragma once

#include "backend/cpu/isa/pointwise.h"
#include "op/elementwise_chain.h"
#include "op_args_products.h"

/* Returns true if the job, computed in `compute`, was deferred, which only happens if it `may` be. Otherwise the
 * deferred ops that its inputs depend on have been run. */
bool lm_chain_put(const lm_pointwise *job, lm_dtype compute, bool may);
typedef void lm_chain_block(const void *ctx, int64_t row, int64_t rows, int64_t column, int64_t columns);
/* Computes a product y; if p's input is y itself, adds it to y, where that has the bits of a sum of two tensors, and
 * sets *finished then. block: called with ctx for each block of y once it is complete, from several threads, if y's
 * kernel can, which then sets *finished; NULL: none. */
typedef lm_status lm_chain_product(const lm_product_args *p, lm_tensor *y, lm_chain_block *block, const void *ctx,
                                   bool *finished);
/* Returns true if the product y [rows, columns] was deferred, since the ops that follow may read it. */
bool lm_chain_put_product(const lm_product_args *p, lm_tensor *y, lm_chain_product *run);
