/* Checks a call's arguments, makes its ticket, and makes dense copies of tensors that a backend cannot take as is. */
#include "distributed/group/call.h"

#include <stdio.h>
#include <string.h>

#include "base/interned.h"
#include "base/mem.h"
#include "base/message.h"
#include "distributed/group/enqueued_calls.h"
#include "op/op.h"
#include "op_entries.h"

static const char *const names[LM_COLLECTIVES] = {
    [LM_ALL_REDUCE] = "all_reduce",
    [LM_BROADCAST] = "broadcast",
    [LM_REDUCE] = "reduce",
    [LM_ALL_GATHER] = "all_gather",
    [LM_GATHER] = "gather",
    [LM_SCATTER] = "scatter",
    [LM_REDUCE_SCATTER] = "reduce_scatter",
    [LM_ALL_TO_ALL] = "all_to_all",
    [LM_BARRIER] = "barrier",
    [LM_SEND] = "send",
    [LM_RECV] = "recv",
    [LM_SETUP] = "setup",
};
static const char *const op_names[LM_REDUCE_OPS] = {"sum", "mean", "product", "min", "max", "band", "bor"};

const char *lm_collective_name(lm_collective c) { return (unsigned)c < LM_COLLECTIVES ? names[c] : "?"; }
const char *lm_reduce_op_name(lm_reduce_op op) { return (unsigned)op < LM_REDUCE_OPS ? op_names[op] : "?"; }

/* ---- the start of a call: its part, timeout and purpose */

static _Thread_local double next_timeout;    /* seconds; 0: the group's timeout */
static _Thread_local lm_ticket next_purpose; /* all zeros: none */

void lm_collective_timeout(double seconds) { next_timeout = seconds > 0 ? seconds : 0; }

void lm_collective_purpose(const char *what, uint64_t hash) {
  next_purpose.hash = hash;
  strncpy(next_purpose.what, what, sizeof next_purpose.what - 1);
}

lm_part *lm_part_for(lm_group_core *core, lm_device device) {
  if (device == LM_NO_DEVICE) return &core->part[0];
  for (int i = 0; i < core->nparts; i++)
    if (core->part[i].kinds >> LM_DEVICE_KIND(device) & 1) return &core->part[i];
  return NULL;
}

static bool table_has(const lm_group_table *t, lm_collective kind) {
  if (lm_kind_is_p2p(kind)) return t->post && (t->enqueues || (t->finish && t->forget));
  if (kind == LM_BARRIER && t->enqueues) kind = LM_ALL_REDUCE; /* make_barrier turns it into one */
  return t->collectives >> kind & 1;
}

lm_status lm_call_begin(lm_exchange *c, lm_group *g, const lm_group_call *call) {
  const lm_tensor *t = call->t ? call->t : call->nin > 0 ? call->in[0] : NULL;
  const char *name = lm_collective_name(call->kind);
  *c = (lm_exchange){.core = g->core,
                     .call = *call,
                     .timeout = next_timeout > 0 ? next_timeout : g->core->timeout,
                     .line = lm_script_line(),
                     .ticket = next_purpose};
  c->call.t = NULL;
  c->call.in = c->call.out = NULL;
  c->call.nin = c->call.nout = 0;
  next_timeout = 0;
  next_purpose = (lm_ticket){0};
  lm_status status = c->core->world ? lm_world_check(c->core->world) : LM_OK;
  for (int i = 0; i < c->core->nparts && status == LM_OK; i++) /* a failed part fails the group */
    if (c->core->part[i].issuer) status = lm_issuer_check(c->core->part[i].issuer);
  if (status != LM_OK) return lm_fail_in(status, name);
  c->part = lm_part_for(c->core, t ? t->device : LM_NO_DEVICE);
  if (!c->part)
    return lm_fail_device(name, "tensor", lm_text("on a device of the group's backend '%s'", c->core->backend),
                          lm_device_name(t->device));
  c->g = c->part->g;
  if (table_has(c->g->table, call->kind)) return LM_OK;
  return lm_fail_missing(name, lm_text("backend '%s'", c->g->table->name));
}

