/* A rank of a communicator: its thread, and what that does for each call. */
#include "communicator.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <thread>

/* Never destroyed: threads are there until the process is gone. */
std::mutex &lm_nccl_lock = *new std::mutex;
std::condition_variable &lm_nccl_changed = *new std::condition_variable;
static std::map<int, lm_fake_gate_ref> &lm_nccl_launched = *new std::map<int, lm_fake_gate_ref>; /* last, by device */

typedef std::vector<char> bytes;

/* ---- one call ---- */

namespace {
struct work {
  ncclComm &comm;
  const lm_nccl_op &op;
  size_t part;   /* bytes of one rank's part */
  bytes in, out; /* this rank's input and output, on the host */
  std::vector<bytes> kept;
  /* Goes before each part of a collective: ranks at different ones hang, whatever their bytes. */
  typedef std::array<uint64_t, 3> tag;
  tag mine;
  std::vector<tag> theirs;
  std::vector<lm_mesh_traffic> traffic;

  work(ncclComm &comm, const lm_nccl_op &op)
      : comm(comm), op(op), part(op.count * lm_nccl_size_of(op.dtype)), traffic((size_t)comm.size) {
    mine = {(uint64_t)op.kind, (uint64_t)op.root, part};
    theirs.assign((size_t)comm.size, mine);
    for (auto &t : traffic) t.answered = op.kind == lm_nccl_op::SENDS;
  }

  bool gives() const { return op.kind != lm_nccl_op::BROADCAST || comm.rank == op.root; }
  bool takes() const {
    if (op.kind == lm_nccl_op::REDUCE) return comm.rank == op.root;
    /* A buffer that a root broadcasts in place stays as it is, and may be read meanwhile. */
    return op.kind != lm_nccl_op::BROADCAST || comm.rank != op.root || op.send != op.recv;
  }
  size_t parts_in() const { return op.kind == lm_nccl_op::REDUCE_SCATTER ? (size_t)comm.size : 1; }
  size_t parts_out() const { return op.kind == lm_nccl_op::ALL_GATHER ? (size_t)comm.size : 1; }

  void on_device(const char *name, const std::function<void()> &f) { lm_fake_at_gate(1u << comm.device, f, name); }

  void read() {
    if (op.kind == lm_nccl_op::SENDS) {
      for (auto &s : op.sends) kept.emplace_back(s.bytes);
    } else {
      if (gives()) in.resize(parts_in() * part);
      if (takes()) out.resize(parts_out() * part);
    }
    double scale = op.scale;
    on_device("a collective reading", [&] {
      for (size_t i = 0; i < op.sends.size(); i++) {
        if (op.sends[i].sending) memcpy(kept[i].data(), op.sends[i].data, op.sends[i].bytes);
      }
      if (!in.empty()) memcpy(in.data(), op.send, in.size());
      if (op.scaled && op.scale_on_device) scale = lm_nccl_read(op.dtype, op.scale_on_device);
      /* Results are not valid before the end: fills them with ones. */
      for (auto &s : op.sends) {
        if (!s.sending) memset(s.data, 0xff, s.bytes);
      }
      if (!out.empty()) memset(op.recv, 0xff, out.size());
    });
    if (op.scaled) lm_nccl_scale(op.dtype, in.data(), in.size() / lm_nccl_size_of(op.dtype), scale);
  }

  /* Returns the part of `in` that is for that rank. */
  char *for_rank(int r) { return in.data() + (op.kind == lm_nccl_op::REDUCE_SCATTER ? (size_t)r * part : 0); }

