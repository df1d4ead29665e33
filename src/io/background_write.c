#include "io/background_write.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/environment_variable.h"
#include "base/mem.h"
#include "base/thread.h"
#include "io/atomic_write.h"

struct lm_background_write {
  int rc; /* references of its thread or the list and of its owner; `lock` protects it and the next three fields */
  bool ended, reported;
  struct lm_background_write *next; /* next in the list of running writes and of unread failures */
  lm_write_plan plan;               /* a copy, freed with this */
  int locked_fd;                    /* -1: none */
  _Atomic uint64_t progress;        /* progress of its lm_new_file */
  char error[1024];
};

LM_MUTEX(lock);
static pthread_cond_t ends;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static lm_background_write *unfinished;

/* Fails all writes in a forked child, which has none of their threads. The parent finishes them. */
static void forget_writes(void) {
  lm_cond_init(&ends);
  for (lm_background_write *w = unfinished; w; w = w->next) {
    if (!w->ended) lm_write(w->error, sizeof w->error, "process %d, which forked this one, writes the file", getppid());
    w->ended = w->reported = true;
  }
  unfinished = NULL;
}

static void prepare_fork(void) {
  lm_cond_init(&ends);
  pthread_atfork(NULL, NULL, forget_writes);
}

static void free_plan(lm_write_plan *p) {
  for (int i = 0; p->tensors && i < p->n; i++) lm_release(p->tensors[i]);
  for (int i = 0; p->shards && i < p->nshards; i++) lm_free((void *)p->shards[i]);
  const void *owned[] = {p->path, p->head, p->tensors, p->sums_before, p->shards, p->whole, p->suffix};
  for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) lm_free((void *)owned[i]);
  *p = (lm_write_plan){0};
}

static void *copy_bytes(const void *from, size_t bytes) {
  void *to = lm_malloc(bytes + 1);
  return to ? memcpy(to, from, bytes) : NULL;
}

static bool copy_plan(const lm_write_plan *p, lm_write_plan *out) {
  *out = *p;
  out->tensors = NULL, out->shards = NULL;
  out->path = lm_copy_text(p->path);
  out->head = copy_bytes(p->head, p->head_bytes);
  out->sums_before = copy_bytes(p->sums_before, (size_t)p->n * sizeof *p->sums_before);
  lm_tensor **tensors = copy_bytes(p->tensors, (size_t)p->n * sizeof *tensors);
  out->tensors = tensors;
  for (int i = 0; tensors && i < p->n; i++) lm_retain(tensors[i]);
  out->whole = lm_copy_text(p->whole), out->suffix = lm_copy_text(p->suffix);
  if (p->whole && (!out->whole || !out->suffix)) return false;
  if (!p->shards) return out->path && out->head && out->sums_before && tensors;
  const char **shards = lm_calloc((size_t)p->nshards + 1, sizeof *shards);
  bool copied = shards != NULL;
  out->shards = shards;
  for (int i = 0; shards && i < p->nshards; i++) copied = (shards[i] = lm_copy_text(p->shards[i])) && copied;
  return out->path && out->head && out->sums_before && tensors && copied;
}

/* Writes in pieces, so that each is still in the cache after its checksum was computed. */
static lm_status write_tensor(lm_new_file *f, const lm_tensor *t, uint32_t *sum) {
  enum { PIECE = 256 << 10 };
  const char *p = t->data;
  for (size_t left = lm_nbytes(t), n; left > 0; p += n, left -= n) {
    n = left < PIECE ? left : PIECE;
    *sum = lm_crc32c(*sum, p, n);
    NEED(lm_new_file_write(f, p, n));
  }
  return LM_OK;
}

static lm_status write_file(lm_background_write *w) {
  const lm_write_plan *p = &w->plan;
  lm_status status;
  lm_tensor *t = NULL;
  lm_new_file f = {.fd = -1};
  char *digits = (char *)p->head + p->sums_at, text[9];
  TRY(lm_new_file_open(p->path, p->whole && strcmp(p->path, p->whole) == 0 ? p->suffix : "", &f));
  f.progress = &w->progress;
  TRY(lm_new_file_write(&f, p->head, p->head_bytes)); /* written again at the end, with the checksums */
  for (int i = 0; i < p->n; i++, digits += 9) {
    uint32_t sum = (uint32_t)p->sums_before[i];
    TRY(p->dense(p->tensors[i], &t));
    TRY(write_tensor(&f, t, &sum));
    lm_release(t);
    t = NULL;
    snprintf(text, sizeof text, "%08x", sum);
    memcpy(digits, text, 8);
  }
  TRY(lm_new_file_rewind(&f));
  TRY(lm_new_file_write(&f, p->head, p->head_bytes));
  if (p->locked) w->locked_fd = lm_new_file_lock(&f);
  TRY(lm_new_file_commit(&f));
  if (!p->whole) {
    lm_remove_abandoned(p->path, p->nshards, p->shards);
  } else if (p->background && lm_parts_are_listed(p->whole, p->nshards, p->shards)) {
    TRY(lm_complete_parts(p->whole, p->suffix, p->nshards, p->shards));
  }
done:
  lm_release(t);
  lm_new_file_abandon(&f);
  return status;
}

