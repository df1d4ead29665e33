/* Runs the thread that watches exported memory and closes imported memory that was released. */
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/message.h"
#include "base/thread.h"
#include "mp/ipc_core.h"

enum { AT_EXIT = 3 /* seconds */ };

static bool runs, stops;
static pthread_t thread;

int lm_ipc_pending_count(void) {
  LM_LOCKED(&lm_ipc_thread.lock);
  return lm_ipc_thread.nexported + lm_ipc_thread.nreturned;
}

static void collect_returned(void) {
  pthread_mutex_lock(&lm_ipc_thread.lock);
  lm_ipc_imported *list = lm_ipc_thread.returned;
  lm_ipc_thread.returned = NULL;
  pthread_mutex_unlock(&lm_ipc_thread.lock);
  for (lm_ipc_imported *next; list; list = next) {
    next = list->next;
    bool gone = lm_ipc_imported_return(list);
    pthread_mutex_lock(&lm_ipc_thread.lock);
    if (gone) {
      lm_ipc_thread.nreturned--;
    } else {
      list->next = lm_ipc_thread.returned;
      lm_ipc_thread.returned = list;
    }
    pthread_mutex_unlock(&lm_ipc_thread.lock);
  }
}

/* Moves an export, whose pipe has no writing end left, to `ending`. */
static void end_export(lm_ipc_exported *l, lm_ipc_exported **ending) {
  pthread_mutex_lock(&lm_ipc_thread.lock);
  LM_UNLINK(lm_ipc_thread.exported_list, l);
  pthread_mutex_unlock(&lm_ipc_thread.lock);
  epoll_ctl(lm_ipc_thread.epoll_fd, EPOLL_CTL_DEL, l->fd, NULL);
  l->next = *ending;
  *ending = l;
}

static void free_finished(lm_ipc_exported **ending) {
  for (lm_ipc_exported *l; (l = *ending);) {
    if (!lm_ipc_exported_is_done(l)) {
      ending = &l->next;
      continue;
    }
    *ending = l->next;
    lm_ipc_exported_free(l);
    pthread_mutex_lock(&lm_ipc_thread.lock);
    lm_ipc_thread.nexported--; /* threads that see the lower count can rely on its memory being free */
    pthread_mutex_unlock(&lm_ipc_thread.lock);
  }
}

static void *ipc_thread_run(void *unused) {
  enum { BRIEFLY = 1 /* ms */, AT_ONCE = 64 };
  struct epoll_event events[AT_ONCE];
  lm_ipc_exported *ending = NULL;
  (void)unused;
  for (;;) {
    pthread_mutex_lock(&lm_ipc_thread.lock);
    bool over = stops, waits = lm_ipc_thread.returned || ending;
    pthread_mutex_unlock(&lm_ipc_thread.lock);
    if (over) return NULL;
    int n = epoll_wait(lm_ipc_thread.epoll_fd, events, AT_ONCE, waits ? BRIEFLY : -1);
    for (int i = 0; i < n; i++) {
      if (events[i].data.ptr) {
        end_export(events[i].data.ptr, &ending);
      } else {
        lm_wakeup_fd_clear(lm_ipc_thread.wakeup_fd);
      }
    }
    free_finished(&ending);
    collect_returned();
  }
}

/* Waits a few seconds at exit, since receivers lose exported memory when this process ends. */
static void ipc_thread_leave(void) {
  double deadline = lm_seconds() + AT_EXIT;
  for (;;) {
    pthread_mutex_lock(&lm_ipc_thread.lock);
    int left = lm_ipc_thread.nexported;
    pthread_mutex_unlock(&lm_ipc_thread.lock);
    if (left == 0) break;
    if (lm_seconds() > deadline) {
      lm_print_stderr(
          "mp: this process ends while other processes may still use its GPU tensors (messages not yet released: %d), "
          "whose "
          "memory is freed now; a sender must live until its receivers have released them",
          left);
      break;
    }
    usleep(1000);
  }
  pthread_mutex_lock(&lm_ipc_thread.lock);
  stops = true;
  pthread_mutex_unlock(&lm_ipc_thread.lock);
  lm_wakeup_fd_signal(lm_ipc_thread.wakeup_fd);
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec++; /* a device may hang */
  pthread_timedjoin_np(thread, NULL, &until);
}

lm_status lm_ipc_thread_start(void) {
  LM_LOCKED(&lm_ipc_thread.lock);
  if (runs) return LM_OK;
  if ((lm_ipc_thread.wakeup_fd < 0 && (lm_ipc_thread.wakeup_fd = lm_wakeup_fd_new()) < 0) ||
      (lm_ipc_thread.epoll_fd < 0 && ((lm_ipc_thread.epoll_fd = lm_fd_above_stdio(epoll_create1(EPOLL_CLOEXEC))) < 0 ||
                                      epoll_ctl(lm_ipc_thread.epoll_fd, EPOLL_CTL_ADD, lm_ipc_thread.wakeup_fd,
                                                &(struct epoll_event){.events = EPOLLIN}) != 0)))
    return lm_fail_cannot(LM_E_OOM, "create an event descriptor", errno);
  if (getrandom(lm_ipc_thread.self, sizeof lm_ipc_thread.self, 0) != (ssize_t)sizeof lm_ipc_thread.self)
    return lm_fail_cannot(LM_E_IO, "read random numbers", errno);
  NEED(lm_thread_start(NULL, "lm-ipc", &thread, ipc_thread_run, NULL));
  runs = true;
  atexit(ipc_thread_leave);
  return LM_OK;
}
