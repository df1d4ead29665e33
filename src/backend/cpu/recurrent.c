/* Runs a recurrent layer in one direction, and its gradient. Threads take rows of the batch, which need not wait for
 * each other, or hidden units, step by step, if rows are few. Weights are packed once for all steps. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/matmul/panels.h"
#include "backend/cpu/isa/recurrent.h"
#include "backend/cpu/matmul/gemm.h"
#include "backend/cpu/memory.h"
#include "op_args_recurrent.h"

typedef struct sequence {
  const struct lm_recurrent_loops *loops;
  const struct lm_panel_loops *products;
  lm_dtype dtype;
  int64_t steps, rows, batch; /* rows: number of rows in all steps */
  int64_t hidden, width;      /* H; P, the width of h */
  int64_t gates, slots;       /* gates: G * H; slots: the width of work */
  int64_t each;               /* bytes of an element */
  int cell;
  bool reverse, packs; /* packs: true if weights are packed; a single step reads them in place */
  bool by_units;       /* true if threads divide hidden units, not rows */
  int parts;           /* parts of the rows or units, at most one for each thread */
  double work;
  int64_t *first; /* [steps + 1] the first row of each step */
} sequence;

static int64_t count_of(const sequence *s, int64_t t) {
  return t < 0 || t >= s->steps ? 0 : s->first[t + 1] - s->first[t];
}
static int64_t blocks_of(const sequence *s, int64_t units) { return lm_ceil_div(units, s->products->width); }
static char *seq_at(const lm_tensor *t, const sequence *s, int64_t element) { return t->data + element * s->each; }
/* Returns the bytes of a packed matrix [depth, n], rounded up to the next part's alignment. */
static size_t packed_bytes(const sequence *s, int64_t depth, int64_t n) {
  return (size_t)lm_round_up(depth * (blocks_of(s, n) * s->products->width) * s->each, 64);
}

static sequence sequence_of(const lm_tensor *weight, const lm_tensor *h0, const lm_tensor *work, const lm_tensor *sizes,
                            const lm_tensor *projection, int cell, bool reverse) {
  static const int slots[] = {[LM_RNN_TANH] = 1, [LM_RNN_RELU] = 1, [LM_GRU] = 4, [LM_LSTM] = 5};
  lm_dtype dtype = h0->dtype;
  int64_t batch = h0->size[0];
  sequence s = {
      .loops = lm_recurrent_loops_of(dtype),
      .products = lm_panel_loops_of(dtype),
      .dtype = dtype,
      .steps = sizes       ? sizes->size[0]
               : batch > 0 ? work->size[0] / batch
                           : 0,
      .rows = work->size[0],
      .batch = batch,
      .hidden = work->size[1] / slots[cell],
      .width = h0->size[1],
      .gates = weight->size[0],
      .slots = work->size[1],
      .each = (int64_t)lm_dtype_size(dtype),
      .cell = cell,
      .reverse = reverse,
  };
  s.packs = s.steps > 1 || projection;
  /* Nanoseconds; with few rows, reading the weights takes the time. */
  double step = (double)s.gates * (double)s.width / (dtype == LM_F64 ? 6 : 12), rows = (double)batch / 8;
  s.work = step * (rows > 1 ? rows : 1) * (double)s.steps + 20 * (double)s.rows * (double)s.gates;
  int threads = lm_threads_for(s.work);
  s.by_units = threads > 1 && batch < 8 * threads && !projection && step > 40000;
  s.parts = (int)lm_min(threads, s.by_units ? blocks_of(&s, s.hidden) : batch > 0 ? batch : 1);
  return s;
}

/* Sets the first row of each step; sizes: the rows of each, or NULL for all of the batch. */
static void set_rows(sequence *s, const lm_tensor *sizes, int64_t *first) {
  s->first = first;
  first[0] = 0;
  for (int64_t t = 0; t < s->steps; t++)
    first[t + 1] = first[t] + (sizes ? ((const int64_t *)sizes->data)[t] : s->batch);
}

/* A matrix [depth, gates * units] in panels of units. */
typedef struct packed_weights {
  char *panels;
  int64_t depth, gates, units;
} packed_weights;

/* A thread's part: rows of the batch, hidden units, and blocks of units. */
typedef struct part {
  int64_t row, row_end, unit, unit_end, block, block_end;
} part;

