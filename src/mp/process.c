#include "mp/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/mem.h"
#include "base/message.h"

/* ---- starting */

enum { STANDARD = 3, POSITIONS = 4, ASIDE = 10 };

typedef struct child_data { /* the data the child needs, prepared before vfork */
  const lm_process_plan *plan;
  char *const *env;
  pid_t parent;
  int report;  /* pipe for the child's errno; closed by exec */
  int highest; /* no descriptor above it is open */
} child_data;

static _Noreturn void report_error(int report) {
  int error = errno;
  while (write(report, &error, sizeof error) < 0 && errno == EINTR) {}
  _exit(127);
}

/* Duplicates fd above the child's descriptors; opens /dev/null instead for a stream that is closed here too. */
static int copy_aside(int fd, int number) {
  int copy = fd < 0 ? -1 : lm_fd_copy(fd, ASIDE);
  bool closed = fd < 0 || (copy < 0 && fd == number && errno == EBADF);
  if (!closed) return copy;
  int null = lm_fd_above_stdio(open("/dev/null", O_RDWR | O_CLOEXEC));
  return null < 0 ? -1 : lm_fd_copy(null, ASIDE);
}

/* Installs descriptors 0 to 3 as planned and closes all others on exec. Moves them away first, so that none is
 * overwritten before use. */
static bool install_descriptors(const lm_process_plan *plan, int highest) {
  int from[POSITIONS] = {plan->in, plan->out < 0 ? 1 : plan->out, plan->err < 0 ? 2 : plan->err, plan->extra};
  int n = plan->extra >= 0 ? POSITIONS : STANDARD;
  for (int i = 0; i < n; i++) {
    if ((from[i] = copy_aside(from[i], i)) < 0) return false;
  }
  for (int i = 0; i < n; i++) {
    if (dup2(from[i], i) < 0) return false;
  }
#if defined(SYS_close_range) && defined(CLOSE_RANGE_CLOEXEC)
  if (syscall(SYS_close_range, n, ~0U, CLOSE_RANGE_CLOEXEC) == 0) return true;
#endif
  for (int fd = n; fd <= highest; fd++) fcntl(fd, F_SETFD, FD_CLOEXEC);
  return true;
}

/* Runs in the child, which shares the parent's memory until exec: makes only system calls and writes nothing. Resets
 * all handlers before it unblocks signals, since the parent's must not run here. */
static _Noreturn void run_child(const child_data *b) {
  const lm_process_plan *plan = b->plan;
  int report = lm_fd_copy(b->report, ASIDE);
  if (report < 0) _exit(127);
  if (!plan->outlives) {
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) report_error(report);
    if (getppid() != b->parent) _exit(127); /* the parent died before prctl */
  }
  if (plan->session) setsid();
  if (!install_descriptors(plan, b->highest)) report_error(report);
  for (int s = 1; s < NSIG; s++) {
    struct sigaction action = {0};
    bool keep = s == SIGHUP && sigaction(s, NULL, &action) == 0 && action.sa_handler == SIG_IGN; /* set by nohup */
    action = (struct sigaction){.sa_handler = SIG_DFL};
    if (!keep) sigaction(s, &action, NULL);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  execve(plan->argv[0], (char *const *)plan->argv, b->env);
  report_error(report);
}

/* Uses vfork, since fork copies page tables, gigabytes of them in a trainer, and runs other libraries' handlers. */
__attribute__((noinline)) static pid_t fork_child(const child_data *b) {
  pid_t pid = vfork();
  if (pid == 0) run_child(b);
  return pid;
}

static int highest_descriptor(void) {
  enum { MAX_STANDARD = 65536 };
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > MAX_STANDARD) return MAX_STANDARD - 1;
  return (int)limit.rlim_cur - 1;
}

lm_status lm_process_start(const lm_process_plan *plan, lm_process *out) {
  extern char **environ;
  int report[2], error = 0;
  *out = (lm_process){.pidfd = -1};
  if (lm_fds_above_stdio(pipe2(report, O_CLOEXEC), report) != 0) return lm_fail_cannot(LM_E_IO, "create a pipe", errno);
  child_data b = {plan, plan->env ? plan->env : environ, getpid(), report[1], highest_descriptor()};
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pid_t pid = fork_child(&b);
  if (pid < 0) error = errno;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  close(report[1]);
  if (pid > 0) {
    ssize_t n;
    while ((n = read(report[0], &error, sizeof error)) < 0 && errno == EINTR) {}
    if (n != (ssize_t)sizeof error) error = 0;
  }
  close(report[0]);
  if (error != 0) {
    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR) {}
    return lm_fail_cannot(LM_E_IO, lm_text("start '%s'", plan->argv[0]), error);
  }
  out->pid = pid;
  out->session = plan->session;
