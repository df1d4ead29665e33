/* Creates, polls, splits and ends NCCL communicators.
 *
 * Ending one may take long, or forever if the network to its peers fails, so a separate thread does it. That thread and
 * the group own the communicator together. */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/environment_variable.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/message.h"
#include "base/thread.h"
#include "device/alloc.h"
#include "distributed/nccl/nccl.h"

static const double spin_time = 250e-6;  /* seconds of busy polling: NCCL usually launches in less */
static const double longest_rest = 1e-3; /* most seconds between two polls */
static const double quiet_time = 5;      /* seconds for enqueued calls to end by themselves when a group closes */
static const double shutdown_time = 10;  /* seconds that closing waits for a communicator's end */

struct lm_nccl_comm {
  _Atomic int rc; /* references: the group's, and the ending thread's */
  ncclComm_t handle;
  ncclComm_t child; /* result of a split, written by an NCCL thread */
  lm_device device;
  bool quietly; /* true if ending waits for enqueued calls */
  _Atomic bool ended;
  bool met[]; /* [its size] true for this rank and for ranks it has exchanged data with */
};

ncclComm_t lm_nccl_handle(const lm_nccl_comm *c) { return c->handle; }

bool lm_nccl_has_met(const lm_nccl_comm *c, int peer) { return c->met[peer]; }
void lm_nccl_meet(lm_nccl_comm *c, int peer) { c->met[peer] = true; }

static lm_nccl_comm *new_comm(lm_device device, int rank, int size) {
  lm_nccl_comm *c = lm_calloc(1, sizeof *c + (size_t)size * sizeof *c->met);
  if (!c) return NULL;
  atomic_init(&c->rc, 1);
  c->device = device;
  c->met[rank] = true;
  return c;
}

static void comm_release(lm_nccl_comm *c) {
  if (c && atomic_fetch_sub(&c->rc, 1) == 1) lm_free(c);
}

/* ---- ending one communicator */

/* Finalizes a communicator, waiting quiet_time at most; true if it may be destroyed, which does not block then. */
static bool comm_finalize(ncclComm_t handle) {
  ncclResult_t state = ncclCommFinalize(handle);
  double until = lm_seconds() + quiet_time;
  while (state == ncclInProgress || state == ncclSuccess) {
    if (ncclCommGetAsyncError(handle, &state) != ncclSuccess) return false;
    if (state == ncclSuccess) return true;
    if (lm_seconds() > until) return false;
    lm_sleep(longest_rest);
  }
  return false;
}

/* Ends a communicator, on its GPU: NCCL restores the thread's GPU afterwards, and would else initialize the first. */
static void *end_on_thread(void *p) {
  lm_nccl_comm *c = p;
  lm_device_enter(c->device);
  if (c->quietly && comm_finalize(c->handle)) {
    ncclCommDestroy(c->handle);
  } else {
    ncclCommAbort(c->handle);
    if (c->child) ncclCommAbort(c->child);
  }
  atomic_store(&c->ended, true);
  comm_release(c);
  return NULL;
}

/* Starts the thread that ends c, which no other thread uses any more; without a thread, ends it here. */
static void start_ending(lm_nccl_comm *c, bool quietly) {
  c->quietly = quietly;
  atomic_fetch_add(&c->rc, 1);
  if (lm_thread_start_detached("lm-nccl-end", end_on_thread, c) == LM_OK) return;
  sigset_t signals;
  lm_nccl_hold_signals(&signals);
  end_on_thread(c);
  lm_nccl_let_signals(&signals);
}

/* ---- ending all communicators of a group */

static int count_comms(const lm_nccl *s) { return s->g->size + 1; }
static lm_nccl_comm **comm_at(lm_nccl *s, int i) { return i < s->g->size ? &s->pair[i] : &s->whole; }

/* Starts to end all communicators. Called with the lock held. */
static void comm_end_all(lm_nccl *s, bool quietly) {
  s->aborted = true;
  for (int i = 0; i < count_comms(s); i++) {
    lm_nccl_comm *c = *comm_at(s, i);
    if (c && c->handle && !c->ended) start_ending(c, quietly);
  }
}

void lm_nccl_abort(lm_nccl *s) {
  LM_LOCKED(&s->lock);
  if (!s->aborted) comm_end_all(s, false);
}

static pthread_once_t environment_once = PTHREAD_ONCE_INIT;

