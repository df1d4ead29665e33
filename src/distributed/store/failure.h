/* A failure, as ranks report it to each other: what happened to which rank, in fields. The first one recorded by the
 * store is the cause. failure_text.h makes sentences of it. */
#pragma once

#include "base/bytes.h"
#include "distributed/store/ticket.h"

typedef enum lm_failure_kind {
  LM_FAILURE_NONE,
  LM_FAILURE_ERROR,       /* a rank published an error: its script failed */
  LM_FAILURE_DIED,        /* the connection closed without a goodbye: killed, crashed */
  LM_FAILURE_FROZEN,      /* no heartbeat for heartbeat_timeout: stopped or unreachable */
  LM_FAILURE_MISMATCH,    /* ranks made different calls */
  LM_FAILURE_ABSENT,      /* did not reach a collective before its timeout */
  LM_FAILURE_LEFT,        /* said goodbye while others still waited for it */
  LM_FAILURE_UNREACHABLE, /* the connection between two ranks broke, though both live */
  LM_FAILURE_KINDS
} lm_failure_kind;

/* Where a rank is, relative to the reported call. */
typedef enum lm_standing {
  LM_NOT_KNOWN, /* no call is given */
  LM_NOT_JOINED,
  LM_NO_CALL, /* has not called any collective yet */
  LM_WAITS,   /* in it now */
  LM_CAME,    /* called it; has perhaps returned */
  LM_LAST_IN, /* the last one heard of */
  LM_HAS_LEFT,
  LM_HAS_DIED, /* the call: as above; may be none */
  LM_STANDINGS
} lm_standing;

typedef struct lm_party { /* a rank, and where it is */
  int rank;               /* in the world; -1: nobody */
  lm_standing standing;
  double seconds; /* since when it is there, or has waited; 0 if not given */
  char host[64];
  lm_ticket call; /* no words: none */
} lm_party;

enum { LM_FAILURE_MESSAGE = 768 };

typedef struct lm_failure {
  lm_failure_kind kind;
  int reported_by; /* who reported it; -1: the store, which of a mismatch knows that most ranks contradict `who` */
  lm_party who;    /* who failed; of a mismatch, who differs from most, or from the lowest rank */
  lm_party other;  /* whose waiting or call shows it, as far as that matters */
  char where[64];  /* the script line of `who`, "" if unknown */
  char message[LM_FAILURE_MESSAGE]; /* what it said; may be "" */
} lm_failure;

typedef struct lm_missing {
  int n;
  lm_party *party;   /* [n] each with where it is; those that have not joined last, the rest by rank */
  char refusal[512]; /* why the store refused a rank that wanted to join; "" if it did not */
} lm_missing;

/* A failure of that rank, without another party. */
lm_failure lm_failure_of(lm_failure_kind kind, int rank, const char *host, int reported_by);

void lm_put_ticket(lm_bytes *b, const lm_ticket *t);
void lm_get_ticket(lm_reader *r, lm_ticket *out); /* texts get their closing zero */
void lm_put_party(lm_bytes *b, const lm_party *party);
void lm_get_party(lm_reader *r, lm_party *out);
void lm_put_failure(lm_bytes *b, const lm_failure *failure);
void lm_get_failure(lm_reader *r, lm_failure *out); /* an unknown kind is a failure of r */
/* REPLY's fields; nobody if there are more than `ranks`, or if they make no sense. */
void lm_get_missing(lm_reader *r, int ranks, lm_missing *out);
void lm_missing_free(lm_missing *m); /* leaves it empty; {0} is fine */
