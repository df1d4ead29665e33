/* Prepares groups (op/group.h) as kernels that are written and compiled here, and launches them. */
#include "op/group.h"

#include "backend/cuda/group_text.h"
#include "backend/cuda/libraries/nvrtc.h"
#include "base/mem.h"
#include "base/message.h"
#include "convert.h"
#include "fill.h"
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
static lm_status put_parameters(lm_bytes *b, const lm_group *g, lm_tensor *const *operand, const void *scratch,
                                lm_device device, int64_t elements) {
  for (int k = 0; k < g->noperands; k++) {
    uint64_t word = (uint64_t)(uintptr_t)operand[k]->data;
    if (g->operand[k].is_number) memcpy(&word, operand[k]->data, lm_dtype_size(operand[k]->dtype));
    lm_put_u64(b, word);
  }
  lm_put_u64(b, (uint64_t)(uintptr_t)scratch);
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
  LM_CUDA_SCRATCH scratch = {0};
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
  NEED(lm_cuda_scratch(device, l->partial_bytes, &scratch));
  NEED(put_parameters(&parameters, g, operand, scratch.p, device, l->rows * l->columns));
  NEED(lm_cuda_launch_code(p->code, false, l->tiles * l->blocks, l->threads, parameters.data, parameters.n, stream));
  if (l->nsums == 0) return LM_OK;
  return lm_cuda_launch_code(p->code, true, (l->columns + 31) / 32, 512, parameters.data, parameters.n, stream);
}
