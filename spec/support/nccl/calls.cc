/* NCCL's functions that are about communicators and groups of calls. */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "calls.h"

static const char ID_MAGIC[] = "fake-nccl-";

/* ---- knobs and errors ---- */

static std::atomic<long> *knob_of(lm_nccl_knobs &knobs, const std::string &name) {
  return name == "polls"     ? &knobs.polls
         : name == "async"   ? &knobs.async
         : name == "stuck"   ? &knobs.stuck
         : name == "lost"    ? &knobs.lost
         : name == "newer"   ? &knobs.newer
         : name == "connect" ? &knobs.connect
         : name == "eager"   ? &knobs.eager
         : name == "slots"   ? &knobs.slots
                             : NULL;
}

lm_nccl_knobs &lm_nccl_settings() {
  static lm_nccl_knobs *knobs = [] {
    lm_nccl_knobs *made = new lm_nccl_knobs;
    const char *text = getenv("LM_FAKE_NCCL");
    for (std::string rest = text ? text : ""; !rest.empty();) {
      size_t comma = rest.find(','), equal = rest.find('=');
      std::atomic<long> *knob = equal == std::string::npos ? NULL : knob_of(*made, rest.substr(0, equal));
      if (knob) {
        *knob = atol(rest.c_str() + equal + 1);
      } else {
        fprintf(stderr, "fake nccl: LM_FAKE_NCCL: what is \"%s\"?\n", rest.c_str());
      }
      rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
    }
    return made;
  }();
  return *knobs;
}

extern "C" int lm_fake_nccl(const char *name, long value) {
  std::atomic<long> *knob = knob_of(lm_nccl_settings(), name);
  if (knob) *knob = value;
  return knob ? 0 : -1;
}

bool lm_nccl_countdown(std::atomic<long> &knob) {
  for (long left = knob; left > 0;) {
    if (knob.compare_exchange_weak(left, left - 1)) return left == 1;
  }
  return false;
}

static std::mutex last_lock;
static std::string &last() {
  static std::string *text = new std::string;
  return *text;
}

ncclResult_t lm_nccl_error(ncclResult_t code, const char *format, ...) {
  char text[256];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  std::lock_guard<std::mutex> lock(last_lock);
  last() = text;
  return code;
}

ncclResult_t lm_nccl_begin(const char *name) {
  int code = lm_fake_enter(name);
  return code == 0 ? ncclSuccess : lm_nccl_error((ncclResult_t)code, "%s was made to fail", name);
}

/* ---- communicators by handle, and groups of calls ---- */

static std::map<ncclComm_t, lm_nccl_comm> &handles() {
  static auto *all = new std::map<ncclComm_t, lm_nccl_comm>;
  return *all;
}

thread_local lm_nccl_group lm_nccl_current;

ncclResult_t lm_nccl_group_fails(ncclResult_t code) {
  if (lm_nccl_current.depth > 0 && lm_nccl_current.error == ncclSuccess) lm_nccl_current.error = code;
  return code;
}

unsigned long lm_nccl_thread() { return (unsigned long)syscall(SYS_gettid); }

lm_nccl_comm lm_nccl_find(ncclComm_t handle, const char *name) {
  auto at = handles().find(handle);
  if (at != handles().end() && !at->second->dead) return at->second;
  if (handle) fprintf(stderr, "fake nccl: %s: this communicator is no more\n", name);
  lm_nccl_error(ncclInvalidArgument, "%s: no such communicator", name);
  return NULL;
}

static bool at_work(const ncclComm &comm) { return comm.busy || comm.asked || (comm.child && comm.child->busy); }

ncclResult_t lm_nccl_ready(const ncclComm &comm) {
  if (comm.error != ncclSuccess) return comm.error;
  if (at_work(comm)) {
    return lm_nccl_error(ncclInvalidArgument,
                         "Attempt to use communicator before the previous operation returned ncclSuccess");
  }
  return comm.closing ? lm_nccl_error(ncclInvalidArgument, "the communicator was finalized") : ncclSuccess;
}

