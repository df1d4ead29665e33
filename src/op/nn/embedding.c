/* Checks one_hot, and rows of embedding tables, whose indices count from 1. Kernels check them all before their first
 * write, and get contiguous int64; embedding's index is 1-d and its out [n, features]. embedding_bag_sums' kernel
 * checks offsets too. */
#include "base/message.h"
#include "op/operand_checks.h"

lm_status lm_op_one_hot(const lm_one_hot_args *a, lm_tensor **out) {
  lm_one_hot_args run = *a;
  lm_tensor *largest = NULL;
  lm_ints size;
  LM_FRAME(f, LM_OP_one_hot);
  NEED(lm_frame_index(&f, "x", &run.x));
  if (run.num_classes < -1 || run.num_classes == 0 || (run.num_classes == -1 && run.x->numel == 0)) {
    return lm_fail_int("one_hot", "num_classes", run.x->numel == 0 ? "at least 1 for an empty x" : "at least 1, or -1",
                       run.num_classes);
  }
  if (run.num_classes == -1) {
    NEED(lm_op_reduce(
        LM_OP_amax,
        &(lm_reduce_args){.x = run.x, .dim = {.n = -1}, .statistic = LM_STATISTIC_AMAX, .dtype = LM_NO_DTYPE},
        &largest));
    NEED(lm_tensor_item_i64(lm_frame_hold(&f, largest), &run.num_classes));
  }
  if (run.num_classes < 1) run.num_classes = 1; /* no label is valid then: the kernel's error names one */
  const lm_ints labels = lm_sizes_between(run.x->ndim, run.x->size, 0, 0);
  NEED(lm_sizes_join(&f, 0, NULL, &labels, 1, &run.num_classes, &size));
  NEED(lm_frame_result(&f, 0, LM_I64, run.x->device, size.n, size.v, LM_CONTIGUOUS));
  NEED(lm_frame_dispatch(&f, run.x->device, &run));
  return lm_frame_end(&f, out);
}

lm_status lm_check_padding_row(lm_op_id op, int64_t *padding_idx, int64_t num) {
  int64_t row = *padding_idx < 0 ? *padding_idx + num + 1 : *padding_idx;
  if (*padding_idx != 0 && (row < 1 || row > num)) {
    return lm_fail_int(lm_ops[op].name, "padding_idx", lm_text("from 1 to %lld", (long long)num), *padding_idx);
  }
  *padding_idx = row;
  return LM_OK;
}
