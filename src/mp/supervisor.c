#include "mp/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/file_size_limit.h"
#include "base/mem.h"
#include "base/message.h"
#include "mp/descendants.h"
#include "mp/handle.h"

enum {
  STREAMS = 2,
  CHUNK = 65536,     /* bytes of a read, and of a pipe */
  PIECE = 4096,      /* bytes of a write: a pipe that is ready takes it without waiting */
  CROWDED = 1 << 20, /* bytes queued for a slow reader before the processes must wait too */
  LAST_READS = 17,   /* reads per stream after its process ended: a full pipe and its end */
  MAX_HELD = 1024,
};

static const double retry_after = 0.1; /* seconds until a retry of an output that is full */

typedef struct child {
  lm_process process;
  int stream[STREAMS]; /* pipes of its output; -1: ended */
  bool ready[STREAMS];
  int last_reads;
  bool reported; /* true once its end was reported */
} child;

struct lm_supervisor {
  int n, capacity, turn; /* turn: the next stream to read */
  child *children;
  struct pollfd *polled;
  int out[STREAMS];        /* descriptors to print to */
  bool full[STREAMS];      /* true if the last write took nothing, whatever poll says */
  int error[STREAMS];      /* errno of an output that failed but may recover; 0: none */
  size_t lost[STREAMS];    /* bytes dropped meanwhile */
  lm_bytes queue[STREAMS]; /* text to print */
  bool closed[STREAMS], closed_reported[STREAMS];
  int signals; /* pipe from the signal handler */
  int watched; /* another owner's descriptor; -1: none */
  struct sigaction before[NSIG];
  int nspared;
  pid_t *spared; /* children from before: a shell may have had them before it became this process by exec */
  lm_process guard;
  int to_guard;
  int nheld;
  int held[MAX_HELD];
  char chunk[CHUNK];
};

/* ---- signals */

static _Atomic int signal_pipe = -1; /* the handler's end; -1: no supervisor */
static const int taken[] = {SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGPIPE};
enum { TAKEN = sizeof taken / sizeof *taken };

static void on_signal(int number) {
  int error = errno;
  unsigned char byte = (unsigned char)number;
  ssize_t wrote = write(signal_pipe, &byte, 1); /* full: enough signals are queued already */
  (void)wrote;
  errno = error;
}

static lm_status take_signals(lm_supervisor *s) {
  int ends[2], none = -1;
  if (lm_fds_above_stdio(pipe2(ends, O_CLOEXEC | O_NONBLOCK), ends) != 0) {
    return lm_fail_cannot(LM_E_IO, "create a pipe", errno);
  }
  if (!atomic_compare_exchange_strong(&signal_pipe, &none, ends[1])) {
    close(ends[0]);
    close(ends[1]);
    return lm_fail(LM_E_STATE, "process: this process already has a supervisor");
  }
  s->signals = ends[0];
  for (int i = 0; i < TAKEN; i++) {
    struct sigaction action = {.sa_flags = SA_RESTART};
    action.sa_handler = taken[i] == SIGPIPE ? SIG_IGN : on_signal;
    sigaction(taken[i], NULL, &s->before[taken[i]]);
    bool ignored = taken[i] == SIGHUP && s->before[SIGHUP].sa_handler == SIG_IGN; /* set by nohup */
    if (!ignored) sigaction(taken[i], &action, NULL);
  }
  return LM_OK;
}

static void give_signals_back(lm_supervisor *s) {
  if (s->signals < 0) return;
  for (int i = 0; i < TAKEN; i++) sigaction(taken[i], &s->before[taken[i]], NULL);
  close(signal_pipe);
  close(s->signals);
  signal_pipe = -1;
}

/* ---- the guard: a shell that reads the process groups and kills them when this process is gone */

static void guard_stop(lm_supervisor *s) {
  lm_process_close(&s->guard);
  if (s->to_guard >= 0) close(s->to_guard);
  s->to_guard = -1;
}

