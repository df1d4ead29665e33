/* Runs sends and receives. A script's send announces its ticket under the script's tag; its data follows under another
 * tag, which the announcement contains. So a receiver can compare tickets before data arrives, and messages of one tag
 * match their receives in order, however late these are tested. A collective's messages need none, since the ranks have
 * compared tickets; their lanes are the lowest tags. */
#include <pthread.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/message.h"
#include "distributed/mpi/mpi_backend.h"

static const double SPIN = 100e-6; /* seconds of busy waiting for the announcement */

typedef struct announcement {
  lm_ticket ticket;
  uint64_t bytes;
  int32_t tag; /* tag of the data, from LM_HOST_LANES */
  int32_t zero;
} announcement;

struct lm_request {
  lm_request *next;
  bool sending, announced, done;
  bool differs; /* true if another ticket or size was announced */
  int code;     /* MPI's code of the first call that failed */
  int peer;     /* -1 until known */
  lm_tensor *t; /* kept alive; NULL for a collective's message */
  char *data;
  size_t bytes;
  lm_ticket ticket;
  announcement head;
  MPI_Request announcing;
  int pieces;
  MPI_Request carrying[]; /* [pieces] */
};

struct lm_mpi_messages {
  pthread_mutex_t lock;
  lm_request *first; /* unfinished requests; testing one drives all */
  int32_t sent[];    /* [size] the last data tag used for each peer */
};

lm_status lm_mpi_messages_open(lm_group *g, lm_mpi_messages **out) {
  lm_mpi_messages *m = *out = lm_calloc(1, sizeof *m + (size_t)g->size * sizeof *m->sent);
  if (!m) return LM_E_OOM;
  pthread_mutex_init(&m->lock, NULL);
  return LM_OK;
}

void lm_mpi_messages_close(lm_mpi_messages *m) {
  if (m) pthread_mutex_destroy(&m->lock);
  lm_free(m);
}

/* ---- functions called with the lock held, and MPI entered */

/* Starts to send or receive r's data, in pieces. */
static int messages_carry(lm_mpi_state *s, lm_request *r) {
  int code = MPI_SUCCESS;
  for (int i = 0; i < r->pieces && code == MPI_SUCCESS; i++) {
    size_t at = (size_t)i * LM_MPI_PIECE, left = r->bytes - at;
    int n = left < LM_MPI_PIECE ? (int)left : LM_MPI_PIECE;
    char *data = r->data + at;
    code = r->sending ? MPI_Isend(data, n, MPI_BYTE, r->peer, r->head.tag, s->calls, &r->carrying[i])
                      : MPI_Irecv(data, n, MPI_BYTE, r->peer, r->head.tag, s->calls, &r->carrying[i]);
  }
  return code;
}

static int messages_start(lm_mpi_state *s, lm_request *r, int tag) {
  if (!r->sending)
    return MPI_Irecv(&r->head, sizeof r->head, MPI_BYTE, r->peer < 0 ? MPI_ANY_SOURCE : r->peer, tag, s->messages,
                     &r->announcing);
  int32_t *last = &s->posted->sent[r->peer];
  *last = *last < LM_HOST_LANES || *last >= lm_mpi_max_tag() ? LM_HOST_LANES : *last + 1;
  r->head.ticket = r->ticket;
  r->head.bytes = r->bytes;
  r->head.tag = *last;
  int code = MPI_Isend(&r->head, sizeof r->head, MPI_BYTE, r->peer, tag, s->messages, &r->announcing);
  return code == MPI_SUCCESS ? messages_carry(s, r) : code;
}

/* Advances r as far as possible without waiting; returns MPI's code. */
static int messages_step(lm_mpi_state *s, lm_request *r) {
  int code = MPI_SUCCESS, flag = 0;
  if (!r->announced) {
    MPI_Status from;
    code = MPI_Test(&r->announcing, &flag, &from);
    if (code != MPI_SUCCESS || !flag) return code;
    r->announced = true;
    if (!r->sending) {
      r->peer = from.MPI_SOURCE;
      r->differs = r->head.ticket.hash != r->ticket.hash || r->head.bytes != r->bytes;
      if (r->differs) return code;
      code = messages_carry(s, r);
    }
  }
  if (code == MPI_SUCCESS) code = MPI_Testall(r->pieces, r->carrying, &flag, MPI_STATUSES_IGNORE);
  r->done = code == MPI_SUCCESS && flag;
  return code;
}

static void messages_drive(lm_mpi_state *s) {
  for (lm_request **at = &s->posted->first; *at;) {
    lm_request *r = *at;
    r->code = messages_step(s, r);
    if (r->code != MPI_SUCCESS || r->done || r->differs) {
      *at = r->next;
    } else {
      at = &r->next;
    }
  }
}

/* Cancels a receive without an announcement; returns true if MPI has released it. */
static bool take_back(lm_request *r) {
  int flag = 0;
  if (r->sending || r->announced) return false;
  return MPI_Cancel(&r->announcing) == MPI_SUCCESS &&
         MPI_Test(&r->announcing, &flag, MPI_STATUS_IGNORE) == MPI_SUCCESS && flag;
}

