/* Implements the backend "nccl": collectives of GPU tensors by NVIDIA's library, enqueued on the thread's current
 * stream. Calls that only copy use ncclUint8 for any dtype. */
#include "distributed/nccl/nccl.h"

#include <string.h>

#include "base/mem.h"
#include "base/message.h"
#include "device/driver.h"
#include "device/stream.h"

/* The state of one NCCL call. */
typedef struct call {
  lm_nccl *s;
  lm_nccl_comm *comm;
  cudaStream_t stream;
} call;

static lm_status nccl_stream_of(lm_device device, cudaStream_t *out) {
  lm_stream *stream = lm_stream_current(device);
  if (!stream) return LM_E_DEVICE;
  lm_stream_touch(stream);
  *out = (cudaStream_t)stream->native;
  return LM_OK;
}

static lm_status nccl_begin(lm_group *g, const lm_tensor *t, call *c) {
  c->s = g->state;
  NEED(nccl_stream_of(t->device, &c->stream));
  NEED(lm_nccl_whole(c->s, t->device, &c->comm));
  lm_nccl_register_new(c->s, lm_nccl_handle(c->comm));
  return lm_nccl_begin(c->s);
}

/* Sends and receives between ncclGroupStart and ncclGroupEnd, none of which waits for another. */
typedef struct unit {
  ncclComm_t comm;
  bool open;
  ncclResult_t result; /* the first error, after which nothing is added */
} unit;

static unit begin_unit(const lm_nccl_comm *comm) {
  ncclResult_t result = ncclGroupStart();
  return (unit){.comm = lm_nccl_handle(comm), .open = result == ncclSuccess, .result = result};
}

