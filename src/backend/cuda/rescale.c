/* Many tensors times a number: gathered by their dtypes into tables that travel with the launch. */
#include "rescale.h"

#include "backend/cuda/cuda.h"

static lm_status of_dtypes(int n, lm_tensor *const *from, lm_tensor *const *to, lm_dtype x, lm_dtype y,
                           lm_rescale_table *table, void *stream) {
  lm_status status = LM_OK;
  int64_t most = 0;
  table->n = 0;
  for (int i = 0; i <= n; i++) {
    if (i < n && (from[i]->dtype != (int8_t)x || to[i]->dtype != (int8_t)y || to[i]->numel == 0)) continue;
    if (table->n > 0 && (i == n || table->n == LM_RESCALE_TENSORS)) {
      TRY(LAUNCH("rescale", lm_rescale_run(x, y, table, most, stream)));
      table->n = 0;
      most = 0;
    }
    if (i == n) break;
    table->numel[table->n] = to[i]->numel;
    table->from[table->n] = from[i]->data;
    table->to[table->n++] = to[i]->data;
    if (to[i]->numel > most) most = to[i]->numel;
  }
done:
  return status;
}

lm_status lm_cuda_rescale(int n, lm_tensor *const *from, lm_tensor *const *to, double factor, lm_tensor *found) {
  lm_status status = LM_OK;
  void *stream;
  lm_rescale_table table = {.factor = factor, .found = (float *)found->data};
  TRY(lm_cuda_enter(to[0]->device, &stream));
  for (lm_dtype x = LM_F16; x <= LM_F64; x++) {
    for (lm_dtype y = LM_F16; y <= LM_F64; y++) TRY(of_dtypes(n, from, to, x, y, &table, stream));
  }
done:
  return status;
}
