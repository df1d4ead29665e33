/* Implements the backend "nccl": collectives of GPU tensors by NVIDIA's library, enqueued on the thread's current
 * stream. */
#include "distributed/nccl/nccl.h"

#include "base/message.h"
#include "device/driver.h"
#include "device/stream.h"

/* Returns the current stream, which a call enqueues on. */
static lm_status find_nccl_stream(lm_device device, cudaStream_t *out) {
  lm_stream *stream = lm_stream_current(device);
  if (!stream) return LM_E_DEVICE;
  lm_stream_touch(stream);
  *out = (cudaStream_t)stream->native;
  return LM_OK;
}

/* Sends and receives between ncclGroupStart and ncclGroupEnd, none of which waits for another. */
typedef struct unit {
  ncclComm_t comm;
  cudaStream_t stream;
  bool open;
  ncclResult_t result; /* the first error, after which nothing is added */
} unit;

static unit begin_unit(ncclComm_t comm, cudaStream_t stream) {
  ncclResult_t result = ncclGroupStart();
  return (unit){.comm = comm, .stream = stream, .open = result == ncclSuccess, .result = result};
}

static bool is_well(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

static void unit_add(unit *u, bool sending, void *data, size_t bytes, int peer) {
  if (!is_well(u->result)) return;
  u->result = sending ? ncclSend(data, bytes, ncclUint8, peer, u->comm, u->stream)
                      : ncclRecv(data, bytes, ncclUint8, peer, u->comm, u->stream);
}

static void unit_add_tensor(unit *u, bool sending, const lm_tensor *t, int peer) {
  if (t->numel > 0) unit_add(u, sending, t->data, lm_nbytes(t), peer);
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

/* ---- collectives */

/* Runs gather, scatter or all_to_all as sends and receives. */
static ncclResult_t run_unit(const lm_group *g, const lm_group_call *c, ncclComm_t comm, cudaStream_t stream) {
  unit u = begin_unit(comm, stream);
  if (c->kind == LM_GATHER) unit_add_tensor(&u, true, c->t, c->root);
  for (int r = 0; r < g->size; r++) {
    if (c->in) unit_add_tensor(&u, true, c->in[r], r);
    if (c->out) unit_add_tensor(&u, false, c->out[r], r);
  }
  if (c->kind == LM_SCATTER) unit_add_tensor(&u, false, c->t, c->root);
  return end_unit(&u);
}

static bool reduces(lm_collective kind) {
  return kind == LM_ALL_REDUCE || kind == LM_REDUCE || kind == LM_REDUCE_SCATTER;
}

/* Enqueues a call. Ones that only copy pass bytes, since NCCL has no type for some dtypes. */
static lm_status nccl_run(lm_group *g, const lm_group_call *c) {
  lm_status status = LM_OK;
  lm_nccl *s = g->state;
  lm_nccl_comm *comm;
  cudaStream_t stream;
  ncclDataType_t type = ncclUint8;
  ncclRedOp_t op = ncclSum;
  ncclResult_t result;
  bool gathers = c->kind == LM_ALL_GATHER;
  const char *who = lm_nccl_caller(g);
  lm_tensor *t = c->t ? c->t : c->in[0], *row = NULL;
  lm_tensor *const *list = gathers ? c->out : c->in;
  size_t bytes = lm_nbytes(t), n = bytes;
  if (reduces(c->kind)) {
    n = (size_t)t->numel;
    TRY(lm_nccl_type(who, t->dtype, &type));
    TRY(lm_nccl_op(who, c->op, t->dtype, &op));
  }
  if (gathers || c->kind == LM_REDUCE_SCATTER) TRY(row_for(g, list, &row));
  for (int r = 0; row && !gathers && r < g->size; r++)
    TRY(nccl_copy(t->device, row->data + (size_t)r * bytes, list[r]->data, bytes));
  TRY(find_nccl_stream(t->device, &stream));
  TRY(lm_nccl_whole(s, t->device, &comm));
  ncclComm_t handle = lm_nccl_handle(comm);
  lm_nccl_register_new(s, handle);
  TRY(lm_nccl_begin(s, s->g));
  char *all = row ? row->data : list ? list[0]->data : NULL;
  switch (c->kind) {
    case LM_ALL_REDUCE: result = ncclAllReduce(t->data, t->data, n, type, op, handle, stream); break;
    case LM_BROADCAST: result = ncclBroadcast(t->data, t->data, n, type, c->root, handle, stream); break;
    case LM_REDUCE: result = ncclReduce(t->data, t->data, n, type, op, c->root, handle, stream); break;
    case LM_ALL_GATHER: result = ncclAllGather(t->data, all, n, type, handle, stream); break;
    case LM_REDUCE_SCATTER: result = ncclReduceScatter(all, t->data, n, type, op, handle, stream); break;
    default: result = run_unit(g, c, handle, stream); break;
  }
  TRY(lm_nccl_end(s, comm, s->g, result));
  for (int r = 0; row && gathers && r < g->size; r++)
    TRY(nccl_copy(t->device, list[r]->data, row->data + (size_t)r * bytes, bytes));
done:
  lm_release(row);
  return status;
}

/* ---- send and receive */

/* Adds to a first exchange with a peer one byte each way in the same unit. NCCL sets up only the connections that a
 * unit needs and assumes that the peer sets up the same: if both begin by sending, each writes into the other's send
 * buffer. */
static void nccl_greet(unit *u, lm_nccl_comm *comm, int peer, const lm_tensor *bytes) {
  if (lm_nccl_has_met(comm, peer)) return;
  unit_add(u, true, bytes->data, 1, peer);
  unit_add(u, false, bytes->data + 1, 1, peer);
  lm_nccl_meet(comm, peer);
}

/* Enqueues the calls to and from `peer`, of rank `there` in comm, as one unit on the current stream; peer -1: all, comm
 * has all ranks. The greeting's bytes come from that stream's memory too, so later work may have them at once. */
static lm_status nccl_enqueue(lm_nccl *s, lm_nccl_comm *comm, int n, const lm_group_call *calls, int peer, int there) {
  cudaStream_t stream;
  lm_device device = calls[0].t->device;
  LM_OWNED *bytes = NULL;
  NEED(find_nccl_stream(device, &stream));
  for (int i = 0; i < n && !bytes; i++) {
    int with = calls[i].peer;
    if (peer < 0 ? !lm_nccl_has_met(comm, with) : with == peer && !lm_nccl_has_met(comm, there))
      NEED(lm_tensor_empty(LM_U8, device, 1, (int64_t[]){2}, LM_CONTIGUOUS, &bytes));
  }
  NEED(lm_nccl_begin(s, s->g));
  unit u = begin_unit(lm_nccl_handle(comm), stream);
  for (int i = 0; i < n; i++) {
    const lm_group_call *c = &calls[i];
    if (peer >= 0 && c->peer != peer) continue;
    int to = peer < 0 ? c->peer : there;
    nccl_greet(&u, comm, to, bytes);
    unit_add(&u, c->kind == LM_SEND, c->t->data, lm_nbytes(c->t), to);
  }
  return lm_nccl_end(s, comm, s->g, end_unit(&u));
}

static lm_status check_p2p(const lm_group_call *c) {
  if (c->peer < 0)
    return lm_fail(LM_E_ARG,
                   "recv: src is required: NCCL cannot receive from any rank; pass src, or use backend 'gloo'");
  if (c->tag == 0) return LM_OK;
  return lm_remedy(
      lm_fail_int(lm_collective_name(c->kind), "tag", "0 with NCCL, which matches calls by their order", c->tag),
      "leave out the tag on both ranks, or use backend 'gloo'");
}

/* Enqueues sends and receives. Without a communicator of all ranks, each pair of ranks has one, and the calls of each
 * peer are a unit. Units are in the order of peers, so that always at least one pair of ranks can proceed. */
static lm_status nccl_batch(lm_group *g, int n, const lm_group_call *calls) {
  lm_nccl *s = g->state;
  lm_nccl_comm *comm;
  int there;
  for (int i = 0; i < n; i++) NEED(check_p2p(&calls[i]));
  if (s->whole) {
    NEED(lm_nccl_whole(s, calls[0].t->device, &comm));
    return nccl_enqueue(s, comm, n, calls, -1, -1);
  }
  for (int peer = 0; peer < g->size; peer++) {
    bool wanted = false;
    for (int i = 0; i < n; i++) wanted = wanted || calls[i].peer == peer;
    if (!wanted) continue;
    NEED(lm_nccl_pair(s, calls[0].t->device, peer, &comm, &there));
    NEED(nccl_enqueue(s, comm, n, calls, peer, there));
  }
  return LM_OK;
}

static lm_status nccl_post(lm_group *g, bool sending, lm_tensor *t, int peer, int tag, lm_request **out) {
  *out = NULL;
  return nccl_batch(g, 1, &(lm_group_call){.kind = sending ? LM_SEND : LM_RECV, .t = t, .peer = peer, .tag = tag});
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

static lm_status nccl_split(lm_group *g, lm_group *parent, int color) {
  return parent->state ? lm_nccl_split(g, parent->state, color, (lm_nccl **)&g->state) : LM_OK;
}

static const lm_group_table table = {
    .abi = LM_GROUP_ABI,
    .name = "nccl",
    .kinds = 1u << LM_CUDA,
    .collectives = LM_EVERY_COLLECTIVE & ~(1u << LM_BARRIER),
    .enqueues = true,
    .open = nccl_open_group,
    .close = nccl_close_group,
    .run = nccl_run,
    .post = nccl_post,
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
