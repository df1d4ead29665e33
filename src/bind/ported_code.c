/* Warns of mistakes in code ported from PyTorch that raise no error: a dim of 1, which is PyTorch's 0 here, ids that
 * count from 0, and True, which is nil. Checks only if LM_PORT=1 or set_warnings("port") requests it. */
#include <stdatomic.h>
#include <stddef.h>

#include "base/log.h"
#include "bind/bind.h"
#include "device/graph.h"
#include "op_entries.h"

/* The name that a layer and its function share: "logsoftmax" for LogSoftmax and log_softmax. */
typedef struct common_name {
  char text[64];
} common_name;

static common_name common_name_of(const char *fn) {
  common_name name;
  int n = 0;
  for (const char *c = fn; *c && n < (int)sizeof name.text - 1; c++) {
    if (*c != '_') name.text[n++] = *c >= 'A' && *c <= 'Z' ? (char)(*c - 'A' + 'a') : *c;
  }
  name.text[n] = '\0';
  return name;
}

/* True once a dim was reported, or one that PyTorch would not have shows that the program counts from 1. */
static atomic_bool is_known;

static void warn_of_dim(lua_State *L, const char *fn, const char *arg) {
  const bool each = lm_is_porting_lines();
  if (atomic_exchange(&is_known, true) && !each) return; /* most dims of 1 are right */
  lm_warn("%s: %s 1 is the first dimension here (PyTorch's dim 0); PyTorch's %s=1 is 2%s", fn, arg, arg,
          each ? "" : "; LM_PORT=2 reports each such line");
  lm_show_warning_of(L, common_name_of(fn).text);
}

/* Notes that a warning was shown when a layer of that name was made. */
static void note_layer(lua_State *L, const char *fn) {
  lm_reg_get(L, &lm_reg_ported);
  lua_pushstring(L, common_name_of(fn).text);
  lua_pushboolean(L, 1);
  lua_rawset(L, -3);
  lua_pop(L, 1);
}

/* Returns whether a noted layer may have run the op: the call has no name, as layers[i](x) has none. */
static bool is_noted_layer(lua_State *L, const char *fn) {
  lua_Debug called;
  if (!lua_getstack(L, 0, &called) || !lua_getinfo(L, "n", &called) || called.name) return false;
  luaL_checkstack(L, 4, "layers");
  lm_reg_get(L, &lm_reg_ported);
  lua_pushstring(L, common_name_of(fn).text);
  lua_rawget(L, -2);
  bool noted = lua_toboolean(L, -1);
  lua_pop(L, 2);
  return noted;
}

/* A summary of the dim arguments that were given: the name of the first one that is 1, and whether one is the number of
 * dims, which is out of range in PyTorch, so that the script does count from 1. */
typedef struct dims_given {
  const char *first;
  bool last;
} dims_given;

static void check_ported_dim(dims_given *g, const lm_arg *a, int64_t dim, int ndim) {
  if (dim == 0 && !g->first) g->first = a->name;
  if (dim == ndim - 1) g->last = true;
}

static dims_given given_dims(const lm_op *op, const char *args, uint32_t given, int ndim) {
  dims_given g = {NULL, false};
  for (int i = 0; i < op->nargs; i++) {
    const lm_arg *a = &op->arg[i];
    if (!(given & 1u << i)) continue;
    if (a->kind == LM_ARG_DIM || a->kind == LM_ARG_DIM_OPT) {
      check_ported_dim(&g, a, *(const int64_t *)(const void *)(args + a->offset), ndim);
    } else if (a->kind == LM_ARG_DIMS_OPT) {
      const lm_ints *dims = (const void *)(args + a->offset);
      for (int k = 0; k < dims->n; k++) check_ported_dim(&g, a, dims->v[k], ndim);
    }
  }
  return g;
}

/* ---- ids */

/* A summary of a call's ids, or of all ids that a line of the script has passed. draws: the number of independent ones
 * (the pixels of a mask share few labels). mixed: a smaller id came after a larger one. */
typedef struct range {
  double least, most, count, draws;
  bool mixed;
} range;

