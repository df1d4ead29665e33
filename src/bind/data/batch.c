/* Gathers rows and draws indices for data loaders. */
#include "data/gather_batch.h"

#include "bind/bind.h"

/* ---- gather_rows(x, index, {dtype, scale, bias}): rows of x by a 1-d int64 index from 1, converted;
 * gather_row(x, number, {…}) */

typedef struct gathering {
  const char *fn;
  bool one;
  lm_tensor *rows;
  lm_dtype dtype;
  double scale, bias;
} gathering;

static lm_status gather_batch(lua_State *L, lm_lua *s, void *arg) {
  gathering *v = arg;
  lm_tensor *x, *index;
  NEED(lm_read_tensor(L, s, 1, v->fn, "x", &x));
  lm_note_read(L, s, x, v->fn);
  NEED(LM_READ_OPTIONS(L, s, 3, v->fn, {"dtype", LM_ARG_DTYPE, &v->dtype}, {"scale", LM_ARG_F, &v->scale},
                       {"bias", LM_ARG_F, &v->bias}));
  if (v->one) {
    int64_t k;
    NEED(lm_read_int(L, s, 2, v->fn, "number", &k));
    return lm_row_gather(x, k, v->dtype, v->scale, v->bias, &v->rows);
  }
  NEED(lm_read_tensor(L, s, 2, v->fn, "index", &index));
  lm_note_read(L, s, index, v->fn);
  return lm_rows_gather(x, index, v->dtype, v->scale, v->bias, &v->rows);
}

static int gathering_of(lua_State *L, const char *fn, bool one) {
  gathering v = {.fn = fn, .one = one, .dtype = LM_NO_DTYPE, .scale = 1};
  return lm_return_tensors(L, 3, 1, gather_batch, &v, &v.rows);
}

LM_FUNCTION(gather_rows) { return gathering_of(L, "gather_rows", false); }
LM_FUNCTION(gather_row) { return gathering_of(L, "gather_row", true); }

/* ---- permutation(n, seed): 1 to n in an order that depends on seed alone; draws(n, seed, count): `count` numbers from
 * 1 to n, with replacement. int64 tensors */

static lm_status permute(lua_State *L, lm_lua *s, void *arg) {
  int64_t n, seed;
  NEED(LM_READ_ARGS(L, s, 1, "permutation", {"n", LM_ARG_I, &n}, {"seed", LM_ARG_I, &seed}));
  return lm_permutation(n, (uint64_t)seed, arg);
}

static lm_status draw_numbers(lua_State *L, lm_lua *s, void *arg) {
  int64_t n, seed, count;
  NEED(LM_READ_ARGS(L, s, 1, "draws", {"n", LM_ARG_I, &n}, {"seed", LM_ARG_I, &seed}, {"count", LM_ARG_I, &count}));
  return lm_draws(n, count, (uint64_t)seed, arg);
}

LM_FUNCTION(permutation) { return lm_return_tensor(L, 2, permute); }
LM_FUNCTION(draws) { return lm_return_tensor(L, 3, draw_numbers); }
