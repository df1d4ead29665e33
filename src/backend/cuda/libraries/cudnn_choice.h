/* Choosing among a graph's plans by running them. */
#pragma once

#include "backend/cuda/libraries/cudnn_graph.h"
#include "device/device.h"

/* What a plan is run for; the struct of who does it begins with this. */
typedef struct lm_cudnn_run {
  lm_device device;
  lm_status (*execute)(const struct lm_cudnn_run *run, const lm_cudnn_plan *plan, void *workspace);
} lm_cudnn_run;

/* Enqueues the plan, with memory to work in. */
lm_status lm_cudnn_run_plan(const lm_cudnn_run *run, const lm_cudnn_plan *plan);
/* The first plan of a search that was begun with `begun` that runs or, timed, the fastest of the first few; the search
 * is ended. best->plan stays NULL where there is none, which is no error, but a failure of the only ones there are is.
 * The plan has been run. */
lm_status lm_cudnn_choose(lm_cudnn_search *s, lm_status begun, const lm_cudnn_run *run, bool timed,
                          lm_cudnn_plan *best);
