/* Checks rows of quantized blocks. */
#include "blocks.h"

#include "base/message.h"
#include "op/operand_checks.h"
#include "op_entries.h"

static lm_status check_multiple(lm_op_id op, const char *unit, int64_t n, int64_t divisor, const lm_block_kind *k) {
  if (n % divisor == 0) return LM_OK;
  return lm_fail_divisible(lm_ops[op].name, lm_text("the number of %s of a row", unit), n,
                           lm_text("that of a %s block", k->name), divisor);
}

lm_status lm_check_blocks(lm_op_id op, int64_t bytes, int kind, int64_t *elements) {
  const lm_block_kind *k = lm_block_kind_of(kind);
  *elements = bytes / k->bytes * k->elements;
  return check_multiple(op, "bytes", bytes, k->bytes, k);
}

lm_status lm_check_elements_of_blocks(lm_op_id op, int64_t elements, int kind, int64_t *bytes) {
  const lm_block_kind *k = lm_block_kind_of(kind);
  *bytes = elements / k->elements * k->bytes;
  return check_multiple(op, "elements", elements, k->elements, k);
}

lm_status lm_check_floats_or_blocks(lm_op_id op, const lm_tensor *t, int64_t size, int kind, int64_t *elements) {
  *elements = size;
  if (lm_dtype_is_float(t->dtype)) return LM_OK;
  if (t->dtype == LM_U8) return lm_check_blocks(op, size, kind, elements);
  return lm_fail_dtype(lm_ops[op].name, "keys and values", "floating point, or uint8 for blocks",
                       lm_dtype_name(t->dtype));
}