void lm_nccl_threads() {
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, NULL, &blocked);
  if (!sigismember(&blocked, SIGINT) || !sigismember(&blocked, SIGTERM) || !sigismember(&blocked, SIGALRM))
    lm_fake_count("exposed", 1);
}

static ncclResult_t wait_until(lm_nccl_guard &lock, ncclComm &comm, const std::function<bool()> &done) {
  while (!done() && comm.error == ncclSuccess && !comm.aborted) lm_nccl_changed.wait(lock);
  if (comm.aborted) return lm_nccl_error(ncclSystemError, "aborted");
  return comm.error;
}

/* Runs `end` for a communicator: at once, when its group ends, or, if it does not block, when its state is
 * requested. */
static ncclResult_t finish(const lm_nccl_comm &comm, lm_nccl_guard &lock,
                           std::function<ncclResult_t(lm_nccl_guard &)> end) {
  if (lm_nccl_current.depth > 0) {
    lm_nccl_current.ends.push_back({comm, end});
    return ncclSuccess;
  }
  return comm->blocking ? end(lock) : ncclInProgress;
}

static ncclResult_t enqueue_all(const lm_nccl_comm &comm, const std::vector<lm_nccl_op> &ops) {
  for (auto &op : ops) {
    ncclResult_t code = lm_nccl_enqueue(comm, op);
    if (code != ncclSuccess) return code;
  }
  return ncclSuccess;
}

/* Ops of one communicator from one group: sends and receives become one. */
static void add_op(std::vector<lm_nccl_op> &ops, const lm_nccl_op &op) {
  for (auto &earlier : ops) {
    if (op.kind != lm_nccl_op::SENDS || earlier.kind != op.kind) continue;
    earlier.sends.push_back(op.sends[0]);
    auto &s = earlier.streams;
    if (std::find(s.begin(), s.end(), op.streams[0]) == s.end()) s.push_back(op.streams[0]);
    return;
  }
  ops.push_back(op);
}

ncclResult_t lm_nccl_launch(const lm_nccl_comm &comm, std::vector<lm_nccl_op> ops) {
  ncclResult_t code = lm_nccl_ready(*comm);
  if (code != ncclSuccess) return code;
  if (comm->blocking) return enqueue_all(comm, ops);
  lm_nccl_threads();
  comm->polls = lm_nccl_settings().polls;
  if (lm_nccl_settings().connect) lm_nccl_connect(comm, ops);
  comm->asked = [comm = comm.get(), ops = std::move(ops)] { return enqueue_all(handles()[comm], ops); };
  return ncclInProgress;
}

