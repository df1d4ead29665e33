/* Connects the launchers of a job and passes messages between them, over authenticated connections. No function waits:
 * threads connect, and events report the result. One listener at most; used by one thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

typedef struct lm_node_links lm_node_links;

enum { LM_NODE_MESSAGE_MAX = 64 << 10 };

typedef enum lm_node_event_kind {
  LM_NODE_NONE,
  LM_NODE_OPENED,  /* link is connected, by us or by another launcher */
  LM_NODE_MESSAGE, /* link received a message: text, n */
  LM_NODE_CLOSED   /* link was closed by the other side, or could not be opened; text, n: the reason, or "" */
} lm_node_event_kind;

typedef struct lm_node_event {
  lm_node_event_kind kind;
  int link;
  const char *text; /* valid until the next call */
  size_t n;
} lm_node_event;

/* Creates a set of links. token: the job's secret, or NULL; job: its id. */
LM_API lm_status lm_node_links_new(const char *token, const char *job, lm_node_links **out);
LM_API void lm_node_links_free(lm_node_links *l);    /* l may be NULL */
LM_API int lm_node_links_fd(const lm_node_links *l); /* descriptor to poll; readable if there may be an event */
/* Listens at "host:port". *listens is false, without an error, if the host is another machine or the port is in use. */
LM_API lm_status lm_node_links_listen(lm_node_links *l, const char *address, bool *listens);
LM_API void lm_node_links_stop_listening(lm_node_links *l);
/* Starts to connect. `seconds` limits each address of the host and the handshake; resolving its name takes 5 s at most.
 * *link is a number from 1 that is never reused. */
LM_API lm_status lm_node_links_connect(lm_node_links *l, const char *address, double seconds, int *link);
/* Sends n bytes. A link whose buffer is full is closed, with an event; a link that is not open ignores the message. */
LM_API lm_status lm_node_links_send(lm_node_links *l, int link, const char *text, size_t n);
LM_API void lm_node_links_close(lm_node_links *l, int link); /* closes without an event */
LM_API lm_status lm_node_links_next(lm_node_links *l, lm_node_event *out);