static part part_of(const sequence *s, int64_t index) {
  int64_t blocks = blocks_of(s, s->hidden);
  part p = {.row_end = s->batch, .block_end = blocks};
  if (s->by_units) {
    p.block = lm_part_begin(blocks, index, s->parts);
    p.block_end = lm_part_begin(blocks, index + 1, s->parts);
  } else {
    p.row = lm_part_begin(s->batch, index, s->parts);
    p.row_end = lm_part_begin(s->batch, index + 1, s->parts);
  }
  p.unit = lm_min(p.block * s->products->width, s->hidden);
  p.unit_end = lm_min(p.block_end * s->products->width, s->hidden);
  return p;
}

/* Returns one gate's panel for a block of units; the panels of all gates of a block are adjacent. */
static char *panel_of(const sequence *s, const packed_weights *w, int64_t block, int64_t gate) {
  return w->panels + (block * w->gates + gate) * w->depth * s->products->width * s->each;
}

/* A matrix to pack: its element (k, g * units + u) is k * depth_step + (g * units + u) * unit_step elements after the
 * first. */
typedef struct packing {
  const sequence *s;
  const packed_weights *w;
  const lm_tensor *from;
  int64_t depth_step, unit_step;
} packing;

static void pack_blocks(void *ctx, int64_t first, int64_t last) {
  const packing *j = ctx;
  const sequence *s = j->s;
  const packed_weights *w = j->w;
  int64_t width = s->products->width;
  for (int64_t b = first; b < last; b++) {
    for (int64_t g = 0; g < w->gates; g++) {
      s->products->pack(panel_of(s, w, b, g), seq_at(j->from, s, (g * w->units + b * width) * j->unit_step),
                        j->depth_step, j->unit_step, w->depth, lm_min(width, w->units - b * width));
    }
  }
}

static void pack_recurrent_weights(const sequence *s, const packed_weights *w, const lm_tensor *from,
                                   int64_t depth_step, int64_t unit_step) {
  packing job = {s, w, from, depth_step, unit_step};
  lm_parallel(blocks_of(s, w->units), s->work, 0, pack_blocks, &job);
}

/* Runs fn for the parts of a pass: once for all of its rounds, or, if parts of a round need all of the round before,
 * round by round. */
static void run_rounds(const sequence *s, int64_t rounds, lm_parallel_fn *fn, void *pass, int64_t *round) {
  for (*round = 0; *round < (s->by_units ? rounds : 1); ++*round) lm_parallel(s->parts, s->work, 0, fn, pass);
}

/* Computes c [rows, gates * units] = a [rows, depth] w for blocks first .. last - 1 of units; `add`: adds it to c. */
static void multiply(const sequence *s, const packed_weights *w, int64_t first, int64_t last, const char *a,
                     int64_t a_row, int64_t rows, char *c, int64_t c_row, bool add) {
  int64_t width = s->products->width;
  for (int64_t b = first; b < last; b++) {
    for (int64_t g = 0; g < w->gates; g++) {
      s->products->product(&(lm_panel_product){.m = rows,
                                               .n = lm_min(width, w->units - b * width),
                                               .k = w->depth,
                                               .a = a,
                                               .a_row = a_row,
                                               .a_col = 1,
                                               .panels = panel_of(s, w, b, g),
                                               .panel_step = w->depth * width, /* to the next gate's or block's panel */
                                               .panel_row = width,
                                               .c = c + (g * w->units + b * width) * s->each,
                                               .c_row = c_row,
                                               .alpha = 1,
                                               .beta = add,
                                               .one_row = s->batch == 1});
    }
  }
}

/* Computes c [rows, n] = a [rows, k] b, or b transposed, for a single step, by all threads. */
static lm_status multiply_once(const sequence *s, const void *a, int64_t k, const lm_tensor *b, bool tb, void *c,
                               int64_t n, int64_t ldc, bool add) {
  const lm_cpu_gemm_job job = lm_cpu_gemm_job_of(s->dtype, s->rows, n, k, 1, lm_gemm_matrix_of(a, k, false),
                                                 lm_gemm_matrix_of(b->data, tb ? k : n, tb), add, c, ldc);
  return lm_cpu_gemm(&job);
}

/* Rows of one step whose states before it all come from the step before, or all from the initial state. */
typedef struct segment {
  int64_t begin, end; /* the segment's rows within the step */
  bool started;       /* true if their states come from the step before, from row `before` of it on */
  int64_t before;
} segment;

