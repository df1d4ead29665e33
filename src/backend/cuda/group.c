/* Prepares groups (op/group.h) as kernels that are written and compiled here, and launches them. Adds up their partial
 * sums. */
#include "op/group.h"

#include "backend/cuda/group_text.h"
#include "backend/cuda/libraries/nvrtc.h"
#include "base/mem.h"
#include "base/message.h"
#include "convert.h"
#include "fill.h"
#include "reduce.h"
#include "tensor/generator.h"

typedef struct prepared {
  const lm_cuda_code *code;
  lm_group_launch launch;
} prepared;

lm_status lm_cuda_group_prepare(lm_device device, lm_group *g) {
  LM_OWNED_BYTES text = {0};
  LM_FREED prepared *p = lm_calloc(1, sizeof *p);
  if (!p) return LM_E_OOM;
  NEED(lm_group_text(g, lm_cuda_facts_of(device)->processors, &p->launch, &text));
  NEED(lm_cuda_compile(device, text.data, text.n, &p->code));
  g->prepared = p;
  g->parts = p->launch.blocks;
  p = NULL;
  return LM_OK;
}

static void put_numbers(lm_bytes *b, const lm_group_member *m) {
  for (int i = 0; i < LM_POINTWISE_MAX_NUMBERS; i++) {
    const double v = i < lm_group_numbers(m) ? m->number[i] : 0;
    const float narrow = (float)v;
    const int64_t whole = LM_PUT_I64(v);
    if (m->compute == LM_F32) lm_put(b, &narrow, sizeof narrow);
    if (m->compute == LM_F64) lm_put(b, &v, sizeof v);
    if (m->compute == LM_I64) lm_put(b, &whole, sizeof whole);
  }
}

/* Appends the kernels' parameter (group_text.h). */
static lm_status put_parameters(lm_bytes *b, const lm_group *g, lm_tensor *const *operand, lm_device device,
                                int64_t elements) {
  for (int k = 0; k < g->noperands; k++) {
    uint64_t word = (uint64_t)(uintptr_t)operand[k]->data;
    if (g->operand[k].is_number) memcpy(&word, operand[k]->data, lm_dtype_size(operand[k]->dtype));
    lm_put_u64(b, word);
  }
  for (int i = 0; i < g->nmembers; i++)
    if (lm_group_numbers(&g->member[i]) > 0) put_numbers(b, &g->member[i]);
  for (int i = 0; i < g->nmembers; i++) {
    if (g->member[i].kind != LM_GROUP_KEPT) continue;
    const lm_draw draw = lm_generator_take(NULL, device, ((uint64_t)elements + 3) / 4);
    lm_put(b, &(lm_blocks_drawn){draw.seed, draw.offset, lm_generator_extra()}, sizeof(lm_blocks_drawn));
  }
  return b->failed ? LM_E_OOM : LM_OK;
}

lm_status lm_cuda_group_run(const lm_group *g, lm_tensor *const *operand) {
  LM_OWNED_BYTES parameters = {0};
  const prepared *p = g->prepared;
  const lm_group_launch *l = &p->launch;
  lm_device device = LM_NO_DEVICE;
  void *stream;
  for (int k = 0; k < g->noperands; k++) {
    if (l->is_packed[k] && (uintptr_t)operand[k]->data % 16 != 0)
      return lm_fail(LM_E_MISSING, "a tensor does not begin at a multiple of 16 bytes");
    if (g->operand[k].member >= 0) device = operand[k]->device;
  }
  NEED(lm_cuda_enter(device, &stream));
  NEED(put_parameters(&parameters, g, operand, device, l->rows * l->columns));
  return lm_cuda_launch_code(p->code, l->tiles * l->blocks, l->threads, parameters.data, parameters.n, stream);
}

/* Adds a tensor to the table; false if that is full, or of other dtypes. */
static bool put_parts(lm_parts_table *table, const lm_tensor *from, const lm_tensor *to, const lm_tensor *first_from,
                      const lm_tensor *first_to) {
  if (table->n == LM_TABLE_TENSORS || from->dtype != first_from->dtype || to->dtype != first_to->dtype) return false;
  table->first[table->n + 1] = table->first[table->n] + (uint32_t)lm_ceil_div(to->numel, 32);
  table->parts[table->n] = (int32_t)from->size[0];
  table->columns[table->n] = (int32_t)to->numel;
  table->from[table->n] = from->data;
  table->to[table->n++] = to->data;
  return true;
}

lm_status lm_cuda_sum_parts(int n, lm_tensor *const *from, lm_tensor *const *to) {
  void *stream;
  NEED(lm_cuda_enter(to[0]->device, &stream));
  for (int at = 0; at < n;) {
    const int first = at;
    lm_parts_table table = {0};
    while (at < n && put_parts(&table, from[at], to[at], from[first], to[first])) at++;
    NEED(LAUNCH("sum_parts", lm_sum_parts(from[first]->dtype, to[first]->dtype, &table, stream)));
  }
  return LM_OK;
}
