/* Checks kernels/merged_dims.h: over thousands of layouts, merged loops go through the same positions as the dims did.
 */
#include "merged_dims.h"

#include <stdio.h>
#include <stdlib.h>

static int64_t below(int64_t n) { return rand() % n; }

/* Checks two sides of up to four dims: dense, with gaps or broadcast, in any order. */
static void check(bool sorted) {
  int ndim = (int)below(5), order[LM_DIMS_MAX];
  int64_t size[LM_DIMS_MAX], a[LM_DIMS_MAX], b[LM_DIMS_MAX], next = 1;
  bool take[LM_DIMS_MAX];
  for (int d = ndim - 1; d >= 0; d--) {
    size[d] = 1 + below(4);
    take[d] = below(5) > 0;
    a[d] = next;
    b[d] = below(3) > 0 ? next : 0;
    next *= size[d] + (below(4) == 0);
  }
  for (int d = 0; d + 1 < ndim; d++) { /* swaps move sizes and strides together */
    int other = d + (int)below(ndim - d);
    int64_t s = size[d], x = a[d], y = b[d];
    size[d] = size[other], a[d] = a[other], b[d] = b[other];
    size[other] = s, a[other] = x, b[other] = y;
  }
  lm_dims dims = lm_dims_of(ndim, size, take, 2, (const int64_t *[]){a, b}, sorted);
  for (int d = 0; d < ndim; d++) order[d] = d;
  if (sorted) lm_dims_order(ndim, a, order);
  int64_t count = 1;
  for (int d = 0; d < ndim; d++) count *= take[d] ? size[d] : 1;
  bool good = lm_dims_numel(&dims) == count;
  for (int64_t u = 0; good && u < count; u++) {
    int64_t at[2] = {0, 0}, rest = u;
    for (int i = ndim - 1; i >= 0; i--) {
      int d = order[i];
      if (!take[d]) continue;
      at[0] += rest % size[d] * a[d], at[1] += rest % size[d] * b[d];
      rest /= size[d];
    }
    good = lm_dims_at(&dims, 0, u) == at[0] && lm_dims_at(&dims, 1, u) == at[1];
  }
  for (int d = 0; good && d + 1 < dims.ndim; d++) { /* nothing is left that could be joined */
    bool even = true;
    for (int s = 0; s < 2; s++) even &= dims.stride[s][d] == dims.stride[s][d + 1] * dims.size[d + 1];
    good = !even && (!sorted || dims.stride[0][d] >= dims.stride[0][d + 1]);
  }
  if (good) return;
  printf("wrong: %d dims, sorted %d\n", ndim, sorted);
  exit(1);
}

int main(void) {
  for (int i = 0; i < 20000; i++) check(i % 2);
  lm_dims dims = {.sides = 1, .ndim = 0};
  int64_t stride;
  if (lm_dims_pop(&dims, &stride, 7) != 1 || stride != 7) return 1;
  lm_dims_push(&dims, 3, (int64_t[]){8});
  if (lm_dims_pop(&dims, &stride, 7) != 3 || stride != 8 || dims.ndim != 0) return 1;
  puts("ok");
  return 0;
}