extern "C" {

LM_FAKE_API ncclResult_t ncclGroupStart(void) {
  ENTER();
  lm_nccl_current.depth++;
  return ncclSuccess;
}

LM_FAKE_API ncclResult_t ncclGroupEnd(void) {
  ncclResult_t failed = lm_nccl_begin(__func__);
  if (lm_nccl_current.depth == 0) return lm_nccl_error(ncclInvalidUsage, "ncclGroupEnd: not in a group call");
  if (lm_nccl_current.error == ncclSuccess) lm_nccl_current.error = failed;
  if (--lm_nccl_current.depth > 0) return failed;
  lm_nccl_group mine;
  std::swap(mine, lm_nccl_current);
  if (mine.error != ncclSuccess) {
    if (!mine.ops.empty()) cudaSetDevice(mine.ops.back().first->device); /* a failure leaves it anywhere */
    return mine.error;
  }
  lm_nccl_guard lock(lm_nccl_lock);
  std::vector<std::pair<lm_nccl_comm, std::vector<lm_nccl_op>>> by_comm;
  std::set<bool> kinds;
  for (auto &one : mine.ops) {
    auto at = std::find_if(by_comm.begin(), by_comm.end(), [&](auto &c) { return c.first == one.first; });
    if (at == by_comm.end()) at = by_comm.insert(at, {one.first, {}});
    add_op(at->second, one.second);
    kinds.insert(one.first->blocking);
  }
  for (auto &one : mine.ends) kinds.insert(one.first->blocking);
  if (kinds.size() > 1) return lm_nccl_error(ncclInvalidArgument, "blocking and non-blocking ones in one group");
  ncclResult_t result = ncclSuccess;
  for (auto &one : by_comm) {
    ncclResult_t code = one.first->dead ? ncclInvalidArgument : lm_nccl_launch(one.first, one.second);
    if (code != ncclSuccess && (result == ncclSuccess || result == ncclInProgress)) result = code;
  }
  for (auto &one : mine.ends) {
    ncclResult_t code = one.first->blocking ? one.second(lock) : ncclInProgress;
    if (code != ncclSuccess && (result == ncclSuccess || result == ncclInProgress)) result = code;
  }
  return result;
}

/* ---- what needs no communicator ---- */

LM_FAKE_API ncclResult_t ncclGetVersion(int *version) {
  ENTER();
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

LM_FAKE_API ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  ENTER();
  lm_nccl_threads(); /* the one at which ranks find each other */
  unsigned char random[16];
  if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) return ncclSystemError;
  memset(id, 0, sizeof *id);
  char *at = id->internal + sprintf(id->internal, "%s", ID_MAGIC);
  for (unsigned char byte : random) at += sprintf(at, "%02x", byte);
  return ncclSuccess;
}

LM_FAKE_API const char *ncclGetErrorString(ncclResult_t code) {
  switch ((int)code) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError: return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "unknown result code";
  }
}

LM_FAKE_API const char *ncclGetLastError(ncclComm_t) {
  static thread_local std::string text;
  std::lock_guard<std::mutex> lock(last_lock);
  text = last();
  return text.c_str();
}

/* ---- communicators ---- */

static ncclResult_t started(const lm_nccl_comm &comm) {
  if (!comm) return lm_nccl_error(ncclSystemError, "no thread, or no file descriptor, is left");
  handles()[comm.get()] = comm;
  return ncclSuccess;
}

/* Applies the environment, which is read once and stands above what a program has configured. */
static void override_blocking(bool *blocking) {
  static const long wanted = lm_fake_setting("NCCL_COMM_BLOCKING", NCCL_CONFIG_UNDEF_INT);
  if (wanted == 0 || wanted == 1) *blocking = wanted == 1;
}

static ncclResult_t config_blocking(const ncclConfig_t *config, bool otherwise, bool *blocking) {
  *blocking = otherwise;
  if (!config) return override_blocking(blocking), ncclSuccess;
  ncclConfig_t initial = NCCL_CONFIG_INITIALIZER;
  if (config->magic != initial.magic || config->size != initial.size) {
    return lm_nccl_error(ncclInvalidArgument, "the configuration was not made by NCCL_CONFIG_INITIALIZER");
  }
  if (config->blocking != NCCL_CONFIG_UNDEF_INT) *blocking = config->blocking != 0;
  return override_blocking(blocking), ncclSuccess;
}

/* Blocks until the rank has found the others; then it is gone if that went wrong. */
static ncclResult_t await_start(lm_nccl_guard &lock, const lm_nccl_comm &comm) {
  return wait_until(lock, *comm, [&] { return !comm->busy; });
}

/* Sets the thread back to the card that it was on, after a call that blocks; cudaSetDevice opens the card's memory. */
struct stay {
  int device = lm_fake_current();
  ~stay() { cudaSetDevice(device); }
};

static void bury(const lm_nccl_comm &comm) {
  if (comm->dead) return;
  comm->dead = true;
  lm_fake_count("communicator", -1);
  lm_fake_count("registration", -(long)comm->registered.size());
}

/* ---- registered memory ---- */

