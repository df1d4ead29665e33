#include "backend/cuda/libraries/cudnn_choice.h"

#include "backend/cuda/cuda.h"
#include "backend/known/plan_searches.h"
#include "device/device.h"

lm_status lm_cudnn_run_plan(const lm_cudnn_run *run, const lm_cudnn_plan *plan) {
  LM_CUDA_SCRATCH workspace = {0};
  NEED(lm_cuda_scratch(run->device, (size_t)plan->workspace, &workspace));
  return run->execute(run, plan, workspace.p);
}

/* Measures the plan's milliseconds, after a first run. */
static lm_status measure(const lm_cudnn_run *run, const lm_cudnn_plan *plan, double *ms) {
  enum { RUNS = 3 };
  lm_status status;
  lm_event *from = NULL, *to = NULL;
  lm_stream *stream = lm_stream_current(run->device);
  TRY(lm_cudnn_run_plan(run, plan));
  TRY(lm_event_new(run->device, true, &from));
  TRY(lm_event_new(run->device, true, &to));
  TRY(lm_event_record(from, stream));
  for (int i = 0; i < RUNS; i++) TRY(lm_cudnn_run_plan(run, plan));
  TRY(lm_event_record(to, stream));
  TRY(lm_event_synchronize(to));
  TRY(lm_event_elapsed(from, to, ms));
done:
  if (from) lm_event_free(from);
  if (to) lm_event_free(to);
  return status;
}

lm_status lm_cudnn_choose(lm_cudnn_search *s, lm_status begun, const lm_cudnn_run *run, bool timed,
                          lm_cudnn_plan *best) {
  enum { TRIED = 8 };
  lm_status status = begun, last = LM_OK;
  lm_cudnn_plan plan = {0};
  double shortest = 0;
  lm_plan_search_count();
  for (int ran = 0; status == LM_OK && (timed ? ran < TRIED : !best->plan);) {
    double ms = 0;
    TRY(lm_cudnn_search_next(s, &plan));
    if (!plan.plan) break;
    last = timed ? measure(run, &plan, &ms) : lm_cudnn_run_plan(run, &plan);
    if (last == LM_OK && (!best->plan || ms < shortest)) {
      lm_cudnn_plan_free(best);
      *best = plan;
      plan = (lm_cudnn_plan){0};
      shortest = ms;
    }
    ran += last == LM_OK;
    lm_cudnn_plan_free(&plan);
  }
  if (status == LM_OK && best->plan && timed) TRY(lm_cudnn_run_plan(run, best));
done:
  lm_cudnn_search_end(s);
  if (status == LM_E_MISSING || best->plan) status = LM_OK; /* later plans' errors do not matter */
  if (status == LM_OK && !best->plan && last != LM_E_MISSING) status = last;
  if (status != LM_OK) lm_cudnn_plan_free(best);
  return status;
}
