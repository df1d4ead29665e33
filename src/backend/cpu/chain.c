/* Runs elementwise ops as a chain: a tile passes through all of them before the next one starts. Intermediate values
 * stay in the cache, and results that nobody references are not written. A matrix product may come before the ops that
 * read it: they then run on each block of its result once that is complete, while it is in the cache.
 *
 * A chain's results share sizes and layout, so that an element has the same index in memory in all of them. Each value
 * of a tile is in its op's dtype, padded to whole vectors. It passes through the loops that the op runs alone, so the
 * bits are the same. */
#include "backend/cpu/chain.h"

#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/nontemporal_copy.h"
#include "backend/cpu/strided_tiles.h"
#include "base/mem.h"
#include "merged_dims.h"
#include "op_ids.h"

enum { LINKS = 24, SCALARS = 12 };

typedef enum way { FROM_LINK, SCALAR, LINEAR, STRIDED } way;

/* An input of a link: another link's result, or a tensor, which the chain retains. */
typedef struct operand {
  way way;
  int index;    /* index of the link, or of the scalar's tile */
  lm_tensor *t; /* NULL for a link's result */
  lm_dims dims; /* STRIDED: dims in the result's memory order; side 1 is t */
} operand;

typedef struct link {
  int kernel, nin;
  lm_dtype compute;
  const struct lm_pointwise_loops *loops;
  lm_tile_numbers numbers;
  operand in[LM_POINTWISE_MAX_IN];
  lm_tensor *out;
  bool wanted, used;  /* wanted: referenced outside the chain; used: wanted, or read by a used link */
  bool streams;       /* true if its result bypasses the caches */
  bool direct;        /* true if its values are computed in the result's own memory */
  int last_use, tile; /* last link that reads it; index of the tile with its values */
} link;

struct lm_chain {
  int n, nscalars;
  link link[LINKS];
  int tile; /* elements of a tile */
  int64_t numel;
  lm_tensor *made;         /* result of the product before the links; NULL: there is none */
  lm_product_args product; /* its tensors are retained */
  lm_chain_product *run_product;
  lm_status status; /* status of the product that ran last */
};

_Atomic int lm_chains;
static _Thread_local lm_chain *deferring;

lm_status lm_chain_new(lm_chain **out) {
  *out = lm_malloc(sizeof **out);
  if (!*out) return LM_E_OOM;
  (*out)->n = (*out)->nscalars = 0;
  (*out)->made = NULL;
  (*out)->status = LM_OK;
  return LM_OK;
}

void lm_chain_begin(lm_chain *c) {
  deferring = c;
  atomic_fetch_add_explicit(&lm_chains, 1, memory_order_relaxed);
}

static void run_chain(lm_chain *c);

void lm_chain_settle_here(void) {
  if (deferring) run_chain(deferring);
}

lm_status lm_chain_end(lm_chain *c) {
  run_chain(c);
  deferring = NULL;
  atomic_fetch_sub_explicit(&lm_chains, 1, memory_order_relaxed);
  const lm_status status = c->status;
  c->status = LM_OK;
  return status;
}

/* ---- deferring */

static bool has_layout_of(const lm_tensor *a, const lm_tensor *b) {
  if (a->ndim != b->ndim) return false;
  for (int d = 0; d < a->ndim; d++) {
    if (a->size[d] != b->size[d] || (a->size[d] != 1 && a->stride[d] != b->stride[d])) return false;
  }
  return true;
}

static int link_of(const lm_chain *c, const lm_tensor *t) {
  for (int i = c->n - 1; i >= 0; i--) {
    if (c->link[i].out->storage == t->storage) return i;
  }
  return -1;
}

static bool is_made(const lm_chain *c, const lm_tensor *t) { return c->made && c->made->storage == t->storage; }

static bool reads(const lm_chain *c, const lm_pointwise *job) {
  for (int i = 0; i < job->nin; i++) {
    if (link_of(c, job->in[i]) >= 0 || is_made(c, job->in[i])) return true;
  }
  return false;
}

/* Returns true if an operand's element is at the address of the result's element that is computed from it. */
static bool is_in_place(const operand *o, const lm_tensor *t, const lm_tensor *out) {
  return o->way == LINEAR && t->data == out->data && t->dtype == out->dtype;
}

static bool product_reads(const lm_chain *c, const lm_storage *s) {
  const lm_product_args *p = &c->product;
  return c->made && (p->x->storage == s || p->other->storage == s || (p->input && p->input->storage == s));
}

/* Returns true if what is deferred has to run before a job writes its result, which has the memory of a tensor that is
 * read. only_others: unless they read each element before the job writes it. */