LM_FAKE_API ncclResult_t ncclMemAlloc(void **out, size_t bytes) {
  ENTER();
  return cudaMalloc(out, bytes) == cudaSuccess ? ncclSuccess : lm_nccl_error(ncclUnhandledCudaError, "out of memory");
}

LM_FAKE_API ncclResult_t ncclMemFree(void *p) {
  ENTER();
  lm_nccl_guard lock(lm_nccl_lock);
  for (auto &each : handles()) {
    for (auto &known : each.second->registered) {
      if (!each.second->dead && known.second.first == p) fprintf(stderr, "fake nccl: registered memory is freed\n");
    }
  }
  lock.unlock();
  return cudaFree(p) == cudaSuccess ? ncclSuccess : lm_nccl_error(ncclUnhandledCudaError, "no such memory");
}

LM_FAKE_API ncclResult_t ncclCommRegister(ncclComm_t handle, void *p, size_t bytes, void **out) {
  static long count;
  ENTER();
  lm_nccl_guard lock(lm_nccl_lock);
  lm_nccl_comm comm = lm_nccl_find(handle, __func__);
  ncclResult_t code = comm ? lm_nccl_ready(*comm) : ncclInvalidArgument;
  if (code != ncclSuccess) return code;
  lm_fake_place place = lm_fake_place_of(p);
  if (place.kind != lm_fake_place::DEVICE || place.device != comm->device ||
      place.base + place.bytes < (char *)p + bytes)
    return lm_nccl_error(ncclInvalidArgument, "ncclCommRegister: not the memory of this card");
  *out = (void *)++count;
  comm->registered[*out] = {(char *)p, bytes};
  lm_fake_count("registration", 1);
  return ncclSuccess;
}

LM_FAKE_API ncclResult_t ncclCommDeregister(ncclComm_t handle, void *known) {
  ENTER();
  lm_nccl_guard lock(lm_nccl_lock);
  lm_nccl_comm comm = lm_nccl_find(handle, __func__);
  ncclResult_t code = comm ? lm_nccl_ready(*comm) : ncclInvalidArgument;
  if (code != ncclSuccess) return code;
  if (comm->registered.erase(known) == 0)
    return lm_nccl_error(ncclInvalidUsage, "ncclCommDeregister: no such registration");
  lm_fake_count("registration", -1);
  return ncclSuccess;
}

/* ---- communicators, continued ---- */

LM_FAKE_API ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId id, int rank,
                                                ncclConfig_t *config) {
  ENTER();
  if (size < 1 || rank < 0 || rank >= size) {
    return lm_nccl_group_fails(lm_nccl_error(ncclInvalidArgument, "Invalid rank requested : %d/%d", rank, size));
  }
  if (strncmp(id.internal, ID_MAGIC, strlen(ID_MAGIC)) != 0) {
    return lm_nccl_group_fails(lm_nccl_error(ncclInvalidArgument, "the unique id is none"));
  }
  if (lm_fake_devices() == 0) return lm_nccl_group_fails(lm_nccl_error(ncclUnhandledCudaError, "no CUDA device"));
  bool blocking;
  ncclResult_t code = config_blocking(config, true, &blocking);
  if (code != ncclSuccess) return lm_nccl_group_fails(code);
  lm_nccl_guard lock(lm_nccl_lock);
  lm_nccl_comm comm =
      lm_nccl_start(id.internal + strlen(ID_MAGIC), size, rank, lm_fake_current(), blocking, false, 0, 0);
  code = started(comm);
  if (code != ncclSuccess) return lm_nccl_group_fails(code);
  *out = comm.get();
  return finish(comm, lock, [comm, out](lm_nccl_guard &held) {
    ncclResult_t end = await_start(held, comm);
    if (end != ncclSuccess) {
      if (!comm->dead) lm_nccl_abort(comm), bury(comm);
      *out = NULL;
    }
    return end;
  });
}

