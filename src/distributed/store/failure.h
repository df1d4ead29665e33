/* Defines failures as ranks report them to each other, in fields. The first one that the store records is the cause.
 * failure_text.h formats them as sentences. */
#pragma once

#include "base/bytes.h"
#include "distributed/store/ticket.h"

typedef enum lm_failure_kind {
  LM_FAILURE_NONE,
  LM_FAILURE_ERROR,       /* a rank published an error: its script failed */
  LM_FAILURE_DIED,        /* a rank's connection closed without a goodbye: killed, crashed */
  LM_FAILURE_FROZEN,      /* a rank sent no heartbeat for heartbeat_timeout: stopped or unreachable */
  LM_FAILURE_MISMATCH,    /* ranks made different calls */
  LM_FAILURE_ABSENT,      /* a rank did not reach a collective before its timeout */
  LM_FAILURE_LEFT,        /* a rank said goodbye while others still waited for it */
  LM_FAILURE_UNREACHABLE, /* the connection between two ranks broke, though both live */
  LM_FAILURE_KINDS
} lm_failure_kind;

/* A rank's state relative to lm_party.call. */
typedef enum lm_standing {
  LM_NOT_KNOWN, /* the party has no call */
  LM_NOT_JOINED,
  LM_NO_CALL, /* has not called any collective yet */
  LM_WAITS,   /* waits in the call */
  LM_CAME,    /* entered the call; may have returned */
  LM_LAST_IN, /* the call is the last one reported */
  LM_HAS_LEFT,
  LM_HAS_DIED, /* the call is the last one reported, or none */
  LM_SILENT,   /* sent no heartbeat for `seconds`, so that its calls are not known; the call is the last one reported */
  LM_STANDINGS
} lm_standing;

typedef struct lm_party { /* a rank and its current or last call */
  int rank;               /* rank in the world; -1: none */
  lm_standing standing;
  double seconds; /* seconds since the call's first report, or waited for an absent rank, or of silence; 0: unknown */
  char host[64];
  lm_ticket call; /* empty `what`: none */
} lm_party;

enum { LM_FAILURE_MESSAGE = 768 };

typedef struct lm_failure {
  lm_failure_kind kind;
  int reported_by; /* the reporting rank; -1: the store (a mismatch: most ranks contradict `who`) */
  lm_party who;    /* the rank that failed; for a mismatch, the one that differs from most, or from the lowest rank */
  lm_party other;  /* the rank that waited for it or made another call; rank -1: none */
  char where[64];  /* script line of `who`; "": unknown */
  char message[LM_FAILURE_MESSAGE]; /* error message or details; may be "" */
} lm_failure;

typedef struct lm_missing {
  int n;
  lm_party *party;   /* [n] by rank, but ranks that have not joined last */
  char refusal[512]; /* reason why the store last refused a rank; "": none was refused */
} lm_missing;

/* Returns a failure of that rank, without another party. */
lm_failure lm_failure_of(lm_failure_kind kind, int rank, const char *host, int reported_by);
/* Returns the kind of failure that a connection's errno means; 0: it was closed. */
lm_failure_kind lm_failure_kind_of(int code);

void lm_put_ticket(lm_bytes *b, const lm_ticket *t);
void lm_get_ticket(lm_reader *r, lm_ticket *out); /* zero-terminates the texts */
void lm_put_party(lm_bytes *b, const lm_party *party);
void lm_get_party(lm_reader *r, lm_party *out);
void lm_put_failure(lm_bytes *b, const lm_failure *failure);
void lm_get_failure(lm_reader *r, lm_failure *out); /* sets r->failed for an unknown kind */
/* Reads MISSING's reply; n = 0 if it lists more than `ranks` or is malformed. The caller frees *out. */
void lm_get_missing(lm_reader *r, int ranks, lm_missing *out);
void lm_missing_free(lm_missing *m); /* resets m to {0}, which is allowed too */