static lm_request *new_request(bool sending, int peer, char *data, size_t bytes) {
  int pieces = (int)lm_ceil_div(bytes, LM_MPI_PIECE);
  lm_request *r = lm_calloc(1, sizeof *r + (size_t)pieces * sizeof *r->carrying);
  if (!r) return NULL;
  r->sending = sending;
  r->peer = peer;
  r->data = data;
  r->bytes = bytes;
  r->pieces = pieces;
  r->announcing = MPI_REQUEST_NULL;
  for (int i = 0; i < pieces; i++) r->carrying[i] = MPI_REQUEST_NULL;
  return r;
}

/* ---- messages of collectives */

/* Returns the seconds of busy waiting for `bytes` in transit: MPI moves data only while it is called. */
static double mpi_spin(size_t bytes) { return 5e-3 + (double)bytes / 200e6; }

static lm_status post_bytes(lm_group *g, bool sending, int peer, int lane, char *data, size_t bytes, lm_request **out) {
  lm_mpi_state *s = g->state;
  lm_request *r = new_request(sending, peer, data, bytes);
  *out = NULL;
  if (!r) return LM_E_OOM;
  r->head.tag = lane;
  lm_status status = LM_MPI(g, messages_carry(s, r));
  if (status == LM_OK) *out = r; /* else MPI may still use r: it leaks */
  return status;
}

static lm_status wait_for_bytes(lm_group *g, lm_request *r) {
  lm_status status = lm_mpi_wait(g, r->pieces, r->carrying, mpi_spin(r->bytes));
  r->done = status == LM_OK;
  return status;
}

/* Frees r if it is done; otherwise MPI may still access it, and is lost. */
static void forget_bytes(lm_group *g, lm_request *r) {
  (void)g;
  if (r->done)
    lm_free(r);
  else
    lm_mpi_give_up();
}

const lm_host_messages lm_mpi_host_messages = {.post = post_bytes, .wait = wait_for_bytes, .forget = forget_bytes};

/* ---- functions of the table */

lm_status lm_mpi_post(lm_group *g, bool sending, lm_tensor *t, int peer, int tag, lm_request **out) {
  lm_mpi_state *s = g->state;
  *out = NULL;
  if (tag > lm_mpi_max_tag())
    return lm_fail_int(sending ? "send" : "recv", "tag",
                       lm_text("at most %d, the maximum of this MPI", lm_mpi_max_tag()), tag);
  lm_request *r = new_request(sending, peer, t->data, lm_nbytes(t));
  if (!r) return LM_E_OOM;
  r->t = lm_retain(t);
  r->ticket = *lm_group_ticket(g);
  if (!lm_mpi_enter()) {
    lm_release(t);
    lm_free(r);
    return lm_mpi_fail_refused(g);
  }
  pthread_mutex_lock(&s->posted->lock);
  r->code = messages_start(s, r, tag);
  if (r->code == MPI_SUCCESS) LM_LINK_LAST(s->posted->first, r);
  pthread_mutex_unlock(&s->posted->lock);
  lm_status status = lm_mpi_did(g, r->code);
  if (status == LM_OK) *out = r; /* after an error MPI may still use r, which leaks */
  return status;
}

lm_status lm_mpi_finish(lm_group *g, lm_request *r, bool wait, bool *done, int *peer) {
  lm_status status = LM_OK;
  lm_mpi_state *s = g->state;
  bool announced, differs;
  int code;
  *done = false;
  for (double since = lm_seconds();; lm_mpi_rest(g, since, announced ? mpi_spin(r->bytes) : SPIN)) {
    if (!lm_mpi_enter()) return lm_mpi_fail_refused(g);
    pthread_mutex_lock(&s->posted->lock);
    messages_drive(s);
    announced = r->announced;
    differs = r->differs;
    code = r->code;
    *done = r->done;
    pthread_mutex_unlock(&s->posted->lock);
    TRY(lm_mpi_did(g, code));
    if (differs) TRY(lm_group_mismatch(g, r->peer, &r->head.ticket));
    if (*done || !wait) break;
    TRY(lm_group_check(g));
  }
  if (*done) *peer = r->peer;
done:
  if (lm_group_failed(g)) lm_mpi_give_up();
  return status;
}

/* Frees r if it is done or can be canceled; otherwise MPI may still access r and its tensor, and both leak. */
void lm_mpi_forget(lm_group *g, lm_request *r) {
  lm_mpi_state *s = g->state;
  if (!lm_mpi_enter()) return;
  pthread_mutex_lock(&s->posted->lock);
  LM_UNLINK(s->posted->first, r);
  bool ours = r->done || take_back(r);
  pthread_mutex_unlock(&s->posted->lock);
  lm_mpi_leave();
  if (!ours) return;
  lm_release(r->t);
  lm_free(r);
}
