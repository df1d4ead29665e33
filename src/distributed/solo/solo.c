/* Implements the backend "solo", a group of one process: gathers, scatters and all_to_all copy, the rest is empty. */
#include "distributed/group/group_core.h"
#include "op/op.h"
#include "op_entries.h"

static lm_status open_solo(lm_group *g) {
  (void)g;
  return LM_OK;
}

static void close_solo(lm_group *g) { (void)g; }

static lm_status solo_copy(const lm_tensor *from, lm_tensor *to) {
  lm_tensor *written = NULL;
  if (from->numel == 0) return LM_OK;
  lm_status status = lm_op_run(LM_OP_copy_, &(lm_copy__args){.x = to, .src = (lm_tensor *)from}, &written);
  lm_release(written);
  return status;
}

static lm_status solo_all_reduce(lm_group *g, lm_tensor *t, lm_reduce_op op) {
  (void)g, (void)t, (void)op;
  return LM_OK;
}

static lm_status solo_broadcast(lm_group *g, lm_tensor *t, int root) {
  (void)g, (void)t, (void)root;
  return LM_OK;
}

static lm_status solo_reduce(lm_group *g, lm_tensor *t, int root, lm_reduce_op op) {
  (void)g, (void)t, (void)root, (void)op;
  return LM_OK;
}

static lm_status solo_all_gather(lm_group *g, const lm_tensor *t, lm_tensor *const *out) {
  (void)g;
  return solo_copy(t, out[0]);
}

static lm_status solo_gather(lm_group *g, const lm_tensor *t, int root, lm_tensor *const *out) {
  (void)g, (void)root;
  return solo_copy(t, out[0]);
}

static lm_status solo_scatter(lm_group *g, lm_tensor *t, int root, lm_tensor *const *in) {
  (void)g, (void)root;
  return solo_copy(in[0], t);
}

static lm_status solo_reduce_scatter(lm_group *g, lm_tensor *t, lm_tensor *const *in, lm_reduce_op op) {
  (void)g, (void)op;
  return solo_copy(in[0], t);
}

static lm_status solo_all_to_all(lm_group *g, lm_tensor *const *in, lm_tensor *const *out) {
  (void)g;
  return solo_copy(in[0], out[0]);
}

static lm_status solo_barrier(lm_group *g) {
  (void)g;
  return LM_OK;
}

const lm_group_table lm_group_solo_table = {
    .abi = LM_GROUP_ABI,
    .name = "solo",
    .kinds = (1u << LM_DEVICE_KINDS) - 1,
    .open = open_solo,
    .close = close_solo,
    .all_reduce = solo_all_reduce,
    .broadcast = solo_broadcast,
    .reduce = solo_reduce,
    .all_gather = solo_all_gather,
    .gather = solo_gather,
    .scatter = solo_scatter,
    .reduce_scatter = solo_reduce_scatter,
    .all_to_all = solo_all_to_all,
    .barrier = solo_barrier,
};
