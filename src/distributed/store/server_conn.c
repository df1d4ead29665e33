/* Moves the store's connections between lists, sends their messages, marks those that end, and stops accepting. */
#include "distributed/store/server_private.h"

static const double closing_time = 1; /* seconds for a closing connection to read its last messages */

void lm_conn_leave_list(lm_conn *c) {
  lm_conn_list *list = c->list;
  if (!list) return;
  *(c->prev ? &c->prev->next : &list->first) = c->next;
  *(c->next ? &c->next->prev : &list->last) = c->prev;
  c->prev = c->next = NULL;
  c->list = NULL;
  list->n--;
}

void lm_conn_move(lm_conn *c, lm_conn_list *list) {
  lm_conn_leave_list(c);
  c->prev = list->last;
  *(list->last ? &list->last->next : &list->first) = c;
  list->last = c;
  c->list = list;
  list->n++;
}

void lm_conn_drop(lm_server *s, lm_conn *c, lm_failure_kind as, const char *why) {
  if (c->gone) return;
  c->gone = true;
  c->as = as;
  c->why = why;
  lm_conn_move(c, &s->gone);
}

void lm_conn_no_memory(lm_server *s, lm_conn *c) { lm_conn_drop(s, c, LM_FAILURE_ERROR, "the store is out of memory"); }

void lm_conn_send(lm_server *s, lm_conn *c) {
  if (c->gone) return;
  lm_stream_send(&c->stream);
  if (c->stream.out.failed)
    lm_conn_no_memory(s, c);
  else if (lm_stream_unsent(&c->stream) > LM_UNSENT_MAX)
    lm_conn_drop(s, c, LM_FAILURE_FROZEN, "it does not read what the store sends");
}

void lm_conn_close_gently(lm_server *s, lm_conn *c) {
  c->state = LM_CONN_CLOSING;
  c->deadline = s->now + closing_time;
  c->rank = -1;
  lm_stream_drop_input(&c->stream);
  c->stream.ends = true;
  lm_conn_move(c, &s->closing);
  lm_conn_send(s, c);
}

void lm_server_stop_accepting(lm_server *s) {
  lm_acceptor_close(&s->acceptor);
  while (s->joining.first) lm_conn_drop(s, s->joining.first, LM_FAILURE_DIED, NULL);
}
