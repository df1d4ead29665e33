/* Implements the backend "gloo": collectives of CPU tensors between processes, on one or several hosts, by messages
 * over sockets (message_transport.c). */
#include "base/mem.h"
#include "distributed/group/group_core.h"
#include "distributed/group/host_collectives.h"
#include "distributed/group/message_transport.h"

typedef struct state {
  lm_transport *transport;
  lm_host *host;
} state;

static lm_transport *transport_of(const lm_group *g) { return ((state *)g->state)->transport; }

static lm_status gloo_run(lm_group *g, const lm_group_call *c) { return lm_host_run(((state *)g->state)->host, c); }

/* ---- messages, of collectives and of the script */

static lm_status gloo_post_bytes(lm_group *g, bool sending, int peer, int lane, char *data, size_t bytes,
                                 lm_request **out) {
  return lm_transport_post(transport_of(g), sending, peer, (uint64_t)lane, data, bytes, out);
}

static lm_status gloo_begin(lm_group *g) { return lm_transport_begin(transport_of(g)); }
static void gloo_end(lm_group *g) { lm_transport_end(transport_of(g)); }

static lm_status gloo_post(lm_group *g, bool sending, lm_tensor *t, int peer, int tag, lm_request **out) {
  return gloo_post_bytes(g, sending, peer, tag, t->data, lm_nbytes(t), out);
}

static lm_status gloo_wait(lm_group *g, lm_request *r) { return lm_transport_wait(transport_of(g), r); }

static lm_status gloo_finish(lm_group *g, lm_request *request, bool wait, bool *done, int *peer) {
  *done = true;
  lm_status status = wait ? gloo_wait(g, request) : lm_transport_test(transport_of(g), request, done);
  if (status != LM_OK) *done = false;
  if (*done) *peer = lm_transport_peer(request);
  return status;
}

static void gloo_forget(lm_group *g, lm_request *request) { lm_transport_forget(transport_of(g), request); }

/* ---- opening and closing */

static void gloo_close_group(lm_group *g) {
  state *s = g->state;
  if (!s) return;
  lm_transport_close(s->transport);
  lm_host_free(s->host);
  lm_free(s);
  g->state = NULL;
}

static lm_status gloo_open_group(lm_group *g) {
  static const lm_host_messages messages = {.tell_tickets = true,
                                            .begin = gloo_begin,
                                            .end = gloo_end,
                                            .post = gloo_post_bytes,
                                            .wait = gloo_wait,
                                            .forget = gloo_forget};
  state *s = g->state = lm_calloc(1, sizeof *s);
  if (!s) return LM_E_OOM;
  lm_status status = lm_host_new(g, &messages, &s->host);
  if (status == LM_OK) status = lm_transport_open(g, &s->transport);
  if (status != LM_OK) gloo_close_group(g);
  return status;
}

static lm_status gloo_test(lm_group *g) { return lm_transport_peek(transport_of(g)); }

const lm_group_table lm_group_gloo_table = {
    .abi = LM_GROUP_ABI,
    .name = "gloo",
    .kinds = 1u << LM_CPU,
    .collectives = LM_EVERY_COLLECTIVE,
    .may_share = true,
    .open = gloo_open_group,
    .close = gloo_close_group,
    .run = gloo_run,
    .post = gloo_post,
    .finish = gloo_finish,
    .forget = gloo_forget,
    .test = gloo_test,
};
