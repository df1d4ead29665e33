/* The group of one process: there is nobody to exchange with, so a collective is its checks. */
#include "base/mem.h"
#include "dist/group.h"
#include "op/op.h"

static lm_status check_written(const char *name, const lm_tensor *t) {
  if (!lm_overlaps_itself(t)) return LM_OK;
  return lm_fail(LM_E_ARG,
                 "%s: elements of the tensor of sizes %s share memory and cannot be written; clone() it first", name,
                 lm_shape_of(t));
}

static lm_status all_reduce(lm_group *g, lm_tensor *t, lm_reduce_op op) {
  (void)g;
  if (op > LM_REDUCE_MAX) return lm_fail(LM_E_ARG, "all_reduce: unknown reduction %d", (int)op);
  if (op == LM_REDUCE_MEAN && !lm_dtype_is_float((lm_dtype)t->dtype))
    return lm_fail(LM_E_DTYPE, "all_reduce: the mean of %s; floats are wanted, see :float()",
                   lm_dtype_name((lm_dtype)t->dtype));
  return check_written("all_reduce", t);
}

static lm_status broadcast(lm_group *g, lm_tensor *t, int root) {
  if (root < 0 || root >= g->size)
    return lm_fail(LM_E_ARG, "broadcast: rank %d in a group of %d; ranks go from 0 to %d", root, g->size, g->size - 1);
  return check_written("broadcast", t);
}

static lm_status all_gather(lm_group *g, lm_tensor *t, int n, lm_tensor *const *out) {
  if (n != g->size) return lm_fail(LM_E_ARG, "all_gather: %d tensors to gather into for %d ranks", n, g->size);
  if (out[0] == t) return LM_OK;
  if (!lm_same_shape(out[0], t) || out[0]->dtype != t->dtype || out[0]->device != t->device)
    return lm_fail(LM_E_SHAPE, "all_gather: from %s %s on %s into %s %s on %s; they have to agree",
                   lm_dtype_name((lm_dtype)t->dtype), lm_shape_of(t), lm_device_name(t->device),
                   lm_dtype_name((lm_dtype)out[0]->dtype), lm_shape_of(out[0]), lm_device_name(out[0]->device));
  lm_copy__args copy = {.x = out[0], .src = t};
  lm_tensor *written = NULL;
  lm_status status = lm_op_run(LM_OP_copy_, &copy, &written);
  lm_release(written);
  return status;
}

static lm_status barrier(lm_group *g) {
  (void)g;
  return LM_OK;
}

static void destroy(lm_group *g) { lm_free(g); }

static const lm_group_table table = {
    .abi = LM_GROUP_ABI,
    .name = "solo",
    .all_reduce = all_reduce,
    .broadcast = broadcast,
    .all_gather = all_gather,
    .barrier = barrier,
    .destroy = destroy,
};

lm_status lm_group_solo(lm_group **out) {
  lm_group *g = lm_malloc(sizeof *g);
  *out = g;
  if (!g) return LM_E_OOM;
  *g = (lm_group){.table = &table, .rank = 0, .size = 1};
  return LM_OK;
}
