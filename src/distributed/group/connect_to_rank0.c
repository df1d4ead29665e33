/* Runs the rendezvous of a job's ranks: rank 0 starts the store, all ranks join it, and it welcomes them once the last
 * has joined. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "distributed/group/world_core.h"
#include "distributed/net/interface.h"
#include "distributed/store/failure_text.h"
#include "distributed/store/sigterm.h"

static const double first_pause = 0.005, longest_pause = 0.1, handshake_time = 10, port_time = 5, foreign_time = 5;

typedef struct opening {
  lm_world *w;
  const lm_world_config *config;
  const char *job;
  bool warned, joining; /* joining: true while this rank waits for the store's welcome */
  double since;
  lm_deadline deadline;
  char host[64];
  char why[512];          /* the last attempt's error; "": none */
  char missing[768];      /* the ranks that had not joined at the store's last answer; "": no answer yet */
  char foreign_nonce[40]; /* the nonce of a published store of another job */
  double foreign_since;   /* lm_seconds() when that nonce was first seen */
} opening;

/* ---- waiting */

/* Describes what this rank waits for. */
static void waits_for(opening *o, char *out, size_t capacity) {
  lm_missing missing = {0};
  if (o->joining) lm_client_missing(o->w->client, 0, 0, 0, NULL, 0.3, &missing);
  if (missing.n > 0) lm_missing_text(&missing, o->missing, sizeof o->missing);
  lm_missing_free(&missing);
  if (o->joining && o->missing[0]) { /* maybe an earlier answer, if rank 0 and its store just left */
    snprintf(out, capacity, "%s", o->missing);
  } else if (o->joining) {
    snprintf(out, capacity, "not all ranks have joined");
  } else if (o->w->rank == 0 && !o->w->server) {
    snprintf(out, capacity, "cannot start the store: %s; is another rank 0 of this job running?", o->why);
  } else if (o->w->locator.by != LM_BY_ADDRESS && !o->w->at.address[0]) {
    snprintf(out, capacity, "rank 0 has not published its address yet%s%s%s", *o->why ? " (" : "", o->why,
             *o->why ? ")" : "");
  } else {
    snprintf(out, capacity, "cannot reach the store of rank 0 at %s%s%s%s", o->w->at.address, *o->why ? " (" : "",
             o->why, *o->why ? ")" : "");
  }
}

static lm_status rendezvous_check(void *ctx) {
  opening *o = ctx;
  double now = lm_seconds(), timeout = o->config->timeout;
  char what[1024];
  if (lm_sigterm_asked()) {
    waits_for(o, what, sizeof what);
    return lm_fail(LM_E_STATE, "stopped by SIGTERM while waiting for the other ranks: %s", what);
  }
  if (now >= o->deadline.deadline) {
    waits_for(o, what, sizeof what);
    return lm_fail(LM_E_STATE, "timed out after %g s: %s", timeout, what);
  }
  if (!o->warned && now - o->since > timeout / 2) {
    o->warned = true;
    waits_for(o, what, sizeof what);
    fprintf(stderr, "luminary: rank %d on %s has waited for %.3g s in init_process_group; %s\n", o->w->rank, o->host,
            now - o->since, what);
  }
  return LM_OK;
}

static lm_status rendezvous_pause_for(opening *o, double *pause) {
  usleep((useconds_t)(*pause * 1e6));
  *pause = fmin(2 * *pause, longest_pause);
  return rendezvous_check(o);
}

/* ---- rank 0 */

static lm_status start_store(opening *o) {
  lm_status status = LM_OK;
  const lm_world_config *config = o->config;
  bool by_address = o->w->locator.by == LM_BY_ADDRESS;
  if (!by_address) lm_random_hex(o->w->at.nonce, 16);
  NEED(lm_locator_key(&o->w->locator, &o->w->at, config->token, o->job, &o->w->key));
  char host[LM_ADDRESS_MAX];
  NEED(lm_locator_host(&o->w->locator, host, &o->deadline));
  lm_server_config server = {.host = host,
                             .port = o->w->locator.port,
                             .size = config->size,
                             .generation = config->generation,
                             .key = o->w->key,
                             .heartbeat_timeout = config->heartbeat_timeout};
  /* Our former store, or the last job's, may still hold the port for a moment. */
  double pause = first_pause, until = config->generation > 0 ? INFINITY : o->since + port_time;
  while ((status = lm_server_start(&server, &o->w->server)) == LM_E_IO && by_address && lm_seconds() < until) {
    lm_write(o->why, sizeof o->why, "%s", lm_error());
    NEED(rendezvous_pause_for(o, &pause));
  }
  if (status != LM_OK) return status;
  o->why[0] = 0;
  snprintf(o->w->at.address, sizeof o->w->at.address, "%s", lm_server_address(o->w->server));
  pause = first_pause;
  until = o->w->locator.by == LM_BY_FILE ? lm_seconds() + port_time : 0; /* its file may still be locked */
  while ((status = lm_locator_publish(&o->w->locator, &o->w->at, &o->deadline)) == LM_E_STATE && lm_seconds() < until)
    NEED(rendezvous_pause_for(o, &pause));

  return status;
}

/* ---- every rank */