static bool is_read(const lm_chain *c, const lm_tensor *out, bool only_others) {
  if (product_reads(c, out->storage) || link_of(c, out) >= 0) return true;
  if (is_made(c, out) && !(only_others && c->made->data == out->data)) return true;
  for (int i = 0; i < c->n; i++) {
    for (int k = 0; k < c->link[i].nin; k++) {
      const operand *o = &c->link[i].in[k];
      if (o->t && o->t->storage == out->storage && !(only_others && is_in_place(o, o->t, out))) return true;
    }
  }
  return false;
}

/* Plans how the tensor's elements reach a tile. Returns false if the op alone reads them better: if their order is not
 * the result's, or most of the work is a conversion between layouts. */
static bool plan_operand(const lm_chain *c, const lm_pointwise *job, int i, operand *o) {
  const lm_tensor *t = job->in[i], *out = job->out;
  const int64_t *stride[] = {out->stride, job->in_stride[i]};
  o->index = link_of(c, t);
  o->t = NULL;
  o->way = FROM_LINK;
  if (o->index >= 0)
    return has_layout_of(t, out) && t->data == c->link[o->index].out->data && t->storage != out->storage;
  lm_dims_set(&o->dims, out->ndim, out->size, NULL, 2, stride, true);
  int last = o->dims.ndim - 1;
  int64_t step = last < 0 ? 0 : o->dims.stride[1][last];
  o->way = last > 0 ? STRIDED : step == 0 ? SCALAR : step == 1 ? LINEAR : STRIDED;
  if (t->storage == out->storage && !is_in_place(o, t, out)) return false;
  if (is_made(c, t) && !(o->way == LINEAR && t->data == c->made->data)) return false;
  return step == 0 || step == 1;
}

static bool add_chain_link(lm_chain *c, const lm_pointwise *job, lm_dtype compute) {
  link *l = &c->link[c->n];
  int scalars = 0;
  l->loops = lm_pointwise_loops_of(compute);
  for (int i = 0; i < job->nin; i++) {
    if (!plan_operand(c, job, i, &l->in[i])) return false;
    scalars += l->in[i].way == SCALAR;
  }
  if (c->nscalars + scalars > SCALARS) return false;
  for (int i = 0; i < job->nin; i++) {
    operand *o = &l->in[i];
    if (o->way == SCALAR) o->index = c->nscalars++;
    if (o->way != FROM_LINK) o->t = lm_retain((lm_tensor *)job->in[i]);
  }
  l->kernel = job->kernel;
  l->nin = job->nin;
  l->compute = compute;
  l->numbers = lm_tile_numbers_of(compute, job->number);
  l->out = lm_retain(job->out);
  c->numel = job->out->numel;
  c->n++;
  return true;
}

bool lm_chain_put(const lm_pointwise *job, lm_dtype compute, bool may) {
  lm_chain *c = deferring;
  if (!c) return false;
  const lm_tensor *out = job->out;
  bool fits = may && out->numel > LM_TILE && lm_is_dense(out);
  if (is_read(c, out, fits)) run_chain(c);
  if (fits && c->n > 0 && (c->n == LINKS || !has_layout_of(out, c->link[0].out))) run_chain(c);
  if (fits && c->n == 0 && c->made && !(out->numel == c->made->numel && lm_is_contiguous(out))) run_chain(c);
  if (fits && add_chain_link(c, job, compute)) return true;
  if (!reads(c, job) && !is_read(c, out, false)) return false;
  run_chain(c);
  return fits && add_chain_link(c, job, compute);
}

bool lm_chain_put_product(const lm_product_args *p, lm_tensor *y, lm_chain_product *run) {
  lm_chain *c = deferring;
  if (!c || c->n > 0 || c->made || y->ndim != 2 || y->numel <= LM_TILE || (y->dtype != LM_F32 && y->dtype != LM_F64))
    return false;
  c->product = *p;
  c->run_product = run;
  lm_retain(p->x);
  lm_retain(p->other);
  if (p->input) lm_retain(p->input);
  c->made = lm_retain(y);
  return true;
}

/* ---- computing */

typedef struct tiles {
  _Alignas(64) char scalar[SCALARS][LM_TILE_BYTES];
  _Alignas(64) char in[LM_POINTWISE_MAX_IN][LM_TILE_BYTES]; /* converted operands */
  _Alignas(64) char out[LM_TILE_BYTES];                     /* a result before its conversion */
  _Alignas(64) char value[LINKS][LM_TILE_BYTES];
} tiles;