LM_FAKE_API ncclResult_t ncclCommInitRank(ncclComm_t *out, int size, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(out, size, id, rank, NULL);
}

LM_FAKE_API ncclResult_t ncclCommInitAll(ncclComm_t *out, int count, const int *devices) {
  ENTER();
  std::set<int> taken;
  for (int i = 0; i < count; i++) {
    int device = devices ? devices[i] : i;
    if (device < 0 || device >= lm_fake_devices()) {
      return lm_nccl_error(ncclUnhandledCudaError, "ncclCommInitAll: no device %d", device);
    }
    if (!taken.insert(device).second)
      return lm_nccl_error(ncclInvalidUsage, "ncclCommInitAll: device %d twice", device);
  }
  ncclUniqueId id;
  ncclResult_t code = ncclGetUniqueId(&id);
  if (code != ncclSuccess) return code;
  lm_nccl_guard lock(lm_nccl_lock);
  std::vector<lm_nccl_comm> made;
  bool blocking = true;
  override_blocking(&blocking);
  for (int i = 0; i < count && code == ncclSuccess; i++) {
    lm_nccl_comm comm =
        lm_nccl_start(id.internal + strlen(ID_MAGIC), count, i, devices ? devices[i] : i, blocking, false, 0, 0);
    code = started(comm);
    if (code != ncclSuccess) break;
    comm->one_thread_ranks = count, comm->creator = lm_nccl_thread();
    made.push_back(comm);
  }
  for (auto &comm : made) {
    if (code == ncclSuccess && blocking) code = await_start(lock, comm);
  }
  for (int i = 0; i < count; i++) out[i] = code == ncclSuccess ? made[(size_t)i].get() : NULL;
  if (code == ncclSuccess) return blocking ? ncclSuccess : ncclInProgress;
  for (auto &comm : made) lm_nccl_abort(comm), bury(comm);
  return code;
}

LM_FAKE_API ncclResult_t ncclCommSplit(ncclComm_t handle, int color, int key, ncclComm_t *out, ncclConfig_t *config) {
  ENTER();
  lm_nccl_guard lock(lm_nccl_lock);
  lm_nccl_comm parent = lm_nccl_find(handle, __func__);
  if (!parent) return lm_nccl_group_fails(ncclInvalidArgument);
  bool blocking;
  ncclResult_t code = lm_nccl_ready(*parent);
  if (code == ncclSuccess) code = config_blocking(config, parent->blocking, &blocking);
  if (code == ncclSuccess && color < NCCL_SPLIT_NOCOLOR) code = ncclInvalidArgument;
  if (code == ncclSuccess && !(parent->queue.empty() && parent->open.empty()))
    code = lm_nccl_error(ncclInvalidUsage, "ncclCommSplit: the communicator has outstanding operations");
  if (code != ncclSuccess) return lm_nccl_group_fails(code);
  /* The name's next split. */
  std::string name = parent->name + "." + std::to_string(++parent->splits);
  lm_nccl_comm child = lm_nccl_start(name, parent->size, parent->rank, parent->device, blocking, true, color, key);
  code = started(child);
  if (code != ncclSuccess) return lm_nccl_group_fails(code);
  child->name += "c" + std::to_string(color);
  *out = NULL;
  parent->child = child;
  parent->polls = lm_nccl_settings().polls;
  auto settle = [parent = parent.get(), child, color, out] {
    parent->child = NULL;
    ncclResult_t end = child->error;
    child->polls = 0;
    if (end == ncclSuccess && color >= 0) {
      *out = child.get();
    } else {
      lm_nccl_abort(child), bury(child);
    }
    return end;
  };
  if (!parent->blocking) parent->asked = settle;
  return finish(parent, lock, [parent, child, settle](lm_nccl_guard &held) {
    while (child->busy && !parent->aborted) lm_nccl_changed.wait(held);
    if (parent->aborted) return lm_nccl_error(ncclSystemError, "aborted");
    return settle();
  });
}