static int segments_of(const sequence *s, const part *p, int64_t t, segment *out) {
  int64_t from = s->reverse ? t + 1 : t - 1, there = count_of(s, from);
  int64_t begin = p->row, end = lm_min(p->row_end, count_of(s, t)), middle = lm_min(end, there);
  int n = 0;
  if (begin < middle) out[n++] = (segment){begin, middle, true, s->first[from]};
  if (begin < middle) begin = middle;
  if (begin < end) out[n++] = (segment){begin, end, false, 0};
  return n;
}

/* ---- forward */

typedef struct forward_pass {
  const sequence *s;
  int64_t round; /* current step, if threads divide hidden units */
  const lm_recurrent_layer_args *a;
  lm_tensor *y, *work;
  packed_weights weight, projection;
  char *unprojected; /* [batch, H] */
} forward_pass;

static void forward_step(const sequence *s, const part *p, const forward_pass *w, int64_t t) {
  const lm_recurrent_layer_args *a = w->a;
  segment list[2];
  int n = segments_of(s, p, t, list);
  for (int k = 0; k < n; k++) {
    const segment *g = &list[k];
    int64_t row = s->first[t] + g->begin, rows = g->end - g->begin, before = g->before + g->begin;
    const char *h = g->started ? seq_at(w->y, s, before * s->width) : seq_at(a->h0, s, g->begin * s->width);
    char *y = seq_at(w->y, s, row * s->width);
    lm_cell_rows c = {.rows = rows,
                      .first = p->unit,
                      .last = p->unit_end,
                      .hidden = s->hidden,
                      .gates = seq_at(a->gates, s, row * s->gates),
                      .work = seq_at(w->work, s, row * s->slots),
                      .bias = a->bias_hh ? a->bias_hh->data : NULL,
                      .state = h,
                      .out = a->weight_hr ? w->unprojected + g->begin * s->hidden * s->each : y,
                      .gates_row = s->gates,
                      .work_row = s->slots,
                      .state_row = s->width,
                      .out_row = s->hidden};
    if (s->cell == LM_LSTM) {
      c.state = g->started ? seq_at(w->work, s, before * s->slots + s->gates) : seq_at(a->c0, s, g->begin * s->hidden);
      c.state_row = g->started ? s->slots : s->hidden;
    }
    if (s->packs) { multiply(s, &w->weight, p->block, p->block_end, h, s->width, rows, c.work, s->slots, false); }
    s->loops->forward[s->cell](&c);
    if (a->weight_hr) {
      multiply(s, &w->projection, 0, blocks_of(s, s->width), c.out, s->hidden, rows, y, s->width, false);
    }
  }
}

static void forward_parts(void *ctx, int64_t first, int64_t last) {
  const forward_pass *w = ctx;
  const sequence *s = w->s;
  int64_t begin = s->by_units ? w->round : 0, end = s->by_units ? begin + 1 : s->steps;
  for (int64_t index = first; index < last; index++) {
    part p = part_of(s, index);
    for (int64_t i = begin; i < end; i++) forward_step(s, &p, w, s->reverse ? s->steps - 1 - i : i);
  }
}

/* Copies each sequence's last state of n elements: h from y, cells from work. */
static void copy_last(const sequence *s, const lm_tensor *from, int64_t from_row, int64_t offset, int64_t n,
                      lm_tensor *to) {
  for (int64_t t = 0; t < s->steps; t++) {
    int64_t goes_on = count_of(s, s->reverse ? t - 1 : t + 1);
    for (int64_t r = goes_on; r < count_of(s, t); r++) {
      memcpy(seq_at(to, s, r * n), seq_at(from, s, (s->first[t] + r) * from_row + offset), (size_t)(n * s->each));
    }
  }
}

