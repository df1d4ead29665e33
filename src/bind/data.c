/* What loaders do per element. */
#include "data/gather.h"

#include "bind/bind.h"

/* ---- gather_rows(x, index, {dtype, scale, bias}), gather_row(x, number, {…}) */

typedef struct gathering {
  const char *fn;
  bool one;
  lm_tensor *rows;
  lm_dtype dtype;
  double scale, bias;
} gathering;

static lm_status gather(lua_State *L, lm_lua *s, void *arg) {
  gathering *v = arg;
  lm_tensor *x, *index;
  lm_status status;
  TRY(lm_read_tensor(L, s, 1, v->fn, "x", &x));
  if (v->one) {
    int64_t k;
    TRY(lm_read_int(L, s, 2, v->fn, "number", &k));
    return lm_row_gather(x, k, v->dtype, v->scale, v->bias, &v->rows);
  }
  TRY(lm_read_tensor(L, s, 2, v->fn, "index", &index));
  TRY(lm_rows_gather(x, index, v->dtype, v->scale, v->bias, &v->rows));
done:
  return status;
}

static int gathering_of(lua_State *L, const char *fn, bool one) {
  static const char *const options[] = {"dtype", "scale", "bias"};
  lm_lua *s = LM_STATE(L);
  gathering v = {.fn = fn, .one = one, .dtype = LM_NO_DTYPE, .scale = 1};
  lm_status status;
  lua_settop(L, 3);
  lm_pace(L, s);
  lm_box *box = lm_box_new(L); /* 4 */
  if (!lua_isnil(L, 3)) {
    TRY(lm_check_options(L, 3, fn, 3, options));
    if (lm_field(L, 3, "dtype")) TRY(lm_read_dtype(L, s, lua_gettop(L), fn, "dtype", &v.dtype));
    if (lm_field(L, 3, "scale")) TRY(lm_read_number(L, s, lua_gettop(L), fn, "scale", &v.scale));
    if (lm_field(L, 3, "bias")) TRY(lm_read_number(L, s, lua_gettop(L), fn, "bias", &v.bias));
    lua_settop(L, 4);
  }
  TRY(lm_attempt_twice(L, s, gather, &v));
  lm_box_fill(s, box, v.rows);
  lm_pace_count(s, v.rows);
  return 1;
done:
  return lm_raise(L, status);
}

static int bind_gather_rows(lua_State *L) { return gathering_of(L, "gather_rows", false); }
static int bind_gather_row(lua_State *L) { return gathering_of(L, "gather_row", true); }

/* ---- permutation(n, seed), draws(n, seed, count) */

typedef struct drawing {
  int64_t n, seed, count; /* count -1: an order of all n */
  lm_tensor *order;
} drawing;

static lm_status draw(lua_State *L, lm_lua *s, void *arg) {
  drawing *v = arg;
  (void)L, (void)s;
  if (v->count >= 0) return lm_draws(v->n, v->count, (uint64_t)v->seed, &v->order);
  return lm_permutation(v->n, (uint64_t)v->seed, &v->order);
}

static int drawing_of(lua_State *L, const char *fn, bool counted) {
  lm_lua *s = LM_STATE(L);
  drawing v = {.count = -1};
  lm_status status;
  lua_settop(L, 3);
  lm_pace(L, s);
  lm_box *box = lm_box_new(L);
  TRY(lm_read_int(L, s, 1, fn, "n", &v.n));
  TRY(lm_read_int(L, s, 2, fn, "seed", &v.seed));
  if (counted) TRY(lm_read_int(L, s, 3, fn, "count", &v.count));
  TRY(lm_attempt_twice(L, s, draw, &v));
  lm_box_fill(s, box, v.order);
  lm_pace_count(s, v.order);
  return 1;
done:
  return lm_raise(L, status);
}

static int bind_permutation(lua_State *L) { return drawing_of(L, "permutation", false); }
static int bind_draws(lua_State *L) { return drawing_of(L, "draws", true); }

const luaL_Reg lm_data_functions[] = {{"gather_rows", bind_gather_rows},
                                      {"gather_row", bind_gather_row},
                                      {"permutation", bind_permutation},
                                      {"draws", bind_draws},
                                      {NULL, NULL}};