static void release(lm_background_write *w) { /* requires the lock */
  if (--w->rc > 0) return;
  if (w->locked_fd >= 0) close(w->locked_fd);
  free_plan(&w->plan);
  lm_free(w);
}

static void *write_on_thread(void *arg) {
  lm_background_write *w = arg;
  lm_status status = write_file(w);
  LM_LOCKED(&lock);
  free_plan(&w->plan);
  if (status != LM_OK) snprintf(w->error, sizeof w->error, "%s", lm_error());
  w->ended = true;
  if (status == LM_OK) {
    LM_UNLINK(unfinished, w);
    release(w);
  }
  pthread_cond_broadcast(&ends);
  return NULL;
}

lm_status lm_background_write_start(const lm_write_plan *plan, lm_background_write **out) {
  pthread_once(&once, prepare_fork);
  *out = NULL;
  lm_background_write *w = lm_calloc(1, sizeof *w);
  if (!w) return LM_E_OOM;
  w->rc = 1, w->locked_fd = -1;
  lm_status status = copy_plan(plan, &w->plan) ? LM_OK : LM_E_OOM;
  if (status == LM_OK && !plan->background) {
    status = write_file(w);
    free_plan(&w->plan);
    w->ended = true;
  } else if (status == LM_OK) {
    pthread_mutex_lock(&lock);
    w->rc = 2;
    w->next = unfinished;
    unfinished = w;
    status = lm_thread_start_detached("lm-save", write_on_thread, w);
    if (status != LM_OK) {
      LM_UNLINK(unfinished, w);
      w->rc = 1;
    }
    pthread_mutex_unlock(&lock);
  }
  if (status == LM_OK) {
    *out = w;
  } else {
    lm_background_write_release(w);
  }
  return status;
}

bool lm_background_write_wait(lm_background_write *w, double seconds) {
  double deadline = lm_seconds() + seconds;
  LM_LOCKED(&lock);
  while (!w->ended && lm_cond_wait_until(&ends, &lock, deadline)) continue;
  return w->ended;
}

const char *lm_background_write_error(lm_background_write *w) {
  LM_LOCKED(&lock);
  if (w->error[0] && !w->reported) {
    w->reported = true;
    LM_UNLINK(unfinished, w);
    release(w);
  }
  return w->error;
}

void lm_background_write_release(lm_background_write *w) {
  if (!w) return;
  LM_LOCKED(&lock);
  release(w);
}

static double seconds_of_patience(void) {
  const char *text = lm_variable_get(LM_VAR_SAVE_TIMEOUT);
  LM_PLAIN_NUMBERS(locale);
  double seconds = text ? strtod(text, NULL) : 0;
  return seconds > 0 ? seconds : 60;
}

/* Waits for the unfinished writes; false once none has made progress for `most` seconds. Requires the lock. */
static bool wait_while_written(double most) {
  uint64_t before = 0;
  double deadline = 0;
  for (lm_background_write *w = unfinished; w;) {
    if (w->ended) {
      w = w->next;
      continue;
    }
    uint64_t now = 1;
    for (lm_background_write *each = unfinished; each; each = each->next) now += each->progress;
    if (now != before) {
      before = now;
      deadline = lm_seconds() + most;
    } else if (lm_seconds() >= deadline) {
      return false;
    }
    lm_cond_wait_until(&ends, &lock, lm_min(deadline, lm_seconds() + 1));
    w = unfinished; /* the list may have changed */
  }
  return true;
}

bool lm_background_writes_finish(void) {
  double most = seconds_of_patience();
  pthread_once(&once, prepare_fork);
  LM_LOCKED(&lock);
  wait_while_written(most);
  bool fine = !unfinished;
  for (const lm_background_write *w = unfinished; w; w = w->next) {
    if (!w->ended) { lm_fail_file("finish", w->plan.path, lm_text("nothing was written for %g s", most)); }
    lm_print_stderr("luminary: a save in the background failed: %s", w->ended ? w->error : lm_error());
  }
  return fine;
}