lm_status lm_cpu_recurrent_layer(const lm_recurrent_layer_args *a, lm_tensor *const *out) {
  sequence s = sequence_of(a->weight_hh, a->h0, out[3], a->batch_sizes, a->weight_hr, a->cell, a->reverse);
  const bool projects = a->weight_hr != NULL;
  LM_WORKSPACE(int64_t, first, s.steps + 1);
  LM_WORKSPACE(char, weight, s.packs ? packed_bytes(&s, s.width, s.hidden) * (size_t)(s.gates / s.hidden) : 0);
  LM_WORKSPACE(char, projection, projects ? packed_bytes(&s, s.hidden, s.width) : 0);
  LM_WORKSPACE(char, unprojected, projects ? s.batch *s.hidden *s.each : 0);
  set_rows(&s, a->batch_sizes, first);
  forward_pass w = {.s = &s,
                    .a = a,
                    .y = out[0],
                    .work = out[3],
                    .weight = {weight, s.width, s.gates / s.hidden, s.hidden},
                    .projection = {projection, s.hidden, 1, s.width},
                    .unprojected = unprojected};
  if (s.packs)
    pack_recurrent_weights(&s, &w.weight, a->weight_hh, 1, s.width);
  else
    NEED(multiply_once(&s, a->h0->data, s.width, a->weight_hh, true, out[3]->data, s.gates, s.slots, false));
  if (projects) pack_recurrent_weights(&s, &w.projection, a->weight_hr, 1, s.hidden);
  run_rounds(&s, s.steps, forward_parts, &w, &w.round);
  copy_last(&s, out[0], s.width, 0, s.width, out[1]);
  if (s.cell == LM_LSTM) copy_last(&s, out[3], s.slots, s.gates, s.hidden, out[2]);
  return LM_OK;
}

/* ---- backward */

typedef struct backward_pass {
  const sequence *s;
  int64_t round; /* a round of hidden units: the state before one step, and the gates of the next */
  const lm_recurrent_layer_backward_args *a;
  lm_tensor *dgates, *dh, *dc, *dproducts, *before, *dprojected, *unprojected;
  packed_weights weight, projection;
  char *dout; /* [batch, H] gradient of h before the projection */
} backward_pass;

/* Sums dh of step t after the projection, kept for weight_hr's gradient, and computes dout from it. */
static void backward_projection(const sequence *s, const backward_pass *w, const segment *g, int64_t row) {
  const lm_tensor *grad = w->a->grad_y;
  int64_t rows = g->end - g->begin, n = rows * s->width;
  char *sum = seq_at(w->dprojected, s, row * s->width);
  memcpy(sum, seq_at(w->dh, s, g->begin * s->width), (size_t)(n * s->each));
  if (grad) {
    const char *more = seq_at(grad, s, row * s->width);
    for (int64_t i = 0; i < n; i++) {
      if (s->dtype == LM_F64)
        ((double *)sum)[i] += ((const double *)more)[i];
      else
        ((float *)sum)[i] += ((const float *)more)[i];
    }
  }
  multiply(s, &w->projection, 0, blocks_of(s, s->hidden), sum, s->width, rows, w->dout + g->begin * s->hidden * s->each,
           s->hidden, false);
}

static void backward_gates(const sequence *s, const part *p, const backward_pass *w, int64_t t) {
  const lm_recurrent_layer_backward_args *a = w->a;
  segment list[2];
  int n = segments_of(s, p, t, list);
  for (int k = 0; k < n; k++) {
    const segment *g = &list[k];
    int64_t row = s->first[t] + g->begin, before = g->before + g->begin;
    const char *h = g->started ? seq_at(a->y, s, before * s->width) : seq_at(a->h0, s, g->begin * s->width);
    if (p->block == 0) {
      memcpy(seq_at(w->before, s, row * s->width), h, (size_t)((g->end - g->begin) * s->width * s->each));
    }
    if (a->weight_hr) backward_projection(s, w, g, row);
    lm_cell_back c = {
        .rows = g->end - g->begin,
        .first = p->unit,
        .last = p->unit_end,
        .hidden = s->hidden,
        .work = seq_at(a->work, s, row * s->slots),
        .state = h,
        .grad = a->grad_y && !a->weight_hr ? seq_at(a->grad_y, s, row * s->width) : NULL,
        .carry = a->weight_hr ? w->dout + g->begin * s->hidden * s->each : seq_at(w->dh, s, g->begin * s->width),
        .cells = s->cell == LM_LSTM ? seq_at(w->dc, s, g->begin * s->hidden) : NULL,
        .dgates = seq_at(w->dgates, s, row * s->gates),
        .dproducts = s->cell == LM_GRU ? seq_at(w->dproducts, s, row * s->gates) : NULL,
        .out = a->weight_hr ? seq_at(w->unprojected, s, row * s->hidden) : NULL,
        .work_row = s->slots,
        .state_row = s->width,
        .grad_row = s->width,
        .carry_row = s->hidden,
        .dgates_row = s->gates,
        .out_row = s->hidden};
    if (s->cell == LM_LSTM) {
      c.state = g->started ? seq_at(a->work, s, before * s->slots + s->gates) : seq_at(a->c0, s, g->begin * s->hidden);
      c.state_row = g->started ? s->slots : s->hidden;
    }
    s->loops->backward[s->cell](&c);
  }
}

