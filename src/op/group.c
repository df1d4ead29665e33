/* Merges dims of groups, and calls the device's kernels for them. */
#include "op/group.h"

#include <string.h>

#include "base/message.h"
#include "op/stream_order.h"

static bool has_reduction(const lm_group *g) {
  for (int m = 0; m < g->nmembers; m++)
    if (lm_group_is_reduction(g->member[m].kind)) return true;
  return false;
}

static void swap_dims(lm_group *g, int a, int b) {
  const int64_t size = g->size[a];
  g->size[a] = g->size[b], g->size[b] = size;
  for (int k = 0; k < g->noperands; k++) {
    int64_t *stride = g->operand[k].stride, first = stride[a];
    stride[a] = stride[b], stride[b] = first;
  }
}

/* Returns the first operand that is a result. */
static int first_result(const lm_group *g) {
  int k = 0;
  while (k < g->noperands - 1 && g->operand[k].member < 0) k++;
  return k;
}

static void order_dims(lm_group *g) {
  const int64_t *stride = g->operand[first_result(g)].stride;
  for (int d = 1; d < g->ndim; d++)
    for (int at = d; at > 0 && stride[at - 1] < stride[at]; at--) swap_dims(g, at - 1, at);
}

/* Returns true if dims d and d + 1 are evenly spaced in all operands. */
static bool is_even(const lm_group *g, int d) {
  for (int k = 0; k < g->noperands; k++) {
    const int64_t *stride = g->operand[k].stride;
    if (stride[d] != stride[d + 1] * g->size[d + 1]) return false;
  }
  return true;
}

/* Drops dim d, of one element or merged into the dim after it. */
static void drop_dim(lm_group *g, int d) {
  for (int i = d; i < g->ndim - 1; i++) {
    g->size[i] = g->size[i + 1];
    for (int k = 0; k < g->noperands; k++) g->operand[k].stride[i] = g->operand[k].stride[i + 1];
  }
  g->ndim--;
  g->nrow -= d < g->nrow;
}

static void merge_dims(lm_group *g) {
  for (int d = g->ndim - 1; d >= 0; d--)
    if (g->size[d] == 1) drop_dim(g, d);
  if (!has_reduction(g)) {
    g->nrow = 0;
    order_dims(g);
  }
  for (int d = g->ndim - 2; d >= 0; d--) {
    if (d + 1 == g->nrow || !is_even(g, d)) continue;
    g->size[d + 1] *= g->size[d];
    drop_dim(g, d);
  }
}

lm_status lm_group_prepare(lm_device device, lm_group *g) {
  const lm_backend *backend = lm_backend_of(device);
  if (!backend) return LM_E_MISSING;
  if (!backend->group_prepare) return lm_fail_missing("compile", lm_device_name(device));
  merge_dims(g);
  return backend->group_prepare(device, g);
}

lm_status lm_group_run(lm_device device, const lm_group *g, lm_tensor *const *operand) {
  lm_stream *s;
  NEED(lm_stream_order_begin(device, &s));
  for (int k = 0; k < g->noperands; k++)
    NEED(g->operand[k].member < 0 ? lm_stream_order_read(s, operand[k]) : lm_stream_order_write(s, operand[k]));
  return lm_stream_order_end(s, lm_backend_of(device)->group_run(g, operand));
}

lm_status lm_group_sum_parts(lm_device device, int n, lm_tensor *const *from, lm_tensor *const *to) {
  lm_stream *s;
  NEED(lm_stream_order_begin(device, &s));
  for (int i = 0; i < n; i++) {
    NEED(lm_stream_order_read(s, from[i]));
    NEED(lm_stream_order_write(s, to[i]));
  }
  return lm_stream_order_end(s, lm_backend_of(device)->sum_parts(n, from, to));
}