/* Sets NCCL's environment variables. NCCL_COMM_BLOCKING of the environment or of NCCL's own files would override the
 * `blocking` of each communicator's configuration; NCCL's value for "undefined" prevents that. Kernels of several
 * communicators that wait for each other on a GPU must start in the same order on all ranks: NCCL_LAUNCH_ORDER_IMPLICIT
 * makes that the order of the calls. */
static void set_environment(void) {
  char none[16];
  const char *ours = lm_variable_get(LM_VAR_SOCKET_IFNAME);
  if (ours) setenv("NCCL_SOCKET_IFNAME", ours, 0);
  snprintf(none, sizeof none, "%d", NCCL_CONFIG_UNDEF_INT);
  setenv("NCCL_COMM_BLOCKING", none, 1);
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
}

void lm_nccl_prepare(void) { pthread_once(&environment_once, set_environment); }

lm_status lm_nccl_new(lm_group *g, lm_nccl **out) {
  lm_nccl_prepare();
  lm_nccl *s = lm_calloc(1, sizeof *s);
  lm_nccl_comm **pair = lm_calloc((size_t)g->size, sizeof(lm_nccl_comm *));
  *out = NULL;
  if (!s || !pair) {
    lm_free(s);
    lm_free(pair);
    return LM_E_OOM;
  }
  s->g = g;
  s->device = LM_NO_DEVICE;
  s->pair = pair;
  pthread_mutex_init(&s->lock, NULL);
  *out = s;
  return LM_OK;
}

void lm_nccl_close(lm_nccl *s) {
  if (!s) return;
  bool ended = true;
  if (!lm_group_failed(s->g)) lm_nccl_deregister_all(s);
  pthread_mutex_lock(&s->lock);
  if (!s->aborted) comm_end_all(s, !lm_group_failed(s->g));
  pthread_mutex_unlock(&s->lock);
  double until = lm_seconds() + shutdown_time;
  for (int i = 0; i < count_comms(s); i++) {
    lm_nccl_comm *c = *comm_at(s, i);
    while (c && c->handle && !atomic_load(&c->ended) && lm_seconds() < until) lm_sleep(longest_rest);
    if (c && c->handle && !atomic_load(&c->ended)) {
      lm_log(LM_LOG_DIST, "nccl: a communicator did not end within %g s; it is left alone", shutdown_time);
      ended = false;
    }
    comm_release(c);
  }
  lm_nccl_leave_pieces(s, ended);
  lm_free(s->pair);
  pthread_mutex_destroy(&s->lock);
  lm_free(s);
}

/* ---- failures */

/* Stores the first failure for later calls and ends all communicators: peers would wait for this rank's missing call.
 * Returns status. */
static lm_status fail_and_end(lm_nccl *s, lm_status status) {
  LM_LOCKED(&s->lock);
  if (!*s->why) snprintf(s->why, sizeof s->why, "%s", lm_error());
  if (!s->aborted) comm_end_all(s, false);
  return status;
}

/* Returns the error of a call on aborted communicators. */
static lm_status comm_aborted(lm_nccl *s, lm_group *asks) {
  char why[sizeof s->why];
  pthread_mutex_lock(&s->lock);
  memcpy(why, s->why, sizeof why);
  pthread_mutex_unlock(&s->lock);
  NEED(*why ? lm_group_await_cause(asks) : lm_group_check(asks));
  if (*why) return lm_fail(LM_E_STATE, "%s: the group has already failed: %s", lm_nccl_caller(asks), why);
  return lm_fail(LM_E_STATE, "%s: the communicators of this group were aborted", lm_nccl_caller(asks));
}

static lm_status comm_fail_in_words(const lm_group *asks, ncclResult_t result) {
  char last[512];
  snprintf(last, sizeof last, "%s", ncclGetLastError(NULL));
  last[strcspn(last, "\n")] = 0;
  return lm_nccl_fail(lm_nccl_caller(asks), result, last);
}

static lm_status fail_comm(lm_nccl *s, lm_group *asks, ncclResult_t result) {
  lm_status status = LM_OK;
  lm_saved_error worded;
  lm_error_save(comm_fail_in_words(asks, result), &worded);
  /* Such a result often follows from a failure elsewhere. */
  if (result == ncclRemoteError || result == ncclSystemError) status = lm_group_await_cause(asks);
  return fail_and_end(s, status != LM_OK ? status : lm_error_restore(&worded));
}