/* Computes dh before step t from the gradient of its products. */
static void backward_state(const sequence *s, const part *p, const backward_pass *w, int64_t t) {
  int64_t end = lm_min(p->row_end, count_of(s, t)), row = s->first[t] + p->row;
  if (p->row >= end) return;
  bool whole = s->width != s->hidden; /* a projection, whose rows threads divide */
  multiply(s, &w->weight, p->block, whole ? blocks_of(s, s->width) : p->block_end,
           seq_at(s->cell == LM_GRU ? w->dproducts : w->dgates, s, row * s->gates), s->gates, end - p->row,
           seq_at(w->dh, s, p->row * s->width), s->width, s->cell == LM_GRU);
}

static void backward_parts(void *ctx, int64_t first, int64_t last) {
  const backward_pass *w = ctx;
  const sequence *s = w->s;
  int64_t begin = s->by_units ? w->round : 0, end = s->by_units ? begin + 1 : s->steps + 1;
  for (int64_t index = first; index < last; index++) {
    part p = part_of(s, index);
    for (int64_t i = begin; i < end; i++) {
      int64_t t = s->reverse ? i : s->steps - 1 - i, later = s->reverse ? t - 1 : t + 1;
      if (i > 0 && s->packs) backward_state(s, &p, w, later);
      if (i < s->steps) backward_gates(s, &p, w, t);
    }
  }
}

/* Copies a gradient to `to`; fills `to` with zeros if grad is NULL. */
static void copy_or_clear(const lm_tensor *grad, lm_tensor *to) {
  if (grad)
    memcpy(to->data, grad->data, lm_nbytes(to));
  else
    memset(to->data, 0, lm_nbytes(to));
}

/* Writes to out: gradients of gates, h0, c0 (or [0]); of GRU's products, or of weight_hr's results (or [0]); h before
 * each row's step; and weight_hr's inputs (or [0]). */
lm_status lm_cpu_recurrent_layer_backward(const lm_recurrent_layer_backward_args *a, lm_tensor *const *out) {
  sequence s = sequence_of(a->weight_hh, a->h0, a->work, a->batch_sizes, a->weight_hr, a->cell, a->reverse);
  const bool projects = a->weight_hr != NULL;
  LM_WORKSPACE(int64_t, first, s.steps + 1);
  LM_WORKSPACE(char, weight, s.packs ? packed_bytes(&s, s.gates, s.width) : 0);
  LM_WORKSPACE(char, projection, projects ? packed_bytes(&s, s.width, s.hidden) : 0);
  LM_WORKSPACE(char, dout, projects ? s.batch *s.hidden *s.each : 0);
  set_rows(&s, a->batch_sizes, first);
  backward_pass w = {.s = &s,
                     .a = a,
                     .dgates = out[0],
                     .dh = out[1],
                     .dc = out[2],
                     .dproducts = out[3],
                     .dprojected = out[3],
                     .before = out[4],
                     .unprojected = out[5],
                     .weight = {weight, s.gates, 1, s.width},
                     .projection = {projection, s.width, 1, s.hidden},
                     .dout = dout};
  copy_or_clear(a->grad_h, out[1]);
  copy_or_clear(s.cell == LM_LSTM ? a->grad_c : NULL, out[2]);
  if (s.packs) pack_recurrent_weights(&s, &w.weight, a->weight_hh, s.width, 1);
  if (projects) pack_recurrent_weights(&s, &w.projection, a->weight_hr, s.hidden, 1);
  run_rounds(&s, s.steps + 1, backward_parts, &w, &w.round);
  if (s.packs || s.steps == 0) return LM_OK;
  const lm_tensor *d = s.cell == LM_GRU ? out[3] : out[0];
  return multiply_once(&s, d->data, s.gates, a->weight_hh, false, out[1]->data, s.width, s.width, s.cell == LM_GRU);
}