static lm_status guard_start(lm_supervisor *s) {
  static const char script[] =
      "groups=; while read -r group; do groups=\"$groups -$group\"; done; [ -z \"$groups\" ] || kill -s KILL -- "
      "$groups";
  static const char *const argv[] = {"/bin/sh", "-c", script, NULL};
  lm_status status;
  int ends[2] = {-1, -1}, quiet = -1;
  if (lm_fds_above_stdio(pipe2(ends, O_CLOEXEC), ends) != 0 ||
      (quiet = lm_fd_above_stdio(open("/dev/null", O_WRONLY | O_CLOEXEC))) < 0)
    TRY(lm_fail_cannot(LM_E_IO, "start a guard process", errno));
  lm_process_plan plan = {
      .argv = argv, .in = ends[0], .out = quiet, .err = quiet, .extra = -1, .session = true, .outlives = true};
  TRY(lm_process_start(&plan, &s->guard));
  s->to_guard = ends[1];
  ends[1] = -1;
done:
  lm_close_all(ends, 2);
  if (quiet >= 0) close(quiet);
  return status;
}

/* ---- one supervisor */

/* Reopens a terminal without blocking: a ready one may still block until it takes all of a write. The new file
 * description does not affect its other users. */
static int open_output(int fd) {
  char path[32];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  int own = isatty(fd) ? lm_fd_above_stdio(open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)) : -1;
  return own >= 0 ? own : fd;
}

lm_status lm_supervisor_new(lm_supervisor **out) {
  lm_status status;
  *out = NULL;
  lm_supervisor *s = lm_calloc(1, sizeof *s);
  if (!s) return LM_E_OOM;
  s->signals = s->to_guard = s->guard.pidfd = s->watched = -1;
  lm_fill_stdio(); /* output uses 1 and 2, and 0 is passed on */
  for (int k = 0; k < STREAMS; k++) s->out[k] = open_output(k + 1);
  TRY(lm_children(&s->spared, &s->nspared));
  TRY(take_signals(s));
  if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
    TRY(lm_fail_cannot(LM_E_IO, "adopt orphaned processes (PR_SET_CHILD_SUBREAPER)", errno));
  *out = s;
  s = NULL;
done:
  lm_supervisor_free(s);
  return status;
}

static child *supervisor_find(lm_supervisor *s, int id) { return id >= 1 && id <= s->n ? &s->children[id - 1] : NULL; }

/* Reaps every child that has ended, ours or an adopted orphan. */
static void supervisor_reap(lm_supervisor *s) {
  int status;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    if (pid == s->guard.pid) lm_process_set_ended(&s->guard, status);
    for (int i = 0; i < s->n; i++) {
      lm_process *p = &s->children[i].process;
      if (p->pid == pid && !p->ended) lm_process_set_ended(p, status);
    }
  }
}

void lm_supervisor_sweep(lm_supervisor *s, double seconds, int *left) {
  double deadline = lm_seconds() + seconds;
  guard_stop(s);
  while ((*left = lm_descendants_kill(s->nspared, s->spared)) > 0 && lm_seconds() < deadline) {
    supervisor_reap(s);
    poll(NULL, 0, 2);
  }
  supervisor_reap(s);
}

void lm_supervisor_free(lm_supervisor *s) {
  if (!s) return;
  int left = 0;
  if (s->n > 0) lm_supervisor_sweep(s, 3, &left);
  guard_stop(s);
  for (int i = 0; i < s->n; i++) {
    lm_process_close(&s->children[i].process);
    lm_close_all(s->children[i].stream, STREAMS);
  }
  lm_close_all(s->held, s->nheld);
  for (int k = 0; k < STREAMS; k++) {
    if (s->out[k] > STDERR_FILENO) close(s->out[k]);
    lm_bytes_free(&s->queue[k]);
  }
  if (s->signals >= 0) prctl(PR_SET_CHILD_SUBREAPER, 0);
  give_signals_back(s);
  lm_free(s->spared);
  lm_free(s->children);
  lm_free(s->polled);
  lm_free(s);
}

