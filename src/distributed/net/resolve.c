/* Runs getaddrinfo, which has no timeout, on a separate thread; a caller whose deadline passes leaves the lookup to
 * that thread. */
#include "distributed/net/resolve.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/message.h"
#include "base/thread.h"

typedef struct lookup {
  _Atomic int holders;   /* references: the caller's and the thread's */
  _Atomic bool answered; /* true once code, error and found are set */
  int wakeup_fd;         /* readable once answered */
  int code, error;       /* getaddrinfo's, and its errno */
  struct addrinfo *found;
  char host[LM_ADDRESS_MAX], port[16];
} lookup;

static int resolve_ask(const char *host, const char *port, int flags, struct addrinfo **out) {
  struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | flags};
  return getaddrinfo(host, port, &hints, out);
}

static void resolve_let_go(lookup *l) {
  if (atomic_fetch_sub(&l->holders, 1) > 1) return;
  if (l->found) freeaddrinfo(l->found);
  close(l->wakeup_fd);
  lm_free(l);
}

/* Returns true for "localhost" and the own host name, which a container's resolver may not know. */
static bool is_this_host(const char *host) {
  char own[LM_ADDRESS_MAX];
  return strcmp(host, "localhost") == 0 || (gethostname(own, sizeof own) == 0 && strcmp(host, own) == 0);
}

static void *resolve_on_thread(void *ctx) {
  lookup *l = ctx;
  l->code = resolve_ask(l->host, l->port, 0, &l->found);
  if (l->code != 0 && is_this_host(l->host))
    l->code = resolve_ask(NULL, l->port, 0, &l->found); /* no host: the loopback */
  l->error = errno;
  if (l->code != 0) l->found = NULL;
  atomic_store(&l->answered, true);
  lm_wakeup_fd_signal(l->wakeup_fd);
  resolve_let_go(l);
  return NULL;
}

static lm_status fail_resolve(const char *host, int code, int error) {
  return lm_fail(LM_E_IO, "cannot resolve host '%s': %s", host,
                 code == EAI_SYSTEM ? strerror(error) : gai_strerror(code));
}

lm_status lm_net_resolve(const char *host, int port, const lm_deadline *p, struct addrinfo **out) {
  lm_status status = LM_OK;
  char text[16];
  *out = NULL;
  snprintf(text, sizeof text, "%d", port);
  int code = resolve_ask(host, text, AI_NUMERICHOST, out);
  if (code == 0) return LM_OK;
  if (code != EAI_NONAME) return fail_resolve(host, code, errno);
  if (strlen(host) >= LM_ADDRESS_MAX) return lm_fail(LM_E_ARG, "host name '%s' is too long", host);

  lookup *l = lm_calloc(1, sizeof *l);
  if (!l) return LM_E_OOM;
  l->wakeup_fd = lm_wakeup_fd_new();
  atomic_store(&l->holders, 2);
  snprintf(l->host, sizeof l->host, "%s", host);
  snprintf(l->port, sizeof l->port, "%s", text);
  status = l->wakeup_fd < 0 ? lm_fail_cannot(LM_E_IO, "create an event descriptor", errno)
                            : lm_thread_start_detached("lm-resolve", resolve_on_thread, l);
  if (status != LM_OK) {
    if (l->wakeup_fd >= 0) close(l->wakeup_fd);
    lm_free(l);
    return lm_fail_in(status, lm_text("cannot resolve host '%s'", host));
  }
  while (status == LM_OK && !atomic_load(&l->answered)) status = lm_net_await(l->wakeup_fd, POLLIN, p);
  if (status == LM_OK && l->code != 0) {
    status = fail_resolve(host, l->code, l->error);
  } else if (status == LM_OK) {
    *out = l->found;
    l->found = NULL;
  } else if (status == LM_E_IO) {
    char which[LM_ADDRESS_MAX + 40];
    snprintf(which, sizeof which, "cannot resolve host '%s'", host);
    lm_fail_in(status, which);
  }
  resolve_let_go(l);
  return status;
}
