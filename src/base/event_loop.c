#include "base/event_loop.h"

#include <errno.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/message.h"
#include "base/thread.h"

static int loop_control(lm_loop *l, int op, int fd, uint32_t events, void *data) {
  struct epoll_event event = {.events = events, .data.ptr = data};
  return epoll_ctl(l->epoll, op, fd, &event);
}

lm_status lm_loop_open(lm_loop *l) {
  l->n = l->at = 0;
  l->epoll = lm_fd_above_stdio(epoll_create1(EPOLL_CLOEXEC));
  l->wakeup_fd = lm_wakeup_fd_new();
  if (l->epoll >= 0 && l->wakeup_fd >= 0 && loop_control(l, EPOLL_CTL_ADD, l->wakeup_fd, EPOLLIN, l) == 0) return LM_OK;
  int error = errno;
  lm_loop_close(l);
  return lm_fail_cannot(LM_E_IO, "create an event descriptor", error);
}

void lm_loop_close(lm_loop *l) {
  if (l->epoll >= 0) close(l->epoll);
  if (l->wakeup_fd >= 0) close(l->wakeup_fd);
  l->epoll = l->wakeup_fd = -1;
}

lm_status lm_loop_add(lm_loop *l, lm_watch *w, int fd, void (*ready)(lm_watch *w, uint32_t events)) {
  *w = (lm_watch){.fd = fd, .events = EPOLLIN, .ready = ready};
  if (loop_control(l, EPOLL_CTL_ADD, fd, EPOLLIN, w) == 0) return LM_OK;
  w->fd = -1;
  return lm_fail_cannot(LM_E_IO, "watch a descriptor", errno);
}

void lm_loop_set(lm_loop *l, lm_watch *w, uint32_t events) {
  if (w->fd >= 0 && w->events != events && loop_control(l, EPOLL_CTL_MOD, w->fd, events, w) == 0) w->events = events;
}

int lm_loop_remove(lm_loop *l, lm_watch *w) {
  int fd = w->fd;
  if (fd >= 0) loop_control(l, EPOLL_CTL_DEL, fd, 0, NULL);
  for (int i = l->at; i < l->n; i++)
    if (l->events[i].data.ptr == w) l->events[i].data.ptr = NULL;
  w->fd = -1;
  return fd;
}

void lm_loop_end(lm_loop *l, lm_watch *w) {
  if (w->fd >= 0) close(lm_loop_remove(l, w));
}

int lm_loop_wait(lm_loop *l, double seconds, int most) {
  int room = (int)(sizeof l->events / sizeof *l->events);
  int n = epoll_wait(l->epoll, l->events, most < room ? most : room, seconds > 0 ? (int)(seconds * 1000) + 1 : 0);
  l->at = 0;
  return l->n = n > 0 ? n : 0;
}

void lm_loop_dispatch(lm_loop *l) {
  for (; l->at < l->n; l->at++) {
    lm_watch *w = l->events[l->at].data.ptr;
    if ((void *)w == l)
      lm_wakeup_fd_clear(l->wakeup_fd);
    else if (w)
      w->ready(w, l->events[l->at].events);
  }
}

void lm_loop_wake(lm_loop *l) { lm_wakeup_fd_signal(l->wakeup_fd); }