static lm_status supervisor_grow(lm_supervisor *s) {
  if (s->n < s->capacity) return LM_OK;
  int capacity = s->capacity ? 2 * s->capacity : 8;
  child *children = lm_realloc(s->children, (size_t)capacity * sizeof *children);
  if (!children) return LM_E_OOM;
  s->children = children;
  struct pollfd *polled = lm_realloc(s->polled, (size_t)(2 + STREAMS + STREAMS * capacity) * sizeof *polled);
  if (!polled) return LM_E_OOM;
  s->polled = polled;
  s->capacity = capacity;
  return LM_OK;
}

lm_status lm_supervisor_start(lm_supervisor *s, const char *const *argv, char *const *env, bool input, int *id,
                              pid_t *pid) {
  lm_status status;
  int pipes[STREAMS][2] = {{-1, -1}, {-1, -1}};
  TRY(supervisor_grow(s));
  if (s->to_guard < 0) TRY(guard_start(s));
  for (int k = 0; k < STREAMS; k++) {
    if (lm_fds_above_stdio(pipe2(pipes[k], O_CLOEXEC), pipes[k]) != 0 || fcntl(pipes[k][0], F_SETFL, O_NONBLOCK) != 0)
      TRY(lm_fail_cannot(LM_E_IO, "create a pipe", errno));
  }
  lm_process_plan plan = {.argv = argv,
                          .env = env,
                          .in = input ? STDIN_FILENO : -1,
                          .out = pipes[0][1],
                          .err = pipes[1][1],
                          .extra = -1,
                          .session = true};
  child c = {.stream = {pipes[0][0], pipes[1][0]}};
  TRY(lm_process_start(&plan, &c.process));
  pipes[0][0] = pipes[1][0] = -1;
  s->children[s->n++] = c;
  *id = s->n;
  *pid = c.process.pid;
  dprintf(s->to_guard, "%d\n", (int)c.process.pid);
done:
  lm_close_all((int *)pipes, 2 * STREAMS);
  return status;
}

void lm_supervisor_signal(lm_supervisor *s, int id, int signal) {
  child *c = supervisor_find(s, id);
  if (!c) return;
  if (signal != SIGTERM)
    lm_process_signal(&c->process, signal);
  else if (c->process.pid > 0 && !c->process.ended)
    kill(c->process.pid, signal);
}

/* ---- printing */

lm_status lm_supervisor_print(lm_supervisor *s, int stream, const char *text, size_t n) {
  lm_bytes *queue = &s->queue[stream - 1];
  if (s->closed[stream - 1]) return LM_OK;
  lm_put(queue, text, n);
  if (!queue->failed) return LM_OK;
  queue->failed = false;
  return LM_E_OOM;
}

static bool is_ready(int fd) {
  struct pollfd p = {.fd = fd, .events = POLLOUT};
  return poll(&p, 1, 0) == 1;
}

/* Returns true for errors that a full disk may report for a while: the processes do not wait for it. */
static bool may_pass(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG || error == ESTALE; }

static void supervisor_keep(lm_supervisor *s, int k, int error, size_t *sent) {
  char text[128];
  if (s->error[k] == 0 && k == 0) {
    lm_write(text, sizeof text, "luminary run: cannot write the output: %s\n", strerror(error));
    (void)lm_supervisor_print(s, 2, text, strlen(text));
  }
  s->error[k] = error;
  s->full[k] = true;
  if (s->queue[k].n - *sent < CROWDED / 2) return;
  s->lost[k] += s->queue[k].n - *sent;
  *sent = s->queue[k].n;
}

static bool supervisor_report_lost(lm_supervisor *s, int k) {
  char text[128];
  lm_write(text, sizeof text, "\nluminary run: %zu bytes of output are lost: %s\n", s->lost[k], strerror(s->error[k]));
  if (write(s->out[k], text, strlen(text)) < 0) return false;
  s->lost[k] = 0;
  return true;
}