LM_FAKE_API ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t *out) {
  ENTER();
  lm_nccl_guard lock(lm_nccl_lock);
  lm_nccl_comm comm = lm_nccl_find(handle, __func__);
  if (!comm) return ncclInvalidArgument;
  if (lm_nccl_countdown(lm_nccl_settings().async)) {
    comm->error = lm_nccl_error(ncclRemoteError, "a network error was wanted");
  }
  *out = comm->error;
  if (comm->error != ncclSuccess) return ncclSuccess;
  bool working = comm->busy || (comm->child && comm->child->busy) || (comm->closing && !comm->ended);
  if (comm->polls > 0) {
    comm->polls--;
    *out = ncclInProgress;
  } else if (working) {
    *out = ncclInProgress;
  } else if (comm->asked) {
    auto asked = std::move(comm->asked);
    comm->asked = NULL;
    *out = comm->error = asked();
  }
  return ncclSuccess;
}

LM_FAKE_API ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  ENTER();
  lm_nccl_guard lock(lm_nccl_lock);
  lm_nccl_comm comm = lm_nccl_find(handle, __func__);
  if (!comm) return lm_nccl_group_fails(ncclInvalidArgument);
  ncclResult_t code = lm_nccl_ready(*comm);
  if (code != ncclSuccess) return lm_nccl_group_fails(code);
  if (!comm->registered.empty()) fprintf(stderr, "fake nccl: a communicator ends with memory registered\n");
  comm->closing = true;
  lm_nccl_threads();
  comm->polls = lm_nccl_settings().polls;
  lm_nccl_changed.notify_all();
  return finish(comm, lock,
                [comm](lm_nccl_guard &held) { return wait_until(held, *comm, [&] { return comm->ended; }); });
}

LM_FAKE_API ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  ncclResult_t code = lm_nccl_begin(__func__);
  if (!handle) return code; /* as NCCL */
  stay here;
  lm_nccl_guard lock(lm_nccl_lock);
  lm_nccl_comm comm = lm_nccl_find(handle, __func__);
  if (!comm) return ncclInvalidArgument;
  if (comm->error == ncclSuccess) wait_until(lock, *comm, [&] { return !comm->busy; });
  if (comm->error == ncclSuccess && comm->asked && !comm->child) comm->asked();
  comm->closing = true;
  lm_nccl_changed.notify_all();
  if (comm->error == ncclSuccess) wait_until(lock, *comm, [&] { return comm->ended; });
  if (!comm->ended) lm_nccl_abort(comm);
  bury(comm);
  return code;
}

LM_FAKE_API ncclResult_t ncclCommAbort(ncclComm_t handle) {
  ncclResult_t code = lm_nccl_begin(__func__);
  if (!handle) return code;
  stay here;
  lm_nccl_guard lock(lm_nccl_lock);
  lm_nccl_comm comm = lm_nccl_find(handle, __func__);
  if (!comm) return ncclInvalidArgument;
  if (comm->child) bury(comm->child);
  lm_nccl_abort(comm);
  bury(comm);
  return code;
}

#define COMM_FIELD(name, field)                                         \
  LM_FAKE_API ncclResult_t name(const ncclComm_t handle, int *out) {    \
    ENTER();                                                            \
    lm_nccl_guard lock(lm_nccl_lock);                                   \
    lm_nccl_comm comm = lm_nccl_find(handle, __func__);                 \
    if (!comm) return ncclInvalidArgument;                              \
    ncclResult_t code = comm->busy ? ncclInvalidArgument : ncclSuccess; \
    *out = comm->field;                                                 \
    return code;                                                        \
  }
COMM_FIELD(ncclCommCount, size)
COMM_FIELD(ncclCommUserRank, rank)
COMM_FIELD(ncclCommCuDevice, device)
#undef COMM_FIELD

}  // extern "C"