/* Finds the links that are used, and assigns each one a tile for its values until the last link that reads them. */
static void plan_links(lm_chain *c) {
  bool taken[LINKS] = {false};
  for (int i = c->n - 1; i >= 0; i--) {
    link *l = &c->link[i];
    l->wanted = atomic_load_explicit(&l->out->rc, memory_order_relaxed) > 1 ||
                atomic_load_explicit(&l->out->storage->rc, memory_order_relaxed) > 1;
    l->used = l->wanted;
    l->last_use = i;
    for (int j = i + 1; j < c->n; j++) {
      for (int k = 0; c->link[j].used && k < c->link[j].nin; k++) {
        if (c->link[j].in[k].way != FROM_LINK || c->link[j].in[k].index != i) continue;
        l->used = true;
        l->last_use = j;
      }
    }
  }
  for (int i = 0; i < c->n; i++) {
    int free = 0;
    for (int j = 0; j < i; j++) {
      if (c->link[j].used && c->link[j].last_use == i) taken[c->link[j].tile] = false;
    }
    while (taken[free]) free++;
    c->link[i].tile = free;
    taken[free] = c->link[i].used && c->link[i].last_use > i;
  }
}

/* Loads n elements from index `first` on of an operand that consists of several runs. */
static void load_runs(const link *l, const operand *o, int64_t first, int n, char *tile) {
  const lm_dims *dims = &o->dims;
  size_t bytes = lm_dtype_size(o->t->dtype), num = lm_dtype_size(l->compute);
  int64_t along = dims->size[dims->ndim - 1], step = dims->stride[1][dims->ndim - 1];
  for (int64_t run; n > 0; n -= (int)run, first += run, tile += (size_t)run * num) {
    run = along - first % along;
    if (run > n) run = n;
    const char *from = o->t->data + lm_dims_at(dims, 1, first) * (int64_t)bytes;
    l->loops->load[o->t->dtype](tile, from, step, (int)run);
  }
}

/* Returns the address of a link's n values from index `first` on. Kernels write whole vectors, for which a result's end
 * may lack room; conversions write exactly n elements. */
static char *values(const link *l, int64_t first, int n, tiles *b) {
  if (!l->direct || (n % LM_LANES && l->out->dtype == l->compute)) return b->value[l->tile];
  return l->out->data + first * (int64_t)lm_dtype_size(l->out->dtype);
}

static const void *load_operand(const lm_chain *c, const link *l, int k, int64_t first, int n, tiles *b) {
  const operand *o = &l->in[k];
  const link *from = o->way == FROM_LINK ? &c->link[o->index] : NULL;
  lm_dtype dtype = from ? from->out->dtype : o->t->dtype;
  size_t bytes = lm_dtype_size(dtype), num = lm_dtype_size(l->compute);
  if (o->way == SCALAR) return b->scalar[o->index];
  const char *at = from ? values(from, first, n, b) : o->t->data + first * (int64_t)bytes;
  bool whole = n % LM_LANES == 0 || (from && at == b->value[from->tile]);
  if (o->way != STRIDED && dtype == l->compute && whole) return at;
  if (o->way == STRIDED) {
    load_runs(l, o, first, n, b->in[k]);
  } else {
    l->loops->load[dtype](b->in[k], at, 1, n);
  }
  lm_tile_pad(b->in[k], n, num);
  return b->in[k];
}

static void run_link(const lm_chain *c, const link *l, int64_t first, int n, tiles *b) {
  const void *in[LM_POINTWISE_MAX_IN];
  lm_dtype dtype = l->out->dtype;
  size_t bytes = lm_dtype_size(dtype);
  char *value = values(l, first, n, b), *to = l->out->data + first * (int64_t)bytes;
  for (int k = 0; k < l->nin; k++) in[k] = load_operand(c, l, k, first, n, b);
  char *result = dtype == l->compute ? value : b->out;
  l->loops->kernel[lm_pointwise_row(l->kernel)](result, in, &l->numbers, lm_round_up(n, LM_LANES));
  if (result != value) {
    l->loops->store[dtype](value, 1, result, n);
    if (value != to) lm_tile_pad(value, n, bytes);
  }
  if (l->wanted && value != to) lm_nontemporal_copy_if_large(l->streams, to, value, (size_t)n * bytes);
}

static void load_scalars(const lm_chain *c, tiles *b) {
  for (int i = 0; i < c->n; i++) {
    for (int k = 0; k < c->link[i].nin; k++) {
      const link *l = &c->link[i];
      if (l->in[k].way == SCALAR) {
        l->loops->load[l->in[k].t->dtype](b->scalar[l->in[k].index], l->in[k].t->data, 0, c->tile);
      }
    }
  }
}

static void run_elements(const lm_chain *c, int64_t from, int64_t to, tiles *b) {
  for (int64_t first = from; first < to; first += c->tile) {
    int n = to - first < c->tile ? (int)(to - first) : c->tile;
    for (int i = 0; i < c->n; i++) {
      if (c->link[i].used) run_link(c, &c->link[i], first, n, b);
    }
  }
}