#ifdef SYS_pidfd_open
  out->pidfd = lm_fd_above_stdio((int)syscall(SYS_pidfd_open, pid, 0)); /* close-on-exec by default */
#endif
  return LM_OK;
}

/* ---- waiting, signals */

void lm_process_set_ended(lm_process *p, int status) {
  p->ended = true;
  p->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  p->code = p->signal ? 128 + p->signal : WEXITSTATUS(status);
}

lm_status lm_process_wait(lm_process *p, double seconds) {
  double deadline = seconds < 0 ? 0 : lm_seconds() + seconds;
  while (!p->ended && p->pid > 0) {
    int status = 0;
    pid_t got = waitpid(p->pid, &status, WNOHANG);
    if (got == p->pid) {
      lm_process_set_ended(p, status);
      break;
    }
    if (got < 0 && errno != EINTR) { /* reaped elsewhere; that code has its status */
      return lm_fail(LM_E_STATE, "process %d is no longer a child of this process", (int)p->pid);
    }
    double left = seconds < 0 ? 1 : deadline - lm_seconds();
    if (left <= 0) break;
    struct pollfd fd = {.fd = p->pidfd, .events = POLLIN};
    double most = p->pidfd >= 0 ? 1 : 0.01;
    poll(&fd, 1, (int)((left < most ? left : most) * 1000) + 1);
  }
  return LM_OK;
}

void lm_process_signal(const lm_process *p, int signal) {
  if (p->pid > 0 && !p->ended) kill(p->session ? -p->pid : p->pid, signal);
}

void lm_process_close(lm_process *p) {
  if (p->pid > 0 && !p->ended) {
    lm_process_signal(p, SIGKILL);
    lm_process_wait(p, 5); /* takes longer only if the kernel itself is stuck */
  }
  if (p->pid > 0 && p->pidfd >= 0) close(p->pidfd);
  *p = (lm_process){.pidfd = -1};
}

/* ---- environment, program path, signal names */

static size_t name_length(const char *entry) { return strcspn(entry, "="); }

lm_status lm_process_env(int n, const char *const *changes, char ***out) {
  extern char **environ;
  int count = 0;
  size_t bytes = 0;
  *out = NULL;
  while (environ && environ[count]) bytes += strlen(environ[count++]) + 1;
  for (int i = 0; i < n; i++) bytes += strlen(changes[i]) + 1;
  size_t pointers = (size_t)(count + n + 1) * sizeof(char *);
  char **list = lm_malloc(pointers + bytes);
  if (!list) return LM_E_OOM;
  char *text = (char *)list + pointers;
  int used = 0;
  for (int i = 0; i < count + n; i++) {
    const char *entry = i < count ? environ[i] : changes[i - count];
    size_t name = name_length(entry);
    bool dropped = entry[name] != '=';
    for (int k = i < count ? 0 : i - count + 1; k < n && !dropped; k++) { /* a later change of the same name wins */
      dropped = name_length(changes[k]) == name && strncmp(changes[k], entry, name) == 0;
    }
    if (dropped) continue;
    list[used++] = strcpy(text, entry);
    text += strlen(entry) + 1;
  }
  list[used] = NULL;
  *out = list;
  return LM_OK;
}

lm_status lm_process_self(char *out, size_t capacity) {
  ssize_t n = readlink("/proc/self/exe", out, capacity - 1);
  if (n < 0) return lm_fail_cannot(LM_E_IO, "read '/proc/self/exe'", errno);
  out[n] = 0;
  return LM_OK;
}

const char *lm_signal_name(int signal) {
  static _Thread_local char text[24];
  const char *name = sigabbrev_np(signal);
  if (name)
    snprintf(text, sizeof text, "SIG%s", name);
  else
    snprintf(text, sizeof text, "signal %d", signal);
  return text;
}