/* Writes as much as possible without waiting, in complete lines if they are short enough. */
static void supervisor_flush(lm_supervisor *s, int k) {
  lm_bytes *queue = &s->queue[k];
  size_t sent = 0;
  lm_file_limit limit;
  lm_file_limit_begin(&limit);
  s->full[k] = false;
  while (sent < queue->n && is_ready(s->out[k]) && (s->lost[k] == 0 || supervisor_report_lost(s, k))) {
    size_t n = queue->n - sent < PIECE ? queue->n - sent : PIECE;
    const char *from = queue->data + sent, *line = memrchr(from, '\n', n);
    if (line) n = (size_t)(line - from) + 1;
    ssize_t wrote = write(s->out[k], from, n);
    if (wrote < 0 && errno == EINTR) continue;
    s->full[k] = wrote < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    if (wrote < 0 && may_pass(errno)) supervisor_keep(s, k, errno, &sent);
    if (s->full[k]) break;
    if (wrote < 0) { /* the reader is gone */
      s->closed[k] = true;
      sent = queue->n;
      break;
    }
    s->error[k] = 0;
    sent += (size_t)wrote;
  }
  lm_file_limit_end(&limit);
  if (s->lost[k] > 0 && sent < queue->n) supervisor_keep(s, k, s->error[k], &sent);
  if (sent > 0) lm_bytes_shift(queue, sent);
}

bool lm_supervisor_printed(lm_supervisor *s) {
  for (int k = 0; k < STREAMS; k++) supervisor_flush(s, k);
  return (s->queue[0].n == 0 || s->error[0]) && (s->queue[1].n == 0 || s->error[1]);
}

/* ---- events. Each function fills *out and returns true if it has an event of its kind. */

static bool next_signal(lm_supervisor *s, lm_supervisor_event *out) {
  unsigned char number;
  while (read(s->signals, &number, 1) == 1) {
    if (number == SIGCHLD) continue;
    *out = (lm_supervisor_event){.kind = LM_SUPERVISOR_SIGNAL, .signal = number};
    return true;
  }
  return false;
}

static bool next_closed(lm_supervisor *s, lm_supervisor_event *out) {
  for (int k = 0; k < STREAMS; k++) {
    if (!s->closed[k] || s->closed_reported[k]) continue;
    s->closed_reported[k] = true;
    *out = (lm_supervisor_event){.kind = LM_SUPERVISOR_CLOSED, .stream = k + 1};
    return true;
  }
  return false;
}

static bool read_stream(lm_supervisor *s, int i, int k, lm_supervisor_event *out) {
  child *c = &s->children[i];
  c->ready[k] = false;
  if (c->stream[k] < 0) return false;
  ssize_t n = read(c->stream[k], s->chunk, sizeof s->chunk);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  *out = (lm_supervisor_event){
      .kind = LM_SUPERVISOR_OUTPUT, .id = i + 1, .stream = k + 1, .text = s->chunk, .n = n > 0 ? (size_t)n : 0};
  if (n <= 0) {
    close(c->stream[k]);
    c->stream[k] = -1;
  }
  return true;
}

static bool crowded(const lm_supervisor *s) { return s->queue[0].n + s->queue[1].n > CROWDED; }

static bool next_ended(lm_supervisor *s, lm_supervisor_event *out) {
  for (int i = 0; i < s->n; i++) {
    child *c = &s->children[i];
    if (c->reported || !c->process.ended) continue;
    if (!crowded(s) && c->last_reads++ < STREAMS * LAST_READS) { /* the ended process's children may write forever */
      for (int k = 0; k < STREAMS; k++) {
        if (read_stream(s, i, k, out)) return true;
      }
    }
    c->reported = true;
    *out = (lm_supervisor_event){
        .kind = LM_SUPERVISOR_ENDED, .id = i + 1, .code = c->process.code, .signal = c->process.signal};
    lm_process_close(&c->process);
    return true;
  }
  return false;
}

