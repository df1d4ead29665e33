/* NCCL's functions that move data. */
#include "calls.h"

extern "C" {

/* ---- collectives ---- */

/* Returns whether n elements lie there, in this communicator's reach. */
static bool memory_fits(const ncclComm &comm, const void *p, size_t n, size_t unit) {
  lm_fake_place place = lm_fake_place_of(p);
  bool ours =
      place.kind == lm_fake_place::PINNED || (place.kind == lm_fake_place::DEVICE && place.device == comm.device);
  return ours && n * unit <= place.bytes - (size_t)((const char *)p - place.base);
}

static ncclResult_t check_op(const ncclComm &comm, lm_nccl_op &op) {
  size_t unit = lm_nccl_size_of(op.dtype);
  if (unit == 0) return lm_nccl_error(ncclInvalidArgument, "dtype %d", (int)op.dtype);
  if (op.root < 0 || op.root >= comm.size) return lm_nccl_error(ncclInvalidArgument, "root %d", op.root);
  bool reduces =
      op.kind == lm_nccl_op::ALL_REDUCE || op.kind == lm_nccl_op::REDUCE || op.kind == lm_nccl_op::REDUCE_SCATTER;
  if (reduces && op.op == ncclAvg && lm_nccl_is_float(op.dtype)) {
    op.scaled = true, op.scale = 1.0 / comm.size, op.op = ncclSum;
  } else if (reduces && (op.op < 0 || op.op >= ncclNumOps)) {
    return lm_nccl_error(ncclInvalidArgument, "reduction %d", (int)op.op);
  }
  for (auto &s : op.sends) {
    if (s.peer < 0 || s.peer >= comm.size) return lm_nccl_error(ncclInvalidArgument, "peer %d", s.peer);
    if (!memory_fits(comm, s.data, s.bytes, 1)) return lm_nccl_error(ncclInvalidArgument, "%p is no memory", s.data);
  }
  if (!op.sends.empty()) return ncclSuccess;
  bool gives = op.kind != lm_nccl_op::BROADCAST || comm.rank == op.root;
  bool takes = op.kind != lm_nccl_op::REDUCE || comm.rank == op.root;
  size_t in = op.count * (op.kind == lm_nccl_op::REDUCE_SCATTER ? (size_t)comm.size : 1);
  size_t out = op.count * (op.kind == lm_nccl_op::ALL_GATHER ? (size_t)comm.size : 1);
  if (gives && !memory_fits(comm, op.send, in, unit)) return lm_nccl_error(ncclInvalidArgument, "sendbuff");
  if (takes && !memory_fits(comm, op.recv, out, unit)) return lm_nccl_error(ncclInvalidArgument, "recvbuff");
  return ncclSuccess;
}

static ncclResult_t collective(ncclComm_t handle, cudaStream_t native, const char *name, lm_nccl_op op) {
  ncclResult_t code = lm_nccl_begin(name);
  if (code != ncclSuccess || lm_fake_null) return lm_nccl_group_fails(code);
  lm_nccl_guard lock(lm_nccl_lock);
  lm_nccl_comm comm = lm_nccl_find(handle, name);
  if (!comm) return lm_nccl_group_fails(ncclInvalidArgument);
  code = lm_nccl_ready(*comm);
  if (code == ncclSuccess && (op.count > 0 || !op.sends.empty())) code = check_op(*comm, op);
  if (code != ncclSuccess) return lm_nccl_group_fails(code);
  if (comm->one_thread_ranks > 1 && comm->creator == lm_nccl_thread() && lm_nccl_current.depth == 0) {
    return lm_nccl_error(ncclInvalidUsage, "%s: %d ranks of one thread outside of a group: NCCL would wait forever",
                         name, comm->one_thread_ranks);
  }
  lm_fake_stream stream;
  {
    lm_fake_guard state(lm_fake_state);
    stream = lm_fake_find_stream(native);
  }
  if (!stream || stream->device != comm->device) {
    return lm_nccl_group_fails(lm_nccl_error(ncclUnhandledCudaError, "Cuda failure 400 'invalid resource handle'"));
  }
  op.streams.push_back(stream);
  bool nothing = op.kind == lm_nccl_op::SENDS ? op.sends[0].bytes == 0 : op.count == 0;
  if (nothing) return ncclSuccess;
  if (lm_nccl_current.depth > 0) {
    lm_nccl_current.ops.push_back({comm, op});
    return ncclSuccess;
  }
  return lm_nccl_launch(comm, {op});
}

static lm_nccl_op make(decltype(lm_nccl_op::kind) kind, const void *send, void *recv, size_t count,
                       ncclDataType_t dtype, ncclRedOp_t reduction, int root) {
  lm_nccl_op op = {};
  op.kind = kind, op.send = send, op.recv = recv, op.count = count, op.dtype = dtype, op.op = reduction, op.root = root;
  return op;
}

LM_FAKE_API ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                                       ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, stream, __func__, make(lm_nccl_op::ALL_REDUCE, send, recv, count, dtype, op, 0));
}

LM_FAKE_API ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t dtype, int root,
                                       ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, stream, __func__, make(lm_nccl_op::BROADCAST, send, recv, count, dtype, ncclSum, root));
}

LM_FAKE_API ncclResult_t ncclReduce(const void *send, void *recv, size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                                    int root, ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, stream, __func__, make(lm_nccl_op::REDUCE, send, recv, count, dtype, op, root));
}

LM_FAKE_API ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t dtype,
                                       ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, stream, __func__, make(lm_nccl_op::ALL_GATHER, send, recv, count, dtype, ncclSum, 0));
}

LM_FAKE_API ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t dtype,
                                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, stream, __func__, make(lm_nccl_op::REDUCE_SCATTER, send, recv, count, dtype, op, 0));
}

static lm_nccl_op p2p(bool sending, void *data, size_t count, ncclDataType_t dtype, int peer) {
  lm_nccl_op op = make(lm_nccl_op::SENDS, NULL, NULL, 0, dtype, ncclSum, 0);
  op.sends.push_back({sending, data, count * lm_nccl_size_of(dtype), peer});
  return op;
}

LM_FAKE_API ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                                  cudaStream_t stream) {
  return collective(comm, stream, __func__, p2p(true, (void *)data, count, dtype, peer));
}

LM_FAKE_API ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                                  cudaStream_t stream) {
  return collective(comm, stream, __func__, p2p(false, data, count, dtype, peer));
}

}  // extern "C"
