/* Writes queued messages to one link's socket and reads incoming ones. Only lm_wire_start allocates, and nothing
 * blocks; callers hold the transport's lock. */
#pragma once

#include "distributed/group/backend.h"

enum {
  LM_EAGER_MAX = 64 << 10,   /* bytes of the largest body sent unasked; the peer keeps it until its receive is posted */
  LM_EAGER_WINDOW = 4 << 20, /* most bytes of such messages that the peer has not consumed yet */
  LM_WIRE_BUFFER = 16 << 10, /* bytes of the read buffer, which holds many small messages */
};

typedef enum lm_wire_kind {
  LM_WIRE_EAGER = 1, /* data, sent without READY */
  LM_WIRE_OFFER,     /* announces data of that size; answered by READY */
  LM_WIRE_READY,     /* requests the data of an offer (id), or of one that has not come yet (id 0) */
  LM_WIRE_BODY,      /* data that READY requested */
  LM_WIRE_CREDIT,    /* only reports `consumed` */
  LM_WIRE_GOODBYE,   /* the link's last message */
  LM_WIRE_KINDS
} lm_wire_kind;

/* Head of every message, sent in memory layout: all ranks must run on machines of one architecture. */
typedef struct lm_wire_head {
  uint32_t magic, kind;
  lm_ticket ticket;
  uint64_t slot;     /* a collective's message number; the tag of a send or receive */
  uint64_t bytes;    /* size of the data, which follows in EAGER and BODY only */
  uint64_t id;       /* id of an offer, repeated in its READY and BODY */
  uint64_t consumed; /* eager bytes that the sender of this head has consumed so far */
} lm_wire_head;

typedef struct lm_wire_message { /* a message to write */
  lm_wire_head head;
  const char *body;
  size_t bytes; /* size of body */
  size_t done;  /* bytes written, head included */
  bool queued;
  struct lm_wire_message *next;
} lm_wire_message;

typedef enum lm_wire_state {
  LM_WIRE_NONE,
  LM_WIRE_CONNECTING,
  LM_WIRE_OPEN,
  LM_WIRE_LEFT,
  LM_WIRE_BROKEN
} lm_wire_state;

typedef struct lm_wire {
  int fd; /* closed only by lm_wire_close, so that it may be polled without the lock */
  lm_wire_state state;
  double left_at; /* lm_seconds() when the goodbye came */
  char how[96];   /* the reason why the link broke; "": none known */
  bool no_memory; /* true if this rank ran out of memory */
  uint64_t moved; /* bytes sent and received so far */

  lm_wire_message *first, **last;   /* queue of messages to write */
  char carry[sizeof(lm_wire_head)]; /* rest of a message's head that was cut, or a CREDIT or GOODBYE; sent first */
  size_t carry_at, carry_n;         /* offset and number of its bytes to write */
  bool leaving, said_goodbye;       /* goodbye requested after the queue; goodbye moved to carry */
  uint64_t spent, repaid;           /* eager bytes queued here; those that the peer has consumed */
  uint64_t consumed, reported;      /* the peer's eager bytes consumed here; those it was sent in a head */

  char *in; /* [LM_WIRE_BUFFER] */
  size_t in_at, in_n;
  bool dry;                             /* true if the last read emptied the socket */
  bool in_body;                         /* true between a head and the end of its data */
  lm_wire_head head;                    /* head of the message being read */
  char *into;                           /* address for the rest of its data; NULL: data is dropped */
  size_t left;                          /* number of bytes of that rest */
  bool ready;                           /* true if poll reported data to read */
  struct lm_request *receiving;         /* the receive whose data is arriving, or NULL; the transport's */
  struct lm_unmatched_message *storing; /* the unmatched message whose data is arriving, or NULL; the transport's */
} lm_wire;

/* Initializes a link without a socket; messages may be queued. */
void lm_wire_init(lm_wire *w);
lm_status lm_wire_start(lm_wire *w, int fd); /* takes fd over, even on error */
void lm_wire_break(lm_wire *w, const char *how);
void lm_wire_close(lm_wire *w);

void lm_wire_queue(lm_wire *w, lm_wire_message *out);
/* Writes until the socket is full. Returns the next message that is written completely; NULL: none for now. */
lm_wire_message *lm_wire_write(lm_wire *w);
/* Returns true if there is data to write, so that POLLOUT should be polled. */
bool lm_wire_has_more(const lm_wire *w);
/* Removes out from the queue, so that it may be freed. Breaks the link if a message with a body is partly written. */
void lm_wire_cut(lm_wire *w, lm_wire_message *out);
static inline uint64_t lm_wire_cost(uint64_t bytes) { return bytes + sizeof(lm_wire_head); }

typedef enum lm_wire_event {
  LM_WIRE_IDLE,    /* nothing to read for now, or the budget is used up */
  LM_WIRE_HEAD,    /* w->head has come; the caller sets w->into (NULL drops the data) and reads again */
  LM_WIRE_DATA_END /* the message's data is complete; follows every HEAD, also without data */
} lm_wire_event;
/* Reads until the next event. *budget: number of socket reads left, decremented. May set state LEFT or BROKEN. */
lm_wire_event lm_wire_read(lm_wire *w, int *budget);
