/* Chooses among a graph's plans by running them. */
#pragma once

#include "backend/cuda/libraries/cudnn_graph.h"
#include "device/device.h"

/* The first member of structs that describe a run of a plan. */
typedef struct lm_cudnn_run {
  lm_device device;
  lm_status (*execute)(const struct lm_cudnn_run *run, const lm_cudnn_plan *plan, void *workspace);
} lm_cudnn_run;

/* Enqueues the plan, with its workspace. */
lm_status lm_cudnn_run_plan(const lm_cudnn_run *run, const lm_cudnn_plan *plan);
/* Runs plans of a search that began with status `begun`, and sets *best to the first that runs or, timed, the fastest
 * of the first few. Ends the search. best->plan stays NULL if there is no plan, which is no error; if all plans fail,
 * returns the error. */
lm_status lm_cudnn_choose(lm_cudnn_search *s, lm_status begun, const lm_cudnn_run *run, bool timed,
                          lm_cudnn_plan *best);