static lm_status read_range(lm_tensor *ids, range *out) {
  lm_tensor *host;
  lm_to_copy_args a = {.x = ids, .dtype = LM_I64, .device = LM_DEVICE(LM_CPU, 0), .memory_format = LM_CONTIGUOUS};
  NEED(lm_op_run(LM_OP_to_copy, &a, &host));
  const int64_t *id = (const int64_t *)host->data, n = host->numel;
  const double draws = (double)(ids->ndim >= 3 ? ids->size[0] : n);
  *out = (range){INFINITY, -INFINITY, (double)n, draws, false};
  for (int64_t i = 0; i < n; i++) {
    out->least = fmin(out->least, (double)id[i]);
    out->most = fmax(out->most, (double)id[i]);
    if (ids->ndim == 1 && i > 0 && id[i] > 0 && id[i] < id[i - 1]) out->mixed = true;
  }
  lm_release(host);
  return LM_OK;
}

/* The ops that take ids: the offsets of their tensors of ids, and of the tensor whose size from dim 0 (rows) or 1
 * (classes) is the largest valid id. */
static const struct {
  lm_op_id id;
  size_t ids, limit;
  bool are_labels;
} id_ops[] = {
    {LM_OP_embedding, offsetof(lm_embedding_args, index), offsetof(lm_embedding_args, weight), false},
    {LM_OP_embedding_bag_sums, offsetof(lm_embedding_bag_sums_args, index),
     offsetof(lm_embedding_bag_sums_args, weight), false},
    {LM_OP_cross_entropy, offsetof(lm_cross_entropy_args, target), offsetof(lm_cross_entropy_args, x), true},
    {LM_OP_nll_loss, offsetof(lm_nll_loss_args, target), offsetof(lm_nll_loss_args, x), true},
};

/* Returns the ids of an op that takes ids; *size: their largest valid value. NULL for other ops and unreadable ids. */
static lm_tensor *ids_of(lm_op_id id, const void *args, int64_t *size) {
  lm_tensor *ids = NULL;
  for (size_t i = 0; i < sizeof id_ops / sizeof *id_ops; i++) {
    if (id_ops[i].id != id) continue;
    const lm_tensor *limit = LM_ARG_TENSOR(args, id_ops[i].limit);
    ids = LM_ARG_TENSOR(args, id_ops[i].ids);
    *size = limit->size[id_ops[i].are_labels && limit->ndim > 1];
  }
  if (id == LM_OP_one_hot) {
    const lm_one_hot_args *a = args;
    ids = a->x;
    *size = a->num_classes;
  }
  bool seen = ids && ids->numel > 0 && *size > 1 && !lm_dtype_is_float(ids->dtype) && !lm_graph_capturing();
  return seen ? ids : NULL;
}

/* Widens by r the range of the ids that the script's current line has passed to `fn`; returns the widened range. */
static range add_to_line(lua_State *L, const char *fn, range r) {
  int top = lua_gettop(L);
  luaL_checkstack(L, 8, "ids");
  lm_reg_get(L, &lm_reg_ported);
  lm_push_where(L);
  lua_pushstring(L, fn);
  lua_concat(L, 2);
  lua_pushvalue(L, -1);
  lua_rawget(L, top + 1);
  range *all = lua_touserdata(L, -1); /* kept alive by the table */
  if (!all) {
    lua_pop(L, 1);
    all = lua_newuserdata(L, sizeof *all);
    *all = (range){INFINITY, -INFINITY, 0, 0, false};
    lua_rawset(L, top + 1);
  }
  lua_settop(L, top);
  const double first = r.least > 0 ? r.least : r.most;
  *all = (range){fmin(all->least, r.least), fmax(all->most, r.most), all->count + r.count, all->draws + r.draws,
                 all->mixed || r.mixed || first < all->most};
  return *all;
}

/* Returns whether ids seem to count from 0. An id of 0 already raises elsewhere, except as an ignored label. So the
 * sign is that the last id, `size`, never comes, though size - 1 (PyTorch's last) or an ignored 0 does. For ids that
 * count from 1 that is chance: at most one line in 20 if all ids are equally frequent, given 4 * size draws or more,
 * or given size - 1 among size / 20 ids or fewer. */