  void plan() {
    if (op.kind == lm_nccl_op::SENDS) {
      for (size_t i = 0; i < op.sends.size(); i++) {
        lm_mesh_traffic &t = traffic[(size_t)op.sends[i].peer];
        (op.sends[i].sending ? t.out : t.in).push_back({kept[i].data(), op.sends[i].bytes});
      }
      return;
    }
    bool rooted = op.kind == lm_nccl_op::BROADCAST || op.kind == lm_nccl_op::REDUCE;
    kept.assign((size_t)comm.size, bytes());
    for (int r = 0; r < comm.size; r++) {
      bool they_give = op.kind != lm_nccl_op::BROADCAST || r == op.root;
      bool they_take = op.kind != lm_nccl_op::REDUCE || r == op.root;
      if (rooted && r != op.root && comm.rank != op.root) continue;
      if (they_give && takes()) {
        kept[(size_t)r].resize(part);
        traffic[(size_t)r].in.push_back({(char *)&theirs[(size_t)r], sizeof(tag)});
        traffic[(size_t)r].in.push_back({kept[(size_t)r].data(), part});
      }
      if (they_take && gives() && (r != comm.rank || takes())) {
        traffic[(size_t)r].out.push_back({(char *)&mine, sizeof mine});
        traffic[(size_t)r].out.push_back({for_rank(r), part});
      }
    }
  }

  bool agreed() const { return std::count(theirs.begin(), theirs.end(), mine) == comm.size; }

  void compute() {
    if (op.kind == lm_nccl_op::SENDS || !takes()) return;
    if (op.kind == lm_nccl_op::BROADCAST) {
      out = kept[(size_t)op.root];
    } else if (op.kind == lm_nccl_op::ALL_GATHER) {
      for (size_t r = 0; r < kept.size(); r++) memcpy(out.data() + r * part, kept[r].data(), part);
    } else {
      out = kept[0];
      for (size_t r = 1; r < kept.size(); r++) {
        lm_nccl_combine(op.dtype, op.op, out.data(), kept[r].data(), op.count);
      }
      if (op.op == ncclAvg && !op.scaled) lm_nccl_divide(op.dtype, out.data(), op.count, comm.size);
    }
  }

  void write() {
    on_device("a collective writing", [&] {
      for (size_t i = 0; i < op.sends.size(); i++) {
        if (!op.sends[i].sending) memcpy(op.sends[i].data, kept[i].data(), op.sends[i].bytes);
      }
      if (!out.empty()) memcpy(op.recv, out.data(), out.size());
    });
  }
};
}  // namespace

static void fail(ncclComm &comm, ncclResult_t code) {
  lm_nccl_guard lock(lm_nccl_lock);
  if (comm.error == ncclSuccess) comm.error = code;
  lm_nccl_changed.notify_all();
}

/* Ways for sends are made when they are first needed, by both ranks and for one direction; if one of them makes another
 * than the other, NCCL passes each the wrong memory, or waits. */
static lm_mesh_end make_ways(ncclComm &comm, const lm_nccl_op &op, bool *fits) {
  struct ways {
    char out, in;
  };
  std::map<int, std::pair<ways, ways>> made; /* mine and theirs */
  std::vector<lm_mesh_traffic> traffic((size_t)comm.size);
  for (auto &s : op.sends) {
    if (s.peer == comm.rank || (s.sending ? comm.to : comm.from).count(s.peer)) continue;
    (s.sending ? made[s.peer].first.out : made[s.peer].first.in) = 1;
  }
  for (auto &one : made) {
    traffic[(size_t)one.first].out.push_back({(char *)&one.second.first, sizeof(ways)});
    traffic[(size_t)one.first].in.push_back({(char *)&one.second.second, sizeof(ways)});
  }
  lm_mesh_end end = lm_mesh_exchange(comm.mesh, traffic);
  for (auto &one : made) {
    ways mine = one.second.first, theirs = one.second.second;
    if (mine.out) comm.to.insert(one.first);
    if (mine.in) comm.from.insert(one.first);
    if (end != LM_MESH_DONE || (mine.out == theirs.in && mine.in == theirs.out)) continue;
    fprintf(stderr, "fake nccl: ranks %d and %d make ways to each other that do not fit\n", comm.rank, one.first);
    *fits = false;
  }
  return end;
}