static bool is_well(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

static void add_send(unit *u, const void *data, size_t bytes, int peer, cudaStream_t stream) {
  if (is_well(u->result)) u->result = ncclSend(data, bytes, ncclUint8, peer, u->comm, stream);
}

static void add_recv(unit *u, void *data, size_t bytes, int peer, cudaStream_t stream) {
  if (is_well(u->result)) u->result = ncclRecv(data, bytes, ncclUint8, peer, u->comm, stream);
}

/* Ends the unit, also after an error, and returns its first error. */
static ncclResult_t end_unit(unit *u) {
  ncclResult_t ended = u->open ? ncclGroupEnd() : u->result;
  return is_well(u->result) ? ended : u->result;
}

/* ---- lists */

/* Returns in *out contiguous memory for a list that is not already contiguous in rank order, else NULL. All ranks must
 * call the same NCCL function, although only some may have contiguous lists. */
static lm_status row_for(const lm_group *g, lm_tensor *const *list, lm_tensor **out) {
  bool in_a_row = true;
  for (int r = 1; r < g->size; r++) in_a_row = in_a_row && list[r]->data == list[r - 1]->data + lm_nbytes(list[r - 1]);
  *out = NULL;
  if (in_a_row) return LM_OK;
  return lm_tensor_empty(list[0]->dtype, list[0]->device, 1, (int64_t[]){g->size * list[0]->numel}, LM_CONTIGUOUS, out);
}

/* Enqueues a copy on the current stream. */
static lm_status nccl_copy(lm_device device, void *to, const void *from, size_t bytes) {
  return lm_driver_of(device)->copy(lm_stream_current(device)->native, device, to, device, from, bytes, true);
}

/* ---- reductions */

static lm_status type_and_op(lm_group *g, const lm_tensor *t, lm_reduce_op op, ncclDataType_t *type, ncclRedOp_t *how) {
  const char *who = lm_nccl_caller(g);
  NEED(lm_nccl_type(who, t->dtype, type));
  return lm_nccl_op(who, op, t->dtype, how);
}

static lm_status nccl_all_reduce(lm_group *g, lm_tensor *t, lm_reduce_op op) {
  lm_status status;
  call c;
  ncclDataType_t type;
  ncclRedOp_t how;
  TRY(type_and_op(g, t, op, &type, &how));
  TRY(nccl_begin(g, t, &c));
  status = lm_nccl_end(c.s, c.comm,
                       ncclAllReduce(t->data, t->data, (size_t)t->numel, type, how, lm_nccl_handle(c.comm), c.stream));
done:
  return status;
}

typedef union scalar {
  uint16_t half;
  float f;
  double d;
} scalar;

static lm_status scalar_of(const char *who, lm_dtype dtype, double value, scalar *out) {
  switch (dtype) {
    case LM_F16: out->half = lm_float_to_half((float)value); return LM_OK;
    case LM_BF16: out->half = lm_float_to_bf16((float)value); return LM_OK;
    case LM_F32: out->f = (float)value; return LM_OK;
    case LM_F64: out->d = value; return LM_OK;
    default: return lm_fail_dtype(who, "tensor", "float for scale", lm_dtype_name(dtype));
  }
}

static lm_status nccl_all_reduce_scaled(lm_group *g, lm_tensor *t, double scale) {
  lm_status status;
  call c;
  ncclDataType_t type;
  ncclRedOp_t how;
  scalar factor;
  const char *who = lm_nccl_caller(g);
  TRY(lm_nccl_type(who, t->dtype, &type));
  TRY(scalar_of(who, t->dtype, scale, &factor));
  TRY(nccl_begin(g, t, &c));
  ncclResult_t result = ncclRedOpCreatePreMulSum(&how, &factor, type, ncclScalarHostImmediate, lm_nccl_handle(c.comm));
  bool made = result == ncclSuccess;
  if (made) result = ncclAllReduce(t->data, t->data, (size_t)t->numel, type, how, lm_nccl_handle(c.comm), c.stream);
  TRY(lm_nccl_end(c.s, c.comm, result));
  if (!made) goto done;
  TRY(lm_nccl_begin(c.s)); /* begins only now: a communicator in progress must not be used */
  status = lm_nccl_end(c.s, c.comm, ncclRedOpDestroy(how, lm_nccl_handle(c.comm)));
done:
  return status;
}

static lm_status nccl_reduce(lm_group *g, lm_tensor *t, int root, lm_reduce_op op) {
  lm_status status;
  call c;
  ncclDataType_t type;
  ncclRedOp_t how;
  TRY(type_and_op(g, t, op, &type, &how));
  TRY(nccl_begin(g, t, &c));
  status = lm_nccl_end(
      c.s, c.comm, ncclReduce(t->data, t->data, (size_t)t->numel, type, how, root, lm_nccl_handle(c.comm), c.stream));
done:
  return status;
}

static lm_status nccl_reduce_scatter(lm_group *g, lm_tensor *t, lm_tensor *const *in, lm_reduce_op op) {
  lm_status status;
  call c;
  ncclDataType_t type;
  ncclRedOp_t how;
  lm_tensor *row = NULL;
  size_t bytes = lm_nbytes(t);
  TRY(type_and_op(g, t, op, &type, &how));
  TRY(row_for(g, in, &row));
  for (int r = 0; row && r < g->size; r++) TRY(nccl_copy(t->device, row->data + (size_t)r * bytes, in[r]->data, bytes));
  TRY(nccl_begin(g, t, &c));
  status = lm_nccl_end(c.s, c.comm,
                       ncclReduceScatter(row ? row->data : in[0]->data, t->data, (size_t)t->numel, type, how,
                                         lm_nccl_handle(c.comm), c.stream));
done:
  lm_release(row);
  return status;
}

/* ---- copies */

static lm_status nccl_broadcast(lm_group *g, lm_tensor *t, int root) {
  lm_status status;
  call c;
  TRY(nccl_begin(g, t, &c));
  status = lm_nccl_end(
      c.s, c.comm, ncclBroadcast(t->data, t->data, lm_nbytes(t), ncclUint8, root, lm_nccl_handle(c.comm), c.stream));
done:
  return status;
}

static lm_status nccl_all_gather(lm_group *g, const lm_tensor *t, lm_tensor *const *out) {
  lm_status status;
  call c;
  lm_tensor *row = NULL;
  size_t bytes = lm_nbytes(t);
  TRY(row_for(g, out, &row));
  TRY(nccl_begin(g, t, &c));
  TRY(lm_nccl_end(
      c.s, c.comm,
      ncclAllGather(t->data, row ? row->data : out[0]->data, bytes, ncclUint8, lm_nccl_handle(c.comm), c.stream)));
  for (int r = 0; row && r < g->size; r++)
    TRY(nccl_copy(t->device, out[r]->data, row->data + (size_t)r * bytes, bytes));
done:
  lm_release(row);
  return status;
}

static void send_to(unit *u, const call *c, const lm_tensor *t, int peer) {
  add_send(u, t->data, lm_nbytes(t), peer, c->stream);
}

static void receive_from(unit *u, const call *c, lm_tensor *t, int peer) {
  add_recv(u, t->data, lm_nbytes(t), peer, c->stream);
}

static lm_status nccl_gather(lm_group *g, const lm_tensor *t, int root, lm_tensor *const *out) {
  lm_status status;
  call c;
  TRY(nccl_begin(g, t, &c));
  unit u = begin_unit(c.comm);
  send_to(&u, &c, t, root);
  for (int r = 0; out && r < g->size; r++) receive_from(&u, &c, out[r], r);
  status = lm_nccl_end(c.s, c.comm, end_unit(&u));
done:
  return status;
}

static lm_status nccl_scatter(lm_group *g, lm_tensor *t, int root, lm_tensor *const *in) {
  lm_status status;
  call c;
  TRY(nccl_begin(g, t, &c));
  unit u = begin_unit(c.comm);
  for (int r = 0; in && r < g->size; r++) send_to(&u, &c, in[r], r);
  receive_from(&u, &c, t, root);
  status = lm_nccl_end(c.s, c.comm, end_unit(&u));
done:
  return status;
}

static lm_status nccl_all_to_all(lm_group *g, lm_tensor *const *in, lm_tensor *const *out) {
  lm_status status;
  call c;
  TRY(nccl_begin(g, in[0], &c));
  unit u = begin_unit(c.comm);
  for (int r = 0; r < g->size; r++) {
    if (in[r]->numel > 0) send_to(&u, &c, in[r], r);
    if (out[r]->numel > 0) receive_from(&u, &c, out[r], r);
  }
  status = lm_nccl_end(c.s, c.comm, end_unit(&u));
done:
  return status;
}

/* ---- send and receive */

/* Adds to a first exchange with a peer one byte each way in the same unit. NCCL sets up only the connections that a
 * unit needs and assumes that the peer sets up the same: if both begin by sending, each writes into the other's send
 * buffer. */
static void nccl_greet(unit *u, lm_nccl_comm *comm, int peer, const lm_tensor *bytes, cudaStream_t stream) {
  if (lm_nccl_has_met(comm, peer)) return;
  add_send(u, bytes->data, 1, peer, stream);
  add_recv(u, bytes->data + 1, 1, peer, stream);
  lm_nccl_meet(comm, peer);
}

/* Enqueues the posts to and from `peer`, of rank `there` in comm, as one unit; peer -1: all, comm has all ranks. */
static lm_status nccl_enqueue(lm_nccl *s, lm_nccl_comm *comm, int n, const lm_nccl_post *posts, int peer, int there) {
  lm_status status;
  lm_tensor *bytes = NULL;
  for (int i = 0; i < n && !bytes; i++) {
    const lm_nccl_post *p = &posts[i];
    if (peer < 0 ? !lm_nccl_has_met(comm, p->peer) : p->peer == peer && !lm_nccl_has_met(comm, there))
      TRY(lm_tensor_empty(LM_U8, p->device, 1, (int64_t[]){2}, LM_CONTIGUOUS, &bytes));
  }
  TRY(lm_nccl_begin(s));
  unit u = begin_unit(comm);
  for (int i = 0; i < n; i++) {
    const lm_nccl_post *p = &posts[i];
    if (peer >= 0 && p->peer != peer) continue;
    int to = peer < 0 ? p->peer : there;
    nccl_greet(&u, comm, to, bytes, p->stream);
    if (p->sending)
      add_send(&u, p->data, p->bytes, to, p->stream);
    else
      add_recv(&u, p->data, p->bytes, to, p->stream);
  }
  status = lm_nccl_end(s, comm, end_unit(&u));
done:
  lm_release(bytes);
  return status;
}

/* Enqueues all posts. Without a communicator of all ranks, each pair of ranks has one, and the posts of each peer are a
 * unit. Units are in the order of peers, so that always at least one pair of ranks can proceed. */
static lm_status enqueue_all(lm_nccl *s, int n, const lm_nccl_post *posts) {
  lm_nccl_comm *comm;
  int there;
  if (n > 0 && s->whole) {
    NEED(lm_nccl_whole(s, posts[0].device, &comm));
    return nccl_enqueue(s, comm, n, posts, -1, -1);
  }
  for (int peer = 0; peer < s->g->size; peer++) {
    bool wanted = false;
    for (int i = 0; i < n; i++) wanted = wanted || posts[i].peer == peer;
    if (!wanted) continue;
    NEED(lm_nccl_pair(s, posts[0].device, peer, &comm, &there));
    NEED(nccl_enqueue(s, comm, n, posts, peer, there));
  }
  return LM_OK;
}

static lm_status nccl_keep(lm_nccl *s, const lm_nccl_post *p) {
  if (!lm_list_grow(&s->posts, &s->capacity, (size_t)s->nposts + 1, sizeof *s->posts)) return LM_E_OOM;
  s->posts[s->nposts++] = *p;
  return LM_OK;
}

static lm_status nccl_post(lm_group *g, bool sending, lm_tensor *t, int peer, int tag, lm_request **out) {
  lm_status status;
  lm_nccl *s = g->state;
  lm_nccl_post p = {.device = t->device, .sending = sending, .data = t->data, .bytes = lm_nbytes(t), .peer = peer};
  *out = NULL;
  if (peer < 0)
    return lm_fail(LM_E_ARG,
                   "recv: src is required: NCCL cannot receive from any rank; pass src, or use backend 'gloo'");
  if (tag != 0)
    return lm_remedy(
        lm_fail_int(sending ? "send" : "recv", "tag", "0 with NCCL, which matches calls by their order", tag),
        "leave out the tag on both ranks, or use backend 'gloo'");
  TRY(nccl_stream_of(t->device, &p.stream));
  status = s->batching ? nccl_keep(s, &p) : enqueue_all(s, 1, &p);
done:
  return status;
}

/* Collects posts here, not in an NCCL group, since NCCL keeps its open group for each thread. */
static lm_status nccl_batch(lm_group *g, bool begins) {
  lm_nccl *s = g->state;
  int n = s->nposts;
  s->batching = begins;
  s->nposts = 0;
  return begins ? LM_OK : enqueue_all(s, n, s->posts);
}

/* ---- opening and closing */

static lm_status nccl_open_group(lm_group *g) {
  if (g->state) return LM_OK; /* split off another group */
  if (lm_device_count(LM_CUDA) == 0)
    return lm_fail(LM_E_DEVICE,
                   "backend 'nccl' requires a GPU, and none is available (%s); use backend 'gloo', or "
                   "'cpu:gloo,cuda:nccl' for tensors on the CPU",
                   lm_device_why_none(LM_CUDA));
  return lm_nccl_new(g, (lm_nccl **)&g->state);
}

static void nccl_close_group(lm_group *g) {
  lm_nccl_close(g->state);
  g->state = NULL;
}

static lm_status health(lm_group *g) { return lm_nccl_health(g->state); }
static void abort_group(lm_group *g) { lm_nccl_abort(g->state); }

static lm_status nccl_split(lm_group *g, lm_group *parent) {
  return parent->state ? lm_nccl_split(g, parent->state, (lm_nccl **)&g->state) : LM_OK;
}

static const lm_group_table table = {
    .abi = LM_GROUP_ABI,
    .name = "nccl",
    .kinds = 1u << LM_CUDA,
    .enqueues = true,
    .open = nccl_open_group,
    .close = nccl_close_group,
    .all_reduce = nccl_all_reduce,
    .broadcast = nccl_broadcast,
    .reduce = nccl_reduce,
    .all_gather = nccl_all_gather,
    .gather = nccl_gather,
    .scatter = nccl_scatter,
    .reduce_scatter = nccl_reduce_scatter,
    .all_to_all = nccl_all_to_all,
    .post = nccl_post,
    .all_reduce_scaled = nccl_all_reduce_scaled,
    .batch = nccl_batch,
    .health = health,
    .abort = abort_group,
    .split = nccl_split,
    .memory = lm_nccl_memory,
    .across_devices = lm_nccl_across_devices,
    .version = lm_nccl_version,
};

LM_API lm_group_plugin_fn lm_group_plugin;
const lm_group_table *lm_group_plugin(void) { return &table; }