static bool counts_from_0(range all, double size) {
  if (all.most >= size || all.most == all.least) return false;
  bool ends_so = all.most == size - 1;
  if (all.draws >= 4 * size) return ends_so || all.least == 0;
  return all.count <= size / 20 && ends_so;
}

static void warn_of_ids(lua_State *L, const char *fn, range r, double size, bool are_labels) {
  if (!are_labels && r.count > 1 && r.count == r.most - r.least + 1) return; /* consecutive positions */
  range all = add_to_line(L, fn, r);
  if (all.least < 0) all.least = 1;     /* -100 marks an ignored label */
  if (are_labels && !all.mixed) return; /* sorted by class: the last class may still come */
  if (!counts_from_0(all, size)) return;
  const char *ids = are_labels ? "labels" : "ids";
  lm_warn(
      "%s: of %.0f %s so far the smallest is %.0f, the largest %.0f, and none is %.0f, the %s: they seem to "
      "count from 0, as in PyTorch; %s count from 1 here, so add 1",
      fn, all.count, ids, all.least, all.most, size, are_labels ? "number of classes" : "size", ids);
  lm_show_warning_of(L, fn);
}

/* ---- checks after each call of an op */

void lm_check_ported(lua_State *L, lm_op_id id, const void *args, uint32_t given, const lm_tensor *out) {
  const lm_op *op = &lm_ops[id];
  const lm_tensor *x = op->arg[0].kind == LM_ARG_T ? LM_ARG_TENSOR(args, op->arg[0].offset) : NULL;
  const lm_tensor *t = x && id != LM_OP_unsqueeze ? x : out; /* out: for cat, stack, unsqueeze */
  int ndim = t ? t->ndim : 0;
  dims_given g = ndim >= 2 ? given_dims(op, args, given, ndim) : (dims_given){NULL, false};
  int64_t size = 0;
  range r;
  lm_tensor *ids = ids_of(id, args, &size);
  bool has_range = ids && read_range(ids, &r) == LM_OK;
  /* From here on Lua may collect, which may free the tensors. */
  if (op->kind == LM_COMP) lm_show_warning(L);
  if (g.last) atomic_store(&is_known, true);
  if (g.first && !g.last) {
    const lm_overload *o = lm_overloads; /* x:max(dim) is max_dim */
    while (o->name && o->number != id) o++;
    const char *fn = o->name ? o->name : op->name;
    const bool hidden = op->internal && !o->name;
    if (!hidden && lm_is_scripts_call(L, 0, fn, 0) && !is_noted_layer(L, fn)) warn_of_dim(L, fn, g.first);
  }
  const bool in_bags = id == LM_OP_embedding_bag_sums;
  if (id == LM_OP_one_hot && !lm_is_scripts_call(L, 0, op->name, 0)) return;
  if (has_range) {
    warn_of_ids(L, in_bags ? "embedding_bag" : op->name, r, (double)size, id != LM_OP_embedding && !in_bags);
  }
}

/* check_ported_dim(fn, arg, x, level [, called]): warns that argument arg of a Lua function was given as 1. x: its
 * first argument; no tensor: a layer is being made. level: the function's, as debug.getinfo counts from the caller.
 * called: the function that the script called, if that one called fn by a tail call. */
LM_FUNCTION(check_ported_dim) {
  if (!lm_is_porting()) return 0;
  const char *fn = lm_need_text(L, 1, "check_ported_dim", "fn"), *arg = lm_need_text(L, 2, fn, "arg");
  const lm_tensor *x = lm_to_tensor(L, LM_STATE(L), 3);
  if (!x ||
      (x->ndim >= 2 && lm_is_scripts_call(L, (int)lm_need_int(L, 4, fn, "level"), fn, lua_isfunction(L, 5) ? 5 : 0)))
    warn_of_dim(L, fn, arg);
  if (!x) note_layer(L, fn);
  return 0;
}