/* Connects to the store and authenticates; *out is the socket. On error, *again is true if a retry makes sense. */
static lm_status rendezvous_reach(opening *o, int *out, bool *again) {
  lm_status status = LM_OK;
  lm_world *w = o->w;
  bool known = o->w->locator.by == LM_BY_ADDRESS || w->rank == 0;
  int fd = -1;
  *again = true;
  if (w->rank > 0) {
    TRY(lm_locator_find(&o->w->locator, o->config->token, &o->w->at, &o->deadline));
    TRY(lm_locator_key(&o->w->locator, &o->w->at, o->config->token, o->job, &w->key));
  }
  TRY(lm_net_connect(o->w->at.address, &o->deadline, &fd));
  lm_net_tune(fd, w->heartbeat_timeout);
  lm_deadline handshake = o->deadline;
  handshake.deadline = fmin(handshake.deadline, lm_seconds() + handshake_time);
  status = lm_auth_connect(fd, &w->key, NULL, 0, &handshake);
  if (status == LM_E_STATE && !lm_sigterm_asked() && lm_seconds() < o->deadline.deadline) {
    char which[LM_ADDRESS_MAX + 32];
    snprintf(which, sizeof which, "the store at %s", o->w->at.address);
    lm_fail_in(status, which);
  }
  if (status == LM_E_STATE && !known) {
    /* The address may be left over from another job, which rank 0 replaces soon; if not, the token is wrong. */
    if (strcmp(o->foreign_nonce, o->w->at.nonce) != 0) o->foreign_since = lm_seconds();
    snprintf(o->foreign_nonce, sizeof o->foreign_nonce, "%s", o->w->at.nonce);
    *again = lm_seconds() - o->foreign_since < foreign_time;
  }

done:
  *again = *again && (status == LM_E_IO || (status == LM_E_STATE && !known && o->foreign_nonce[0]));
  if (status == LM_OK) {
    *out = fd;
  } else if (fd >= 0) {
    close(fd);
  }
  return status;
}

static lm_status rendezvous_join(opening *o, int fd, bool *again) {
  lm_status status = LM_OK;
  lm_world *w = o->w;
  char own[LM_ADDRESS_MAX];
  *again = false;
  if (!w->incoming.key) {
    status = lm_net_configured_host(fd, o->w->at.address, own);
    if (status == LM_OK) status = lm_link_listener_open(&w->incoming, own, &w->key, w->size, w->heartbeat_timeout);
    if (status != LM_OK) {
      close(fd);
      goto done;
    }
  }
  lm_client_config config = {.rank = w->rank,
                             .size = w->size,
                             .generation = o->config->generation,
                             .heartbeat_timeout = w->heartbeat_timeout,
                             .incoming = &w->incoming};
  lm_member *self = &config.self;
  snprintf(self->host, sizeof self->host, "%s", o->host);
  lm_net_host_id(self->host_id);
  memcpy(self->unix_address, w->incoming.unix_address, sizeof self->unix_address);
  memcpy(self->tcp_address, w->incoming.tcp_address, sizeof self->tcp_address);
  if (o->config->offers_nccl) lm_world_gpu_ids(&self->gpu_ids);
  TRY(lm_client_open(&config, fd, &w->client));
  o->joining = true;
  status = lm_client_welcome(w->client, &o->deadline, again);
  o->joining = false;

done:
  if (status != LM_OK && w->client) {
    lm_failure failure = lm_failure_of(LM_FAILURE_ERROR, w->rank, o->host, w->rank);
    lm_write(failure.message, sizeof failure.message, "%s", lm_error());
    if (!*again) lm_client_fail(w->client, &failure, 0.2);
    lm_client_free(w->client);
    w->client = NULL;
    lm_link_listener_close(&w->incoming); /* the next attempt listens again */
    lm_fail(status, "%s", failure.message);
  }
  return status;
}

static lm_status rendezvous_enter(opening *o) {
  lm_status status;
  double pause = first_pause;
  bool again;
  for (;;) {
    int fd;
    status = rendezvous_reach(o, &fd, &again);
    if (status == LM_OK) status = rendezvous_join(o, fd, &again);
    if (status == LM_OK || !again) return status;
    if (strcmp(o->why, lm_error()) != 0) lm_log(LM_LOG_DIST, "rank %d: %s", o->w->rank, lm_error());
    lm_write(o->why, sizeof o->why, "%s", lm_error());
    status = rendezvous_pause_for(o, &pause);
    if (status != LM_OK) return status;
  }
}

lm_status lm_rendezvous(lm_world *w, const lm_world_config *config) {
  opening o = {.w = w, .config = config, .since = lm_seconds()};
  o.job = config->job && *config->job ? config->job : config->init_method;
  o.deadline =
      (lm_deadline){.deadline = o.since + config->timeout, .wake_fd = -1, .check = rendezvous_check, .ctx = &o};
  gethostname(o.host, sizeof o.host - 1);
  char chosen[LM_ADDRESS_MAX];
  NEED(lm_net_chosen_host("", chosen)); /* reports an error in the variable at once */
  NEED(lm_locator_parse(config->init_method, config->generation, &w->locator));
  if (w->rank == 0) NEED(start_store(&o));
  NEED(rendezvous_enter(&o));

  return LM_OK;
}