static bool next_output(lm_supervisor *s, lm_supervisor_event *out) {
  for (int seen = 0; seen < s->n * STREAMS && !crowded(s); seen++) {
    int at = s->turn++ % (s->n * STREAMS);
    s->turn %= s->n * STREAMS;
    if (s->children[at / STREAMS].ready[at % STREAMS] && read_stream(s, at / STREAMS, at % STREAMS, out)) return true;
  }
  return false;
}

/* Waits for any descriptor; returns true if the watched one is readable. */
static bool wait_for_any(lm_supervisor *s, double seconds) {
  int n = 0;
  s->polled[n++] = (struct pollfd){.fd = s->signals, .events = POLLIN};
  s->polled[n++] = (struct pollfd){.fd = s->watched, .events = POLLIN};
  for (int k = 0; k < STREAMS; k++) {
    if (s->full[k] && seconds > retry_after) seconds = retry_after;
    if (s->queue[k].n > 0 && !s->full[k]) s->polled[n++] = (struct pollfd){.fd = s->out[k], .events = POLLOUT};
  }
  int first = n;
  for (int i = 0; i < s->n && !crowded(s); i++) {
    for (int k = 0; k < STREAMS; k++) {
      s->polled[n++] = (struct pollfd){.fd = s->children[i].stream[k], .events = POLLIN}; /* poll ignores -1 */
    }
  }
  if (poll(s->polled, (nfds_t)n, (int)(seconds * 1000) + 1) <= 0) return false;
  for (int i = first; i < n; i++) {
    if (s->polled[i].revents) s->children[(i - first) / STREAMS].ready[(i - first) % STREAMS] = true;
  }
  return s->polled[1].revents != 0;
}

void lm_supervisor_watch(lm_supervisor *s, int fd) { s->watched = fd; }

lm_status lm_supervisor_next(lm_supervisor *s, double seconds, lm_supervisor_event *out) {
  double deadline = lm_seconds() + seconds;
  *out = (lm_supervisor_event){.kind = LM_SUPERVISOR_NONE};
  lm_status status = supervisor_grow(s); /* allocates `polled` before the first start */
  while (status == LM_OK) {
    for (int k = 0; k < STREAMS; k++) supervisor_flush(s, k);
    supervisor_reap(s);
    if (next_signal(s, out) || next_closed(s, out) || next_ended(s, out) || next_output(s, out)) break;
    double left = seconds < 0 ? 60 : deadline - lm_seconds();
    if (left <= 0) break;
    if (wait_for_any(s, left < 60 ? left : 60)) {
      out->kind = LM_SUPERVISOR_READY;
      break;
    }
  }
  return status;
}

/* ---- resources that last as long as the supervisor */

static lm_status supervisor_hold(lm_supervisor *s, int fd) {
  if (s->nheld < MAX_HELD) {
    s->held[s->nheld++] = fd;
    return LM_OK;
  }
  close(fd);
  return lm_fail(LM_E_STATE, "process: a supervisor holds at most %d files and ports", MAX_HELD);
}

lm_status lm_supervisor_file(lm_supervisor *s, char *path, size_t capacity) {
  int fd = lm_fd_above_stdio(memfd_create("luminary", MFD_CLOEXEC));
  if (fd < 0) return lm_fail_cannot(LM_E_IO, "create a memory file", errno);
  snprintf(path, capacity, "/proc/%d/fd/%d", (int)getpid(), fd);
  return supervisor_hold(s, fd);
}

/* Binds without listening. With SO_REUSEADDR on both sides a server may still listen there, and the system does not
 * assign the port to programs that ask for any free one. */
lm_status lm_supervisor_port(lm_supervisor *s, int *port) {
  struct sockaddr_in address = {.sin_family = AF_INET};
  socklen_t n = sizeof address;
  int yes = 1, fd = lm_fd_above_stdio(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      bind(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
      getsockname(fd, (struct sockaddr *)&address, &n) != 0) {
    int error = errno;
    if (fd >= 0) close(fd);
    return lm_fail_cannot(LM_E_IO, "reserve a port", error);
  }
  *port = ntohs(address.sin_port);
  return supervisor_hold(s, fd);
}
