/* A failure, as ranks tell it to each other. The first one recorded by the store is the cause. */
#ifndef LM_STORE_FAILURE_H
#define LM_STORE_FAILURE_H

#include <stddef.h>

#include "base/bytes.h"

typedef enum lm_failure {
  LM_FAILURE_NONE,
  LM_FAILURE_ERROR,       /* a rank published an error: its script failed */
  LM_FAILURE_DIED,        /* the connection closed without a goodbye: killed, crashed */
  LM_FAILURE_FROZEN,      /* no heartbeat for heartbeat_timeout: stopped or unreachable */
  LM_FAILURE_MISMATCH,    /* ranks met in different calls */
  LM_FAILURE_ABSENT,      /* did not come to a collective before its timeout */
  LM_FAILURE_LEFT,        /* said goodbye while others still waited for it */
  LM_FAILURE_UNREACHABLE, /* the way between two ranks broke, though both live */
  LM_FAILURE_KINDS
} lm_failure;

enum { LM_RECORD_MESSAGE = 768 };

typedef struct lm_record {
  lm_failure kind;
  int rank;                        /* in the world: who failed; of a mismatch, who differs from the lowest rank */
  int told_by;                     /* who reported it; -1: the store */
  char host[64];                   /* of `rank` */
  char where[64];                  /* its script line, "" if unknown */
  char message[LM_RECORD_MESSAGE]; /* what it said, or a description; may be "" */
} lm_record;

LM_API void lm_put_record(lm_bytes *b, const lm_record *record);
LM_API void lm_get_record(lm_reader *r, lm_record *out); /* a bad kind is a failure of r */
/* One sentence: "rank 1 on host b failed at train.lua:12: boom". Always closed; returns out. */
LM_API const char *lm_record_text(const lm_record *record, char *out, size_t capacity);

#endif
