/* Captures and replays whole training steps as graphs (device/graph.h):
 *
 *   graph_capture(device, stream, f, ...) -> graph, f's results    f runs once; its kernels are recorded, not run
 *   graph_replay         on the current stream of the graph's device
 *   graph_set_numbers    sets optimizers' numbers from index `at` on
 *   optim_numbers_at     index of the last captured step's first number
 *
 * Numbers that change from one replay to the next are in device memory, which captured kernels read: the offset of the
 * random sequence since the capture (tensor/generator.h), to which the graph's last node adds; and the numbers that
 * optimizers keep, such as their step counts (optim/optim.h). */
#include <string.h>

#include "autograd/autograd.h"
#include "base/message.h"
#include "bind/bind.h"
#include "device/driver.h"
#include "device/graph.h"
#include "device/recorder.h"
#include "op/check.h"
#include "op_entries.h"
#include "optim/optim.h"
#include "tensor/generator.h"

enum { NUMBERS = 512 }; /* most numbers that optimizers keep in a graph */

typedef struct graph {
  lm_graph *recorded;
  lm_device device;
  lm_draw start;           /* the generator's state at the capture */
  uint64_t blocks, next;   /* random blocks drawn by one replay; generator's offset after the last replay */
  lm_tensor *count, *step; /* int64 [1]: blocks drawn since the capture, and a replay's increment */
  lm_tensor *numbers;      /* float64 [NUMBERS]: numbers that optimizers keep from replay to replay */
  double first[NUMBERS];   /* their values before the first replay */
} graph;

static void release_graph(graph *g) {
  if (g->recorded) lm_graph_free(g->recorded);
  lm_release(g->count);
  lm_release(g->step);
  lm_release(g->numbers);
  g->recorded = NULL;
  g->count = g->step = g->numbers = NULL;
}

static void close_graph(void *object) { release_graph(object); }
static const lm_object_type graph_type = {"luminary.graph", sizeof(graph), close_graph, "a captured graph", NULL, NULL};

/* Copies n `numbers` of x's dtype to x, on the device, from element `at` on. */
static lm_status put_numbers(lm_tensor *x, int64_t at, int64_t n, const void *numbers) {
  lm_status status;
  lm_tensor *host = NULL, *there = NULL;
  TRY(lm_tensor_empty(x->dtype, LM_DEVICE(LM_CPU, 0), 1, &n, LM_CONTIGUOUS, &host));
  memcpy(host->data, numbers, (size_t)n * lm_dtype_size(x->dtype));
  TRY(lm_tensor_view(x, 1, &n, &(int64_t){1}, at, &there));
  TRY(lm_copy(host, there));
done:
  lm_release(there);
  lm_release(host);
  return status;
}

/* Begins the capture. lm_graph_begin first waits for the device, so captured kernels need not wait for earlier work. */
static lm_status begin_capture(graph *g, lm_stream *s) {
  if (lm_graph_capturing()) NEED(lm_fail(LM_E_STATE, "graph: cannot capture during another capture of this thread"));
  const lm_driver *driver = lm_driver_of(g->device);
  if (!driver->capture_begin) NEED(lm_fail_missing("graph", lm_device_name(g->device)));
  NEED(lm_tensor_empty(LM_I64, g->device, 1, &(int64_t){1}, LM_CONTIGUOUS, &g->count));
  NEED(lm_tensor_empty(LM_I64, g->device, 1, &(int64_t){1}, LM_CONTIGUOUS, &g->step));
  NEED(lm_tensor_empty(LM_F64, g->device, 1, &(int64_t){NUMBERS}, LM_CONTIGUOUS, &g->numbers));
  NEED(put_numbers(g->count, 0, 1, &(int64_t){0}));
  g->start = lm_generator_get(NULL, g->device);
  g->next = g->start.offset;
  lm_autocast_forget(); /* replays must cast weights again: copies cast before the capture go stale */
  NEED(lm_graph_begin(s, &g->recorded));
  lm_generator_set_extra((const uint64_t *)g->count->data);
  lm_optim_graph_numbers_set((double *)g->numbers->data, g->first, NUMBERS);
  return LM_OK;
}

/* Adds the graph's last node, which advances `count` after all kernels that read it, on whichever stream. Notes that
 * replays use `numbers`, which kernels know by its address alone. */
static lm_status count_on(graph *g) {
  lm_status status;
  lm_tensor *same = NULL;
  TRY(lm_graph_gather(g->recorded));
  TRY(lm_op_run_inplace(LM_OP_add, &(lm_add_args){.x = g->count, .other = g->step, .alpha = 1}, &same));
  TRY(lm_use_write(lm_tensor_used(g->numbers), lm_stream_current(g->device)));
done:
  lm_release(same);
  return status;
}