void lm_call_clear(lm_exchange *c) {
  lm_release(c->call.t);
  for (int i = 0; i < c->call.nin; i++) lm_release(c->call.in[i]);
  for (int i = 0; i < c->call.nout; i++) lm_release(c->call.out[i]);
  for (int i = 0; i < c->nwritten; i++) {
    lm_release(c->written[i].user);
    lm_release(c->written[i].dense);
  }
  lm_free((void *)c->call.in);
  lm_free((void *)c->call.out);
  lm_free(c->written);
  c->call.t = NULL;
  c->call.in = c->call.out = NULL;
  c->written = NULL;
  c->call.nin = c->call.nout = c->nwritten = 0;
}

/* ---- checks */

int lm_call_world_rank(const lm_exchange *c, int rank) { return c->core->g.ranks ? c->core->g.ranks[rank] : rank; }

lm_status lm_call_check_rank(const lm_exchange *c, int rank) {
  int size = c->core->g.size;
  if (rank >= 0 && rank < size) return LM_OK;
  return lm_fail_rank(names[c->call.kind], rank, size);
}

static bool reduces(lm_collective kind) {
  return kind == LM_ALL_REDUCE || kind == LM_REDUCE || kind == LM_REDUCE_SCATTER;
}

static bool call_takes(const lm_exchange *c, lm_device device) {
  return c->g->table->kinds >> LM_DEVICE_KIND(device) & 1;
}

lm_device lm_call_device(const lm_exchange *c, lm_device device) {
  if (call_takes(c, device)) return device;
  if (call_takes(c, LM_DEVICE(LM_CPU, 0))) return LM_DEVICE(LM_CPU, 0);
  return c->part->issuer ? lm_issuer_device(c->part->issuer) : LM_NO_DEVICE;
}

lm_status lm_call_check(const lm_exchange *c, const lm_tensor *t, bool write) {
  const char *name = names[c->call.kind];
  lm_dtype dtype = t->dtype;
  if (lm_call_device(c, t->device) == LM_NO_DEVICE)
    return lm_fail_device(name, "tensor", lm_text("on a device of backend '%s'", c->g->table->name),
                          lm_device_name(t->device));
  if (write && lm_overlaps_itself(t))
    return lm_remedy(
        lm_fail_value(name, "tensor", "without elements that share memory", lm_text("shape %s", lm_shape_of(t))),
        "pass x:clone(); parameters of init_empty_weights need values first");
  if (!reduces(c->call.kind)) return LM_OK;
  if ((unsigned)c->call.op >= LM_REDUCE_OPS)
    return lm_fail(LM_E_ARG, "%s: unknown reduction %d", name, (int)c->call.op);
  if (c->call.op == LM_REDUCE_MEAN && !lm_dtype_is_float(dtype))
    return lm_remedy(lm_fail_dtype(name, "tensor", "float for op = 'mean'", lm_dtype_name(dtype)),
                     "convert it with :float()");
  if ((c->call.op == LM_REDUCE_BAND || c->call.op == LM_REDUCE_BOR) && lm_dtype_is_float(dtype))
    return lm_remedy(lm_fail_dtype(name, "tensor", lm_text("integer or bool for op = '%s'", op_names[c->call.op]),
                                   lm_dtype_name(dtype)),
                     "convert it with :long()");
  if (c->call.scaled && !lm_dtype_is_float(dtype))
    return lm_remedy(lm_fail_dtype(name, "tensor", "float for scale", lm_dtype_name(dtype)),
                     "convert it with :float()");
  return LM_OK;
}

/* ---- dense copies: of strided tensors on their device; of tensors on a device that the backend does not take on the
 * CPU, or on the backend's device if it takes no CPU tensors */