static void run(ncclComm &comm, const lm_nccl_op &op) {
  for (auto &gate : op.gates) lm_fake_gate_reach(gate);
  if (comm.aborted) return;
  if (op.stuck) return lm_mesh_wait_for_abort(comm.mesh);
  work w(comm, op);
  w.read();
  w.plan();
  bool fits = true;
  lm_mesh_end end = op.sends.empty() ? LM_MESH_DONE : make_ways(comm, op, &fits);
  if (!fits) return lm_mesh_wait_for_abort(comm.mesh);
  if (end == LM_MESH_DONE) end = lm_mesh_exchange(comm.mesh, w.traffic);
  if (end != LM_MESH_DONE) {
    if (end == LM_MESH_FAILED) fail(comm, lm_nccl_error(ncclSystemError, "a socket failed"));
    if (end == LM_MESH_LOST && lm_nccl_settings().lost) {
      fail(comm, lm_nccl_error(ncclRemoteError, "a rank has closed its connection"));
    }
    return lm_mesh_wait_for_abort(comm.mesh);
  }
  if (!w.agreed()) return lm_mesh_wait_for_abort(comm.mesh);
  w.compute();
  w.write();
  { /* before anybody may know that it is done: nothing is outstanding then */
    lm_nccl_guard lock(lm_nccl_lock);
    for (auto &gate : op.gates) comm.open.erase(std::remove(comm.open.begin(), comm.open.end(), gate), comm.open.end());
  }
  for (auto &gate : op.gates) lm_fake_gate_pass(gate);
  for (auto &gate : op.gates) lm_fake_gate_follow(gate);
}

/* ---- the thread ---- */

/* Refuses two ranks on one card, as NCCL before 2.30 does. */
static ncclResult_t check_cards(const std::vector<lm_mesh_hello> &all) {
  for (auto &a : all) {
    for (auto &b : all) {
      if (a.rank >= b.rank || strcmp(a.card, b.card) != 0 || strcmp(a.host, b.host) != 0) continue;
      if (lm_nccl_settings().newer)
        return lm_nccl_error(ncclInvalidUsage, "Multiple Ranks are using the same GPU/Partition (rank %d and rank %d)",
                             a.rank, b.rank);
      return lm_nccl_error(ncclInvalidUsage, "Duplicate GPU detected : rank %d and rank %d both on CUDA device %s",
                           a.rank, b.rank, a.card);
    }
  }
  return ncclSuccess;
}

static ncclResult_t meet(ncclComm &comm, const std::string &name, lm_mesh_hello mine, bool split) {
  std::vector<lm_mesh_hello> all;
  lm_mesh_end end = lm_mesh_meet(comm.mesh, name, mine, all);
  if (end == LM_MESH_ABORTED) return lm_nccl_error(ncclSystemError, "aborted while it was made");
  if (end != LM_MESH_DONE) {
    return lm_nccl_error(ncclSystemError, "ranks do not fit together: rank %d of %d", mine.rank, mine.size);
  }
  if (!split) return check_cards(all);
  std::vector<int> members;
  for (auto &a : all) {
    if (a.color == mine.color && mine.color >= 0) members.push_back(a.rank);
  }
  std::stable_sort(members.begin(), members.end(),
                   [&](int a, int b) { return all[(size_t)a].key < all[(size_t)b].key; });
  lm_mesh_keep(comm.mesh, members);
  return ncclSuccess;
}

