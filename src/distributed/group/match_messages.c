#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "distributed/group/message_transport_core.h"

void lm_transport_enlist(lm_request **list, lm_request *r) {
  LM_LINK_LAST(*list, r);
  r->listed = true;
}

void lm_transport_delist(lm_transport *e, lm_request *r) {
  if (!r->listed) return;
  LM_UNLINK(*(r->sending ? &e->offered : &e->posted), r);
  r->listed = false;
}

void lm_transport_finish(lm_transport *e, lm_request *r) {
  lm_transport_delist(e, r);
  r->done = true;
  e->finished = true;
}

static lm_unmatched_message *take_unmatched(lm_transport *e, lm_unmatched_message **at) {
  lm_unmatched_message *k = *at;
  *at = k->next;
  if (!k->next) e->last = at;
  return k;
}

/* ---- matching */

/* Returns true if a message and a request have the same seq and slot; their hashes and sizes may still differ. */
static bool match_meets(const lm_request *r, const lm_wire_head *h, int peer) {
  return (r->peer == peer || r->peer == -1) && r->out.head.slot == h->slot && r->out.head.ticket.seq == h->ticket.seq;
}

/* Returns true if a message conflicts with the current collective: an earlier seq, or its seq with another hash. */
static bool call_conflicts(const lm_transport *e, const lm_wire_head *h) {
  const lm_ticket *theirs = &h->ticket, *ours = &e->call;
  if (!theirs->seq || !ours->seq) return false;
  return theirs->seq < ours->seq || (theirs->seq == ours->seq && theirs->hash != ours->hash);
}

static void match_mismatch(lm_transport *e, int peer, const lm_ticket *theirs) {
  e->finished = true;
  if (e->mismatched) return;
  e->mismatched = true;
  e->mismatch_peer = peer;
  e->mismatch_call = *theirs;
}

/* Returns true if hash and size of a message equal r's; otherwise r (send, receive) or the collective fails. */
static bool require_same_call(lm_transport *e, lm_request *r, const lm_wire_head *h, int peer) {
  bool same = r->out.head.ticket.hash == h->ticket.hash;
  if (same && r->bytes == h->bytes) return true;
  lm_ticket theirs = h->ticket;
  if (same) { /* all_to_all: the hash does not cover the sizes, which only these two ranks know */
    uint64_t given = r->sending ? r->bytes : h->bytes, wanted = r->sending ? h->bytes : r->bytes;
    int n = (int)strcspn(theirs.what, " ");
    snprintf(theirs.what, sizeof theirs.what, "%.*s of %llu bytes instead of %llu", n < 16 ? n : 16, h->ticket.what,
             (unsigned long long)given, (unsigned long long)wanted);
  }
  if (theirs.seq) {
    match_mismatch(e, peer, &theirs);
  } else {
    r->spoiled = true;
    r->from = peer;
    r->theirs = theirs;
    lm_transport_finish(e, r);
  }
  return false;
}

static void match_set(lm_request *r, lm_wire_kind kind, bool data) {
  r->out.head.kind = kind;
  r->out.head.id = r->id;
  r->out.body = r->data;
  r->out.bytes = data ? r->bytes : 0;
}

void lm_transport_queue_message(lm_transport *e, int peer, lm_request *r, lm_wire_kind kind, bool data) {
  match_set(r, kind, data);
  lm_wire_queue(&e->wire[peer], &r->out);
}

void lm_transport_request_data(lm_transport *e, lm_request *r, int peer) {
  r->requested = true;
  lm_transport_queue_message(e, peer, r, LM_WIRE_READY, false);
}

/* Sends the data of r after a READY. If r's offer is still queued, the data replaces it there, since later messages
 * must not overtake it. If the offer was written, the data may come at any time. */
static void send_data(lm_transport *e, lm_request *r) {
  lm_transport_delist(e, r);
  if (r->out.queued && !r->out.done) {
    r->id = 0;
    match_set(r, LM_WIRE_BODY, true);
  } else {
    lm_wire_cut(&e->wire[r->peer], &r->out);
    lm_transport_queue_message(e, r->peer, r, LM_WIRE_BODY, true);
  }
}

/* Returns the receive for a message: by the offer's id for offered data, else the first unmatched one that fits. */
static lm_request *find_posted(lm_transport *e, const lm_wire_head *h, int peer) {
  bool offered = h->kind == LM_WIRE_BODY && h->id;
  for (lm_request *r = e->posted; r; r = r->next)
    if (offered ? r->from == peer && r->id == h->id : r->from < 0 && match_meets(r, h, peer)) return r;
  return NULL;
}

/* Returns the send that a READY requests: by the offer's id, or without one the first send above LM_EAGER_MAX. */
static lm_request *find_offered(lm_transport *e, const lm_wire_head *h, int peer) {
  for (lm_request *r = e->offered; r; r = r->next)
    if (h->id ? r->peer == peer && r->id == h->id : r->bytes > LM_EAGER_MAX && match_meets(r, h, peer)) return r;
  return NULL;
}