/* ---- calls */

lm_status lm_nccl_begin(lm_nccl *s, lm_group *asks) {
  pthread_mutex_lock(&s->lock);
  if (!s->aborted) {
    s->calling = true;
    lm_nccl_hold_signals(&s->signals);
    return LM_OK;
  }
  pthread_mutex_unlock(&s->lock);
  return comm_aborted(s, asks);
}

static lm_status comm_wait_ready(lm_nccl *s, lm_nccl_comm *c, lm_group *asks) {
  double start = lm_seconds(), pause = 20e-6;
  bool spins = lm_group_may_spin(asks);
  for (;;) {
    ncclResult_t state = ncclInProgress;
    pthread_mutex_lock(&s->lock);
    bool aborted = s->aborted;
    ncclResult_t answer = aborted ? ncclSuccess : ncclCommGetAsyncError(c->handle, &state);
    pthread_mutex_unlock(&s->lock);
    if (aborted) return comm_aborted(s, asks);
    if (answer != ncclSuccess) state = answer;
    if (state == ncclSuccess) return LM_OK;
    if (state != ncclInProgress) return fail_comm(s, asks, state);
    lm_status status = lm_group_check(asks);
    if (status != LM_OK) return fail_and_end(s, status);
    if (spins && lm_seconds() < start + spin_time) {
      sched_yield();
    } else {
      lm_group_pause(asks, pause);
      if (pause < longest_rest) pause *= 2;
    }
  }
}

lm_status lm_nccl_end(lm_nccl *s, lm_nccl_comm *c, lm_group *asks, ncclResult_t result) {
  lm_nccl_let_signals(&s->signals);
  pthread_mutex_unlock(&s->lock);
  lm_status status =
      result == ncclSuccess || result == ncclInProgress ? comm_wait_ready(s, c, asks) : fail_comm(s, asks, result);
  LM_LOCKED(&s->lock);
  s->calling = false;
  return status;
}

lm_status lm_nccl_health(lm_nccl *s) {
  ncclResult_t bad = ncclSuccess;
  char why[sizeof s->why];
  pthread_mutex_lock(&s->lock);
  memcpy(why, s->why, sizeof why);
  for (int i = 0; !s->aborted && bad == ncclSuccess && i < count_comms(s); i++) {
    lm_nccl_comm *c = *comm_at(s, i);
    ncclResult_t state = ncclSuccess;
    if (!c || !c->handle) continue;
    ncclResult_t answer = ncclCommGetAsyncError(c->handle, &state);
    bad = answer != ncclSuccess ? answer : state == ncclInProgress ? ncclSuccess : state;
  }
  pthread_mutex_unlock(&s->lock);
  if (*why) return lm_fail(LM_E_STATE, "%s", why);
  return bad == ncclSuccess ? LM_OK : fail_and_end(s, comm_fail_in_words(s->g, bad)); /* the core waits for a cause */
}

/* ---- creating one communicator */

static lm_status use_device(lm_nccl *s, lm_device device) {
  if (s->device == device) return LM_OK;
  if (s->device != LM_NO_DEVICE) {
    char first[32], now[32];
    snprintf(first, sizeof first, "%s", lm_device_name(s->device));
    snprintf(now, sizeof now, "%s", lm_device_name(device));
    return lm_remedy(
        lm_fail_device(lm_nccl_caller(s->g), "tensor", lm_text("on %s, this rank's device in the group", first), now),
        "move it with :to('%s'), or make another group for %s", first, now);
  }
  s->device = device;
  return LM_OK;
}

/* The value that the first rank publishes in the store: the id, or the NUL-terminated reason for none. */
typedef struct shared_id {
  char why[256];
  ncclUniqueId id;
} shared_id;

static lm_status publish_unique_id(lm_group *g, const char *key, bool alone, shared_id *id) {
  sigset_t signals;
  memset(id, 0, sizeof *id);
  lm_nccl_hold_signals(&signals);
  ncclResult_t result = ncclGetUniqueId(&id->id);
  lm_nccl_let_signals(&signals);
  const char *last = ncclGetLastError(NULL);
  if (result != ncclSuccess) snprintf(id->why, sizeof id->why, "%.250s", *last ? last : ncclGetErrorString(result));
  lm_status status = alone ? LM_OK : lm_group_set(g, key, id, sizeof *id);
  return status == LM_OK && result != ncclSuccess ? comm_fail_in_words(g, result) : status;
}

