/* The group of one process: there is nobody to exchange with, so what is gathered or scattered is copied. */
#include "distributed/group/core.h"
#include "op/op.h"

static lm_status open_solo(lm_group *g) {
  (void)g;
  return LM_OK;
}

static void close_solo(lm_group *g) { (void)g; }

static lm_status copy(const lm_tensor *from, lm_tensor *to) {
  lm_tensor *written = NULL;
  if (from->numel == 0) return LM_OK;
  lm_status status = lm_op_run(LM_OP_copy_, &(lm_copy__args){.x = to, .src = (lm_tensor *)from}, &written);
  lm_release(written);
  return status;
}

static lm_status all_reduce(lm_group *g, lm_tensor *t, lm_reduce_op op) {
  (void)g, (void)t, (void)op;
  return LM_OK;
}

static lm_status broadcast(lm_group *g, lm_tensor *t, int root) {
  (void)g, (void)t, (void)root;
  return LM_OK;
}

static lm_status reduce(lm_group *g, lm_tensor *t, int root, lm_reduce_op op) {
  (void)g, (void)t, (void)root, (void)op;
  return LM_OK;
}

static lm_status all_gather(lm_group *g, const lm_tensor *t, lm_tensor *const *out) {
  (void)g;
  return copy(t, out[0]);
}

static lm_status gather(lm_group *g, const lm_tensor *t, int root, lm_tensor *const *out) {
  (void)g, (void)root;
  return copy(t, out[0]);
}

static lm_status scatter(lm_group *g, lm_tensor *t, int root, lm_tensor *const *in) {
  (void)g, (void)root;
  return copy(in[0], t);
}

static lm_status reduce_scatter(lm_group *g, lm_tensor *t, lm_tensor *const *in, lm_reduce_op op) {
  (void)g, (void)op;
  return copy(in[0], t);
}

static lm_status all_to_all(lm_group *g, lm_tensor *const *in, lm_tensor *const *out) {
  (void)g;
  return copy(in[0], out[0]);
}

static lm_status barrier(lm_group *g) {
  (void)g;
  return LM_OK;
}

const lm_group_table lm_group_solo_table = {
    .abi = LM_GROUP_ABI,
    .name = "solo",
    .kinds = (1u << LM_DEVICE_KINDS) - 1,
    .open = open_solo,
    .close = close_solo,
    .all_reduce = all_reduce,
    .broadcast = broadcast,
    .reduce = reduce,
    .all_gather = all_gather,
    .gather = gather,
    .scatter = scatter,
    .reduce_scatter = reduce_scatter,
    .all_to_all = all_to_all,
    .barrier = barrier,
};
