/* Waits for many descriptors at once (epoll) and calls a function for each that is ready. One thread runs a loop;
 * others may wake it, and may call lm_loop_set for a watch that a lock guards. */
#pragma once

#include <stdint.h>
#include <sys/epoll.h>

#include "base/status.h"

typedef struct lm_watch { /* a descriptor in a loop; its owner's first member */
  int fd;                 /* -1: none */
  uint32_t events;        /* EPOLLIN, EPOLLOUT; errors and ends are always reported */
  void (*ready)(struct lm_watch *w, uint32_t events);
} lm_watch;

typedef struct lm_loop {
  int epoll; /* itself readable while a descriptor is ready */
  int wakeup_fd;
  int n, at;                      /* number of events of this round; the one being handled */
  struct epoll_event events[256]; /* data.ptr: the watch; NULL: removed since; the loop: it was woken */
} lm_loop;

lm_status lm_loop_open(lm_loop *l); /* on failure there is nothing to close */
void lm_loop_close(lm_loop *l);     /* leaves the descriptors of watches open */
/* Watches fd for EPOLLIN. On failure w->fd is -1, and fd stays open. */
lm_status lm_loop_add(lm_loop *l, lm_watch *w, int fd, void (*ready)(lm_watch *w, uint32_t events));
void lm_loop_set(lm_loop *l, lm_watch *w, uint32_t events);
/* Stops watching, and closes the descriptor unless it is -1. close alone would leave it in the epoll set, with its
 * pointer, while an earlier forked process has it open. lm_loop_remove returns the descriptor instead. */
void lm_loop_end(lm_loop *l, lm_watch *w);
int lm_loop_remove(lm_loop *l, lm_watch *w);
/* Waits until a descriptor is ready, the loop is woken, or `seconds` have passed; returns the number of events, at most
 * `most`. lm_loop_dispatch then calls the functions; those may remove any watch, and free its owner. */
int lm_loop_wait(lm_loop *l, double seconds, int most);
void lm_loop_dispatch(lm_loop *l);
void lm_loop_wake(lm_loop *l);
