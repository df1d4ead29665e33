/* Declares the scope of a call of an optimizer or of a function that clips gradients, for messages and traces. */
#pragma once

#include "device/recorder.h"
#include "op/run.h"

typedef struct lm_optim_scope {
  lm_running before;
  bool traced;
  lm_span span;
} lm_optim_scope;
void lm_optim_scope_begin(lm_optim_scope *c, const char *name, lm_device device);
void lm_optim_scope_end(lm_optim_scope *c);

/* Begins a call named `name` of an optimizer on a device; the call ends with the block. */
#define LM_OPTIM_SCOPE(name, device)                                 \
  lm_optim_scope scope __attribute__((cleanup(lm_optim_scope_end))); \
  lm_optim_scope_begin(&scope, name, device)
