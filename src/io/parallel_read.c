#include "io/parallel_read.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/message.h"

/* The page cache delivers a few GB/s to one thread; starting a thread takes as long as reading 100 KB. */
enum { PART = 1 << 20, WORTH_A_THREAD = 4 << 20, MAX_THREADS = 8 };

typedef struct reading {
  int fd, n;
  const lm_piece *piece;
  pthread_mutex_t lock;
  int next;     /* index of the current piece; the lock protects it and the next fields */
  size_t given; /* bytes of that piece that were handed out */
  bool ended;   /* true if the file ended before a piece */
  int problem;  /* errno of the first failed read */
} reading;

static bool take_part(reading *r, lm_piece *part) {
  pthread_mutex_lock(&r->lock);
  while (r->next < r->n && r->given == r->piece[r->next].bytes) {
    r->next++;
    r->given = 0;
  }
  bool any = r->next < r->n && !r->ended && r->problem == 0;
  if (any) {
    const lm_piece *piece = &r->piece[r->next];
    size_t left = piece->bytes - r->given;
    *part = (lm_piece){(char *)piece->to + r->given, left < PART ? left : PART, piece->at + r->given};
    r->given += part->bytes;
  }
  pthread_mutex_unlock(&r->lock);
  return any;
}

static void *work(void *arg) {
  reading *r = arg;
  lm_piece part;
  while (take_part(r, &part)) {
    char *to = part.to;
    for (size_t done = 0; done < part.bytes;) {
      ssize_t n = pread(r->fd, to + done, part.bytes - done, (off_t)(part.at + done));
      if (n < 0 && errno == EINTR) continue;
      if (n > 0) {
        done += (size_t)n;
        continue;
      }
      int problem = errno;
      pthread_mutex_lock(&r->lock);
      if (n == 0) r->ended = true;
      if (n < 0 && r->problem == 0) r->problem = problem;
      pthread_mutex_unlock(&r->lock);
      return NULL;
    }
  }
  return NULL;
}

/* Reads on several threads, the caller among them; on the caller alone if no thread can be created. */
static void work_together(reading *r, size_t bytes, int threads) {
  pthread_t helper[MAX_THREADS];
  int most = threads < MAX_THREADS ? threads : MAX_THREADS, n = 0;
  if ((size_t)most > bytes / WORTH_A_THREAD) most = (int)(bytes / WORTH_A_THREAD);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the script's own thread */
  while (n < most - 1 && pthread_create(&helper[n], NULL, work, r) == 0) n++;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  work(r);
  while (n > 0) pthread_join(helper[--n], NULL);
}

lm_status lm_read_pieces(const char *path, int fd, const struct stat *info, int threads, int n,
                         const lm_piece *pieces) {
  reading r = {.fd = fd, .n = n, .piece = pieces, .lock = PTHREAD_MUTEX_INITIALIZER};
  size_t bytes = 0;
  for (int i = 0; i < n; i++) bytes += pieces[i].bytes;
  work_together(&r, bytes, threads);
  if (r.problem != 0) return lm_fail_file("read", path, strerror(r.problem));
  lm_status status = lm_fd_unchanged(path, fd, info);
  if (status == LM_OK && r.ended) status = lm_fail_in_file(LM_E_IO, path, "truncated while it was read");
  return status;
}