static void live(lm_nccl_comm comm, std::string name, lm_mesh_hello mine, bool split) {
  ncclResult_t code = meet(*comm, name, mine, split);
  lm_nccl_guard lock(lm_nccl_lock);
  comm->rank = comm->mesh.rank, comm->size = comm->mesh.size;
  comm->busy = false;
  if (code != ncclSuccess) comm->error = code;
  lm_nccl_changed.notify_all();
  for (;;) {
    while (!comm->aborted && !comm->closing && comm->queue.empty()) lm_nccl_changed.wait(lock);
    if (comm->aborted || comm->queue.empty()) break;
    lm_nccl_op op = std::move(comm->queue.front());
    comm->queue.pop_front();
    lock.unlock();
    run(*comm, op);
    lock.lock();
  }
  lm_mesh_close(comm->mesh);
  comm->ended = true;
  lm_nccl_changed.notify_all();
}

lm_nccl_comm lm_nccl_start(const std::string &name, int size, int rank, int device, bool blocking, bool split,
                           int color, int key) {
  lm_nccl_comm comm = std::make_shared<ncclComm>();
  comm->name = name, comm->rank = rank, comm->size = size, comm->device = device, comm->blocking = blocking;
  comm->one_thread_ranks = 1, comm->creator = 0, comm->splits = 0, comm->polls = lm_nccl_settings().polls;
  lm_nccl_threads();
  comm->dead = comm->closing = comm->ended = false, comm->busy = true, comm->error = ncclSuccess;
  lm_mesh_hello mine = {};
  mine.rank = rank, mine.size = size, mine.color = color, mine.key = key;
  snprintf(mine.card, sizeof mine.card, "%x", lm_fake_physical(device));
  const char *host = getenv("NCCL_HOSTID");
  snprintf(mine.host, sizeof mine.host, "%s", host ? host : "");
  comm->mesh.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (comm->mesh.wake < 0) return NULL;
  try {
    std::thread(live, comm, name, mine, split).detach();
  } catch (...) {
    lm_mesh_close(comm->mesh);
    return NULL;
  }
  lm_fake_count("communicator", 1);
  return comm;
}

/* Makes a launch wait, in its stream, until the device's last one has begun, of whatever communicator, with
 * NCCL_LAUNCH_ORDER_IMPLICIT=1. Returns a cudaError_t. */
static int keep_launch_order(int device, const lm_fake_stream &stream) {
  static const bool keeps = lm_fake_setting("NCCL_LAUNCH_ORDER_IMPLICIT", 0) == 1;
  lm_fake_gate_ref last = lm_nccl_launched[device];
  return keeps && last ? lm_fake_wait_push(stream, last->stream, last->place - 1) : 0;
}

ncclResult_t lm_nccl_enqueue(const lm_nccl_comm &comm, lm_nccl_op op) {
  op.stuck = lm_nccl_countdown(lm_nccl_settings().stuck);
  for (auto &stream : op.streams) {
    lm_fake_gate_ref gate;
    int code = keep_launch_order(comm->device, stream);
    if (code == 0) code = lm_fake_gate_push(stream, &gate);
    if (code != 0) {
      for (auto &pushed : op.gates) lm_fake_gate_pass(pushed);
      return lm_nccl_error(ncclUnhandledCudaError, "Cuda failure %d '%s'", code, cudaGetErrorString((cudaError_t)code));
    }
    op.gates.push_back(gate);
  }
  if (!op.gates.empty()) lm_nccl_launched[comm->device] = op.gates.back();
  comm->open.insert(comm->open.end(), op.gates.begin(), op.gates.end());
  comm->queue.push_back(std::move(op));
  lm_nccl_changed.notify_all();
  return ncclSuccess;
}

void lm_nccl_abort(const lm_nccl_comm &comm) {
  comm->aborted = true;
  comm->queue.clear();
  comm->asked = NULL;
  uint64_t one = 1;
  if (comm->mesh.wake >= 0 && write(comm->mesh.wake, &one, sizeof one) < 0) comm->error = ncclSystemError;
  for (auto &gate : comm->open) lm_fake_gate_pass(gate);
  comm->open.clear();
  if (comm->child) lm_nccl_abort(comm->child);
  lm_nccl_changed.notify_all();
}