static const char *call_end_of(const lm_tensor *t) {
  int64_t last = 0;
  for (int d = 0; d < t->ndim; d++) last += (t->size[d] - 1) * t->stride[d];
  return t->data + (last + 1) * (int64_t)lm_dtype_size(t->dtype);
}

static bool share_memory(const lm_tensor *a, const lm_tensor *b) {
  return a->numel > 0 && b->numel > 0 && LM_DEVICE_KIND(a->device) == LM_DEVICE_KIND(b->device) &&
         a->data < call_end_of(b) && b->data < call_end_of(a);
}

static lm_status call_copy(lm_tensor *from, lm_tensor *to) {
  LM_OWNED *written = NULL;
  return lm_op_run(LM_OP_copy_, &(lm_copy__args){.x = to, .src = from}, &written);
}

static lm_status dense_like(const lm_exchange *c, lm_tensor *t, bool keep, lm_tensor **out) {
  lm_device device = lm_call_device(c, t->device);
  LM_OWNED *dense = NULL;
  *out = NULL;
  NEED(lm_tensor_empty(t->dtype, device, t->ndim, t->size, LM_CONTIGUOUS, &dense));
  if (keep) NEED(call_copy(t, dense));
  *out = lm_tensor_take(&dense);
  return LM_OK;
}

/* Returns in *out a view of t's current memory, since lm_tensor_set_data may change t while the call waits. */
static lm_status as_given(lm_tensor *t, lm_tensor **out) {
  return lm_tensor_view(t, t->ndim, t->size, t->stride, 0, out);
}

lm_status lm_call_read(lm_exchange *c, lm_tensor *t, lm_tensor **dense) {
  bool as_it_is = lm_is_contiguous(t) && call_takes(c, t->device);
  bool in_place = c->call.kind == LM_ALL_GATHER && c->call.out[c->core->g.rank]->data == t->data;
  for (int i = 0; as_it_is && !in_place && i < c->nwritten; i++) as_it_is = !share_memory(t, c->written[i].user);
  return as_it_is ? as_given(t, dense) : dense_like(c, t, true, dense);
}

lm_status lm_call_write(lm_exchange *c, lm_tensor *t, bool keep, lm_tensor **dense) {
  lm_status status = LM_OK;
  lm_tensor *user = NULL, *stand_in = NULL;
  if (!c->written) { /* allocated for the most that a call can write */
    int most = c->call.nout > 0 ? c->call.nout : 1;
    c->written = lm_malloc((size_t)most * sizeof *c->written);
    if (!c->written) return LM_E_OOM;
  }
  TRY(as_given(t, &user));
  if (lm_is_contiguous(t) && call_takes(c, t->device)) {
    stand_in = lm_retain(user);
  } else {
    TRY(dense_like(c, t, keep, &stand_in));
    c->host = c->host || (c->part->issuer && stand_in->device != t->device);
  }
  c->written[c->nwritten++] = (lm_written){user, lm_retain(stand_in)};
  user = NULL;
done:
  lm_release(user);
  *dense = stand_in;
  return status;
}

lm_status lm_call_written(lm_exchange *c, lm_status status) {
  for (int i = 0; i < c->nwritten; i++) {
    lm_written *w = &c->written[i];
    if (w->user != w->dense && status == LM_OK) status = call_copy(w->dense, w->user);
    lm_bump(w->user, LM_BY_COLLECTIVE); /* versions grow also after a failure, which may have written a part */
  }
  return status;
}

/* ---- tickets */