static void run_share(void *ctx, int64_t from, int64_t to) {
  const lm_chain *c = ctx;
  LM_LARGE(tiles, b, 1);
  load_scalars(c, b);
  run_elements(c, from * c->tile, lm_min(to * c->tile, c->numel), b);
  lm_nontemporal_fence();
}

/* Runs the links on a block of the product's result. */
static void run_block(const void *ctx, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  const lm_chain *c = ctx;
  const int64_t width = c->made->size[1], runs = columns == width ? 1 : rows;
  const int64_t length = columns == width ? rows * width : columns;
  LM_LARGE(tiles, b, 1);
  load_scalars(c, b);
  for (int64_t r = 0; r < runs; r++) {
    const int64_t from = (row + r) * width + column;
    run_elements(c, from, from + length, b);
  }
  lm_nontemporal_fence();
}

/* Returns true if nobody but the chain holds the product, which the header t, of a link, reads. */
static bool is_product_ours(const lm_chain *c, lm_tensor *t) {
  const int headers = t == c->made ? 1 : 2, holds = t == c->made ? 2 : 1;
  return atomic_load_explicit(&t->rc, memory_order_relaxed) == holds &&
         atomic_load_explicit(&c->made->rc, memory_order_relaxed) == holds &&
         atomic_load_explicit(&t->storage->rc, memory_order_relaxed) == headers;
}

/* Adds the product to the memory of the only link's result, if the link does no more; else returns false. */
static bool run_as_sum(lm_chain *c) {
  const link *l = &c->link[0];
  LM_OWNED *sum = NULL;
  bool finished = false;
  if (!c->made || c->n != 1 || l->kernel != LM_OP_add || c->product.input || l->out->dtype != c->made->dtype)
    return false;
  const int at = l->in[0].t && is_made(c, l->in[0].t) ? 0 : 1;
  const operand *product = &l->in[at], *other = &l->in[1 - at];
  if ((l->compute == LM_F32 ? l->numbers.f32[0] : l->numbers.f64[0]) != 1 || !is_made(c, product->t) ||
      other->t->storage != l->out->storage || !is_in_place(other, other->t, l->out) ||
      !is_product_ours(c, product->t) || lm_tensor_view(l->out, 2, c->made->size, c->made->stride, 0, &sum) != LM_OK)
    return false;
  lm_product_args args = c->product;
  args.input = sum;
  args.beta = 1;
  c->status = c->run_product(&args, sum, NULL, NULL, &finished);
  return finished || c->status != LM_OK;
}

/* Runs the product, and the links on its blocks; false if these remain to be run. */
static bool run_by_blocks(lm_chain *c, bool has_links) {
  bool finished = false;
  if (!c->made) return false;
  lm_chain *before = deferring;
  deferring = NULL;
  finished = has_links && run_as_sum(c);
  if (!finished) c->status = c->run_product(&c->product, c->made, has_links ? run_block : NULL, c, &finished);
  deferring = before;
  return finished || c->status != LM_OK;
}

static void release_product(lm_chain *c) {
  if (!c->made) return;
  lm_release(c->product.x);
  lm_release(c->product.other);
  lm_release(c->product.input);
  lm_release(lm_tensor_take(&c->made));
}

/* Returns true if a link writes over memory that is read, and in the caches then. */
static bool is_over_operand(const lm_chain *c, const link *l) {
  for (int k = 0; k < l->nin; k++) {
    if (l->in[k].t && l->in[k].t->storage == l->out->storage) return true;
  }
  return is_made(c, l->out);
}

static void run_chain(lm_chain *c) {
  if (c->n == 0 && !c->made) return;
  plan_links(c);
  int used = 0;
  size_t widest = 1;
  for (int i = 0; i < c->n; i++) {
    link *l = &c->link[i];
    used += l->used;
    l->streams = l->wanted && lm_use_nontemporal(lm_nbytes(l->out)) && !is_over_operand(c, l);
    l->direct = l->wanted && !l->streams;
    size_t value = lm_dtype_size(l->out->dtype), num = lm_dtype_size(l->compute), wider = value > num ? value : num;
    if (wider > widest) widest = wider;
  }
  c->tile = LM_TILE_BYTES / (int)widest;
  /* An op alone takes about 1 ns for an element from memory; from the cache it takes a fraction of that. */
  double work = (double)c->numel * (1 + used / 4.0);
  if (!run_by_blocks(c, used > 0) && used > 0) lm_parallel(lm_ceil_div(c->numel, c->tile), work, 0, run_share, c);
  for (int i = 0; i < c->n; i++) {
    for (int k = 0; k < c->link[i].nin; k++) lm_release(c->link[i].in[k].t);
    lm_release(c->link[i].out);
  }
  release_product(c);
  c->n = c->nscalars = 0;
}
