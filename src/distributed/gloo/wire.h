/* The byte stream of one link: messages waiting to be written, and a reader that reports what comes in. Nothing here
 * blocks or allocates; whoever calls holds the engine's lock. */
#pragma once

#include "distributed/group/backend.h"

enum {
  LM_EAGER_MAX = 64 << 10,   /* bodies up to this size go at once and are kept by a receiver that is not there yet */
  LM_EAGER_WINDOW = 4 << 20, /* as long as what the receiver has not taken yet is below this much */
  LM_WIRE_BUFFER = 16 << 10, /* small messages are read many at a time */
};

typedef enum lm_wire_kind {
  LM_WIRE_EAGER = 1, /* data, unasked */
  LM_WIRE_OFFER,     /* there is data of that size; answered by READY */
  LM_WIRE_READY,     /* send it: answers an offer (id), or comes before it (id 0) */
  LM_WIRE_BODY,      /* data that were asked for */
  LM_WIRE_CREDIT,    /* nothing but `consumed` */
  LM_WIRE_GOODBYE,   /* nothing will follow */
  LM_WIRE_KINDS
} lm_wire_kind;

/* Starts every message, as it lies in memory: all ranks run on machines of one kind. */
typedef struct lm_wire_head {
  uint32_t magic, kind;
  lm_ticket ticket;
  uint64_t slot;     /* which message of a collective; the tag of a send or receive */
  uint64_t bytes;    /* of the data, which follow in EAGER and BODY alone */
  uint64_t id;       /* of an offer, repeated by what answers it */
  uint64_t consumed; /* eager bytes of the reader's that the writer has taken so far */
} lm_wire_head;

typedef struct lm_out { /* a message to write */
  lm_wire_head head;
  const char *body;
  size_t bytes; /* of body */
  size_t done;  /* written, the head included */
  bool queued;
  struct lm_out *next;
} lm_out;

typedef enum lm_wire_state {
  LM_WIRE_NONE,
  LM_WIRE_CONNECTING,
  LM_WIRE_OPEN,
  LM_WIRE_LEFT,
  LM_WIRE_BROKEN
} lm_wire_state;

typedef struct lm_wire {
  int fd; /* closed by lm_wire_close alone, so that it may be polled without the lock */
  lm_wire_state state;
  double left_at; /* lm_seconds() when the goodbye came */
  char how[96];   /* what broke it */
  bool no_memory; /* it was this rank's own lack of memory */
  uint64_t moved; /* bytes, either way: whether there was progress */

  lm_out *first, **last; /* to write */
  char carry[sizeof(lm_wire_head)];
  size_t carry_at, carry_n;    /* the rest of a head whose lm_out is gone, or a message without one: goes first */
  bool leaving, said_goodbye;  /* goodbye is requested once all is written; is on its way */
  uint64_t spent, repaid;      /* eager bytes queued here; of them taken by the peer */
  uint64_t consumed, reported; /* the peer's eager bytes taken here; what it knows of */

  char *in; /* [LM_WIRE_BUFFER] */
  size_t in_at, in_n;
  bool dry;                   /* the last read left nothing behind */
  bool in_body;               /* between head and the end of its data */
  lm_wire_head head;          /* of the message being read */
  char *into;                 /* where the rest of its data goes; NULL: nowhere */
  size_t left;                /* how much that is */
  bool ready;                 /* poll said there is something to read */
  struct lm_request *landing; /* the engine's: whose data are arriving */
  struct lm_kept *keeping;    /* or which message that nobody has asked for yet */
} lm_wire;

/* A link that waits for its socket; messages may be queued. */
void lm_wire_init(lm_wire *w);
lm_status lm_wire_start(lm_wire *w, int fd); /* fd is the wire's, even after an error */
void lm_wire_break(lm_wire *w, const char *how);
void lm_wire_close(lm_wire *w);

void lm_wire_queue(lm_wire *w, lm_out *out);
/* Writes what the socket takes. A message that has gone out whole, one a call; NULL when there is no more to do now. */
lm_out *lm_wire_write(lm_wire *w);
/* Whether POLLOUT is worth waiting for. */
bool lm_wire_has_more(const lm_wire *w);
/* Takes out back: nothing refers to it, or to its body, afterwards. Breaks the link if its body was under way. */
void lm_wire_cut(lm_wire *w, lm_out *out);
static inline uint64_t lm_wire_cost(uint64_t bytes) { return bytes + sizeof(lm_wire_head); }

typedef enum lm_wire_event {
  LM_WIRE_IDLE,  /* nothing more to read for now; or the budget is spent */
  LM_WIRE_HEAD,  /* w->head has come: set w->into (NULL drops the data), then read on */
  LM_WIRE_LANDED /* all of its data is there. Comes after every head, also one without data */
} lm_wire_event;
/* budget: reads from the socket left. Also changes the state to LEFT or BROKEN. */
lm_wire_event lm_wire_read(lm_wire *w, int *budget);