static lm_status read_unique_id(lm_group *g, const char *key, int first, shared_id *got) {
  NEED(lm_group_read(g, key, got, sizeof *got));
  got->why[sizeof got->why - 1] = 0;
  if (!*got->why) return LM_OK;
  return lm_fail(LM_E_STATE, "%s: %s cannot create a communicator: NCCL: %s", lm_nccl_caller(g),
                 lm_group_peer_name(g, first), got->why);
}

static ncclConfig_t settings(void) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

/* Creates a communicator in *at, where an abort finds it. `first`: the communicator's rank 0, as rank in the group. */
static lm_status comm_make(lm_nccl *s, const char *key, int first, int rank, int size, lm_nccl_comm **at) {
  lm_status status;
  double start = lm_seconds();
  shared_id own;
  ncclConfig_t config = settings();
  lm_nccl_comm *c = new_comm(s->device, rank, size);
  if (!c) return LM_E_OOM;
  TRY(rank == 0 ? publish_unique_id(s->g, key, size == 1, &own) : read_unique_id(s->g, key, first, &own));
  TRY(lm_device_enter(s->device));
  lm_memory_empty_cache(s->device); /* NCCL allocates memory of its own, and its failure ends the job */
  TRY(lm_nccl_begin(s, s->g));
  ncclResult_t result = ncclCommInitRankConfig(&c->handle, size, own.id, rank, &config);
  *at = c;
  TRY(lm_nccl_end(s, c, s->g, result));
  lm_log(LM_LOG_DIST, "nccl %s: rank %d of a communicator of %d on %s, made in %.0f ms", lm_nccl_version_text(), rank,
         size, lm_device_name(s->device), 1e3 * (lm_seconds() - start));
  return LM_OK;

done:
  if (*at != c) comm_release(c);
  return fail_and_end(s, status); /* the other ranks may be waiting */
}

lm_status lm_nccl_whole(lm_nccl *s, lm_device device, lm_nccl_comm **out) {
  NEED(use_device(s, device));
  if (!s->whole) NEED(comm_make(s, "nccl", 0, s->g->rank, s->g->size, &s->whole));
  *out = s->whole;
  return LM_OK;
}

lm_status lm_nccl_pair(lm_nccl *s, lm_device device, int peer, lm_nccl_comm **out, int *there) {
  int rank = s->g->rank, low = rank < peer ? rank : peer, high = rank < peer ? peer : rank;
  char key[48];
  NEED(use_device(s, device));
  *there = peer == low ? 0 : 1;
  if (!s->pair[peer]) {
    snprintf(key, sizeof key, "nccl/%d-%d", low, high);
    NEED(comm_make(s, key, low, rank == low ? 0 : 1, low == high ? 1 : 2, &s->pair[peer]));
  }
  *out = s->pair[peer];
  return LM_OK;
}

lm_status lm_nccl_split(lm_group *g, lm_nccl *parent, int color, lm_nccl **out) {
  lm_status status;
  lm_nccl *s = NULL;
  lm_nccl_comm *c = NULL, *from = parent->whole;
  ncclConfig_t config = settings();
  bool member = g->rank >= 0;
  *out = NULL;
  if (!from) return LM_OK;
  if (member) {
    TRY(lm_nccl_new(g, &s));
    c = new_comm(parent->device, g->rank, g->size);
    if (!c) TRY(LM_E_OOM);
  }
  TRY(lm_nccl_begin(parent, g));
  TRY(lm_nccl_end(parent, from, g,
                  ncclCommSplit(from->handle, member ? color : NCCL_SPLIT_NOCOLOR, g->rank, &from->child, &config)));
  if (!member) return LM_OK;
  pthread_mutex_lock(&parent->lock);
  if (!parent->aborted) { /* a child of an aborted parent ends with it */
    c->handle = from->child;
    from->child = NULL;
  }
  pthread_mutex_unlock(&parent->lock);
  if (!c->handle) TRY(comm_aborted(parent, g));
  s->whole = c;
  s->device = parent->device;
  c = NULL;
  TRY(comm_wait_ready(s, s->whole, g));
  lm_log(LM_LOG_DIST, "nccl: a communicator of %d ranks on %s, split from one of %d", g->size,
         lm_device_name(s->device), parent->g->size);
  *out = s;
  s = NULL;

done:
  comm_release(c);
  lm_nccl_close(s);
  return status;
}
