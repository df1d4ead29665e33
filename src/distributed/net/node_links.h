/* Links between the launchers of a job: whole messages over authenticated connections, one listener at most. Nothing
 * here waits: a thread connects, and events say how that ended. One thread uses it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

typedef struct lm_node_links lm_node_links;

enum { LM_NODE_MESSAGE_MAX = 64 << 10 };

typedef enum lm_node_event_kind {
  LM_NODE_NONE,
  LM_NODE_OPENED,  /* link: one of ours connected, or another launcher's came */
  LM_NODE_MESSAGE, /* link, text, n */
  LM_NODE_CLOSED   /* link: by the other side, or it could not be opened; text, n: why, or "" */
} lm_node_event_kind;

typedef struct lm_node_event {
  lm_node_event_kind kind;
  int link;
  const char *text; /* valid until the next call */
  size_t n;
} lm_node_event;

/* token: the job's secret, or NULL; job: its id. */
LM_API lm_status lm_node_links_new(const char *token, const char *job, lm_node_links **out);
LM_API void lm_node_links_free(lm_node_links *l);    /* NULL is fine */
LM_API int lm_node_links_fd(const lm_node_links *l); /* readable if there may be an event */
/* Listens at "host:port". *listens is false, without an error, if the host is another machine or the port in use. */
LM_API lm_status lm_node_links_listen(lm_node_links *l, const char *address, bool *listens);
LM_API void lm_node_links_stop_listening(lm_node_links *l);
/* seconds: for each address of the host, and for the handshake; its name may take 5 s to look up. *link counts from 1,
 * and is never used again. */
LM_API lm_status lm_node_links_connect(lm_node_links *l, const char *address, double seconds, int *link);
/* A link that cannot take it is closed, with its event. One that is closed already takes nothing. */
LM_API lm_status lm_node_links_send(lm_node_links *l, int link, const char *text, size_t n);
LM_API void lm_node_links_close(lm_node_links *l, int link); /* without an event */
LM_API lm_status lm_node_links_next(lm_node_links *l, lm_node_event *out);
