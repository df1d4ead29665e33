#include "base/file_size_limit.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

static sigset_t its_signal(void) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGXFSZ);
  return set;
}

void lm_file_limit_begin(lm_file_limit *l) {
  const sigset_t blocked = its_signal();
  sigset_t pending;
  pthread_sigmask(SIG_BLOCK, &blocked, &l->before);
  l->pending = sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
}

/* Discards our pending SIGXFSZ: the kernel sends one to the thread that wrote, so it comes from our write. */
void lm_file_limit_end(const lm_file_limit *l) {
  const sigset_t ours = its_signal();
  const struct timespec at_once = {0, 0};
  int saved = errno;
  if (!l->pending) {
    while (sigtimedwait(&ours, NULL, &at_once) < 0 && errno == EINTR) continue;
  }
  pthread_sigmask(SIG_SETMASK, &l->before, NULL);
  errno = saved;
}
