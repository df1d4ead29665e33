/* Keeps the thread's default dtype and device of new tensors, and whether halves have wider results. */
#include "op/op.h"

static _Thread_local lm_dtype default_dtype = LM_F32;
static _Thread_local lm_device default_device = LM_DEVICE(LM_CPU, 0);
_Thread_local bool lm_halves_widen;

lm_dtype lm_default_dtype(void) { return default_dtype; }
void lm_set_default_dtype(lm_dtype dtype) { default_dtype = dtype; }
lm_device lm_default_device(void) { return default_device; }
void lm_set_default_device(lm_device device) { default_device = device; }