/* Ends the capture and restores the generator: no captured kernel has run, so the first replay draws its numbers. */
static lm_status end_capture(graph *g, bool keep) {
  lm_status status = LM_OK;
  lm_generator_set_extra(NULL);
  lm_optim_graph_numbers_set(NULL, NULL, 0);
  lm_autocast_forget();
  if (keep) status = count_on(g);
  lm_status ended = lm_graph_end(&g->recorded, keep && status == LM_OK);
  g->blocks = lm_generator_get(NULL, g->device).offset - g->start.offset;
  lm_generator_set(NULL, g->device, g->start);
  if (status == LM_OK) status = ended;
  if (status == LM_OK && keep) status = put_numbers(g->step, 0, 1, &(int64_t){(int64_t)g->blocks});
  if (status == LM_OK && keep) status = put_numbers(g->numbers, 0, NUMBERS, g->first);
  return status;
}

LM_FUNCTION(graph_capture) {
  lm_lua *s = LM_STATE(L);
  lm_stream *side = lm_need_stream(L, 1, "graph", "stream");
  lm_device device = side->device;
  lm_need_function(L, 3, "cuda.graph", "");
  lm_need(L, lm_leave());
  lua_gc(L, LUA_GCCOLLECT, 0);
  lua_gc(L, LUA_GCCOLLECT, 0);
  graph *g = lm_object_new(L, &graph_type);
  g->device = device;
  lua_insert(L, 3); /* moves the graph below f and its arguments */
  lm_need(L, begin_capture(g, side));

  /* The collector is off during the capture: memory that a finalizer frees would go to the graph's memory. */
  lm_stream *before = lm_stream_current(device);
  size_t step_at = s->step_at;
  s->step_at = SIZE_MAX;
  lua_gc(L, LUA_GCSTOP, 0);
  lm_stream_set_current(side);
  lm_follower *follower = lm_follower_swap(NULL); /* results that it owes are no part of the capture */
  int failed = lm_pcall(L, lua_gettop(L) - 4, LUA_MULTRET);
  lm_follower_swap(follower);
  lm_status status = end_capture(g, !failed);
  lm_stream_set_current(before);
  lua_gc(L, LUA_GCRESTART, 0);
  s->step_at = step_at;
  if (!failed && status == LM_OK) return lua_gettop(L) - 2;
  release_graph(g);
  return failed ? lua_error(L) : lm_raise(L, status);
}

LM_READER(graph *, graph) {
  graph *g = lm_to_object(L, i, &graph_type);
  if (!g || !g->recorded) lm_raise_arg(L, i, fn, "argument 1", "a captured graph");
  return g;
}

LM_FUNCTION_AS(graph_replay, "replay", (graph, g)) {
  lm_status status;
  lm_need(L, lm_settle());
  lm_stream *s = lm_stream_current(g->device);
  if (!s) return lm_raise(L, LM_E_DEVICE);
  if (g->blocks > 0) {
    lm_draw draw = lm_generator_take(NULL, g->device, g->blocks);
    if (draw.seed != g->start.seed)
      TRY(lm_fail(LM_E_STATE,
                  "replay: cannot draw random numbers after the seed of %s changed since the capture; seed before the "
                  "capture",
                  lm_device_name(g->device)));
    if (draw.offset != g->next) { /* other calls have drawn since the last replay */
      lm_tensor *by = NULL, *same = NULL;
      status = lm_tensor_number((double)draw.offset - (double)g->start.offset, &by);
      if (status == LM_OK) status = lm_op_run(LM_OP_fill_, &(lm_fill__args){.x = g->count, .value = by}, &same);
      lm_release(same);
      lm_release(by);
      if (status != LM_OK) goto done;
    }
    g->next = draw.offset + g->blocks;
  }
  lm_span span;
  const bool traced = lm_traces(LM_TRACE_CALLS);
  if (traced) lm_note_line(L, LM_STATE(L));
  if (traced) lm_span_begin(&span, LM_SPAN_OP, "graph replay", g->device);
  status = lm_graph_launch(g->recorded, s);
  if (traced) lm_span_end(&span);
  TRY(status);
  lm_autocast_forget(); /* a replay does not count as a write of its weights */
done:
  return lm_return(L, status, 0);
}

LM_FUNCTION(graph_set_numbers, (graph, g), (int, at), (any, list)) {
  int n;
  const double *numbers = lm_need_numbers(L, list, "graph_set_numbers", "numbers", &n);
  if (at < 0 || n < 1 || at + n > NUMBERS)
    return lm_raise(L,
                    lm_fail_int("graph_set_numbers", "at and numbers", lm_text("within %d numbers", NUMBERS), at + n));
  return lm_return(L, put_numbers(g->numbers, at, n, numbers), 0);
}

LM_FUNCTION(optim_numbers_at) { return lm_return_int(L, lm_optim_graph_numbers_at()); }

LM_FUNCTION(graph_is_capturing) { return lm_return_bool(L, lm_graph_capturing() != NULL); }