static void store_message(lm_transport *e, lm_wire *w, int peer) {
  lm_unmatched_message *k = lm_malloc(sizeof *k + w->left);
  if (!k) {
    w->no_memory = true;
    lm_wire_break(w, "the other side ran out of memory");
    return;
  }
  k->head = w->head;
  k->peer = peer;
  k->next = NULL;
  *e->last = k;
  e->last = &k->next;
  w->storing = k;
  w->into = k->data;
}

static void receive_into(lm_wire *w, lm_request *r, int peer) {
  r->from = peer;
  w->receiving = r;
  w->into = r->data;
}

void lm_transport_head_arrived(lm_transport *e, int peer) {
  lm_wire *w = &e->wire[peer];
  const lm_wire_head *h = &w->head;
  lm_request *r = NULL;
  w->receiving = NULL;
  w->storing = NULL;
  if (h->kind == LM_WIRE_CREDIT || h->kind == LM_WIRE_GOODBYE) return;
  if (call_conflicts(e, h)) {
    match_mismatch(e, peer, &h->ticket);
    return;
  }
  switch ((lm_wire_kind)h->kind) {
    case LM_WIRE_EAGER:
      r = find_posted(e, h, peer);
      if (!r) {
        store_message(e, w, peer);
        return;
      }
      w->consumed += lm_wire_cost(h->bytes);
      if (require_same_call(e, r, h, peer)) receive_into(w, r, peer);
      return;
    case LM_WIRE_OFFER:
      r = find_posted(e, h, peer);
      if (!r) {
        store_message(e, w, peer);
      } else if (require_same_call(e, r, h, peer)) {
        r->id = h->id;
        r->from = peer;
        if (!r->requested) lm_transport_request_data(e, r, peer);
      }
      return;
    case LM_WIRE_READY:
      r = find_offered(e, h, peer);
      if (!r && !h->id) store_message(e, w, peer);
      if (r && require_same_call(e, r, h, peer)) send_data(e, r);
      return;
    case LM_WIRE_BODY: /* the data is dropped if its receive was forgotten */
      r = find_posted(e, h, peer);
      if (r && require_same_call(e, r, h, peer)) receive_into(w, r, peer);
      return;
    default: return;
  }
}

void lm_transport_data_arrived(lm_transport *e, int peer) {
  lm_wire *w = &e->wire[peer];
  if (w->receiving) lm_transport_finish(e, w->receiving);
  w->receiving = NULL;
  w->storing = NULL;
}

bool lm_transport_match_receive(lm_transport *e, lm_request *r) {
  for (lm_unmatched_message **at = &e->unmatched; *at; at = &(*at)->next) {
    const lm_wire_head *h = &(*at)->head;
    if (h->kind == LM_WIRE_READY || !match_meets(r, h, (*at)->peer)) continue;
    lm_unmatched_message *k = take_unmatched(e, at);
    lm_wire *w = &e->wire[k->peer];
    size_t left = w->storing == k ? w->left : 0;
    if (w->storing == k) w->storing = NULL, w->into = NULL;
    if (h->kind == LM_WIRE_EAGER) w->consumed += lm_wire_cost(h->bytes);
    if (!require_same_call(e, r, h, k->peer)) {
      lm_free(k);
      return true;
    }
    r->from = k->peer;
    if (h->kind == LM_WIRE_OFFER) {
      r->id = h->id;
      lm_transport_enlist(&e->posted, r);
      lm_transport_request_data(e, r, k->peer);
    } else {
      if (r->bytes > left) memcpy(r->data, k->data, r->bytes - left);
      if (left) { /* the rest is read directly into r's data */
        w->receiving = r;
        w->into = r->data + (r->bytes - left);
      } else {
        lm_transport_finish(e, r);
      }
    }
    lm_free(k);
    return true;
  }
  return false;
}

bool lm_transport_match_send(lm_transport *e, lm_request *r) {
  if (r->bytes <= LM_EAGER_MAX) return false;
  for (lm_unmatched_message **at = &e->unmatched; *at; at = &(*at)->next) {
    const lm_wire_head *h = &(*at)->head;
    if (h->kind != LM_WIRE_READY || !match_meets(r, h, (*at)->peer)) continue;
    lm_unmatched_message *k = take_unmatched(e, at);
    if (require_same_call(e, r, h, k->peer)) lm_transport_queue_message(e, r->peer, r, LM_WIRE_BODY, true);
    lm_free(k);
    return true;
  }
  return false;
}

void lm_transport_find_mismatch(lm_transport *e) {
  e->mismatched = false;
  for (const lm_unmatched_message *k = e->unmatched; k; k = k->next)
    if (call_conflicts(e, &k->head)) match_mismatch(e, k->peer, &k->head.ticket);
}

void lm_transport_drop_unmatched(lm_transport *e) {
  while (e->unmatched) lm_free(take_unmatched(e, &e->unmatched));
}