/* Writes the name of a call with t (or NULL) and a rank of the world (-1: any): "reduce sum float32 [2] to rank 1". */
static void write_name(const lm_exchange *c, const lm_tensor *t, int rank, char *out, size_t capacity) {
  static const char *const toward[LM_COLLECTIVES] = {
      [LM_BROADCAST] = " from", [LM_SCATTER] = " from", [LM_RECV] = " from",
      [LM_REDUCE] = " to",      [LM_GATHER] = " to",    [LM_SEND] = " to",
  };
  const lm_group_call *call = &c->call;
  const char *way = toward[call->kind],
             *place = !way ? "" : lm_text(rank < 0 ? "%s any rank" : "%s rank %d", way, rank);
  const char *op = reduces(call->kind) ? lm_text(" %s", call->scaled ? "scaled" : op_names[call->op]) : "";
  const char *type = t ? lm_text(" %s", lm_dtype_name(t->dtype)) : "";
  const char *sizes = t && call->kind != LM_ALL_TO_ALL ? lm_text(" %s", lm_shape_of(t)) : "";
  const char *tag = call->tag != 0 ? lm_text(" tag %d", call->tag) : "";
  bool one_of_several = t && c->core->nparts > 1 && LM_DEVICE_KIND(t->device) != LM_CPU;
  const char *device = one_of_several ? lm_text(" on %s", lm_device_kind_name(LM_DEVICE_KIND(t->device))) : "";
  snprintf(out, capacity, "%s%s%s%s%s%s%s", names[call->kind], op, type, sizes, place, tag, device);
}

void lm_call_name(lm_exchange *c, const lm_tensor *t) {
  static _Thread_local struct {
    uint64_t key;
    char what[sizeof c->ticket.what];
  } recent[8], *named; /* names of recent calls, by their keys: a step repeats few calls */
  const lm_group_call *call = &c->call;
  lm_ticket *ticket = &c->ticket;
  bool p2p = lm_kind_is_p2p(call->kind);
  int rank = p2p ? call->peer : call->root;
  uint64_t hash = lm_hash_number(LM_NO_HASH ^ ticket->hash, p2p ? LM_SEND : call->kind); /* a send meets a receive */
  if (reduces(call->kind)) hash = lm_hash_number(hash, (uint64_t)call->op + 1);
  if (call->scaled) hash = lm_hash_number(hash, 1); /* not the scale, which may differ between ranks */
  if (t) hash = lm_hash_number(hash, (uint64_t)t->dtype);
  if (t && call->kind != LM_ALL_TO_ALL) { /* all_to_all's sizes may differ between ranks */
    hash = lm_hash_number(hash, t->ndim);
    for (int d = 0; d < t->ndim; d++) hash = lm_hash_number(hash, (uint64_t)t->size[d]);
  }
  if (t && c->core->nparts > 1) hash = lm_hash_number(hash, LM_DEVICE_KIND(t->device)); /* each kind has its own part */
  ticket->kind = call->kind;
  ticket->hash = lm_hash_number(hash, (uint64_t)call->root);

  rank = rank < 0 ? -1 : lm_call_world_rank(c, rank);
  uint64_t key = lm_hash_number(lm_hash_number(lm_hash_number(ticket->hash, call->kind), (uint64_t)rank), call->tag);
  if (!*ticket->what) { /* else lm_collective_purpose has set it */
    named = &recent[key % 8];
    if (key != named->key) write_name(c, t, rank, named->what, sizeof named->what);
    named->key = key;
    memcpy(ticket->what, named->what, sizeof named->what);
  }
  const char *where = lm_where();
  size_t n = strlen(where), most = sizeof ticket->where - 1;
  memcpy(ticket->where, n > most ? where + n - most : where, n > most ? most : n);
}

void lm_call_trace(lm_span *span, const lm_exchange *c, lm_device device) {
  lm_span_begin(span, LM_SPAN_COLLECTIVE, names[c->call.kind], device);
  if (c->call.t) span->bytes = (int64_t)lm_nbytes(c->call.t);
  for (int i = 0; !c->call.t && i < c->call.nin; i++) span->bytes += (int64_t)lm_nbytes(c->call.in[i]);
}

void lm_call_name_refused(lm_exchange *c, uint64_t refused) {
  lm_ticket *ticket = &c->ticket;
  size_t n = strlen(ticket->what);
  if (refused == 0) return;
  ticket->hash = lm_hash_number(ticket->hash, refused);
  snprintf(ticket->what + n, sizeof ticket->what - n, " (%llu refused before)", (unsigned long long)refused);
}
