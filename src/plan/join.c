#include "plan/plan_steps.h"

lm_status lm_plan_join(lm_plan *p) {
  (void)p;
  return LM_OK;
}
