/* Implements the backend "mpi": collectives of CPU tensors between processes that mpirun started. The ranks compare
 * their tickets before each call and all see the same result, so MPI itself never runs mismatched calls. */
#include "distributed/mpi/mpi_backend.h"

#include <stdio.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "distributed/mpi/rank_mapping.h"

static const double MEET_SPIN = 100e-6; /* seconds of busy waiting; later peers may be much later */
static const double SPIN = 5e-3;        /* the same for peers that have come */

/* ---- comparison of tickets */

static lm_status name_the_other(lm_group *g, const lm_ticket *ticket) {
  lm_status status;
  lm_mpi_state *s = g->state;
  MPI_Request request;
  lm_ticket *all = lm_malloc((size_t)(g->size + 1) * sizeof *all); /* leaks if MPI is lost, which may still write it */
  if (!all) return LM_E_OOM;
  all[g->size] = *ticket;
  TRY(LM_MPI(g, MPI_Iallgather(&all[g->size], sizeof *all, MPI_BYTE, all, sizeof *all, MPI_BYTE, s->calls, &request)));
  TRY(lm_mpi_wait(g, 1, &request, SPIN));
  int peer = 0;
  while (peer < g->size - 1 && lm_tickets_agree(&all[peer], ticket)) peer++;
  status = lm_group_mismatch(g, peer, &all[peer]);
done:
  if (!lm_mpi_is_lost()) lm_free(all);
  return status;
}

static lm_status mpi_meet(lm_group *g) {
  lm_status status = LM_OK;
  lm_mpi_state *s = g->state;
  MPI_Request request;
  const lm_ticket *ticket = lm_group_ticket(g);
  uint64_t print = lm_hash_number(ticket->hash, ticket->seq);
  s->meeting[0] = print;
  s->meeting[1] = ~print; /* the maximum of the complements is the complement of the minimum */
  NEED(LM_MPI(g, MPI_Iallreduce(MPI_IN_PLACE, s->meeting, 2, MPI_UINT64_T, MPI_MAX, s->calls, &request)));
  NEED(lm_mpi_wait(g, 1, &request, MEET_SPIN));
  if (s->meeting[0] != print || s->meeting[1] != ~print) status = name_the_other(g, ticket);
  return status;
}

/* Compares all_to_all's sizes between each pair of ranks, since the ticket's hash does not cover them. */
static lm_status compare_sizes(lm_group *g, const lm_group_call *c) {
  lm_mpi_state *s = g->state;
  MPI_Request request;
  int size = g->size;
  if (!s->sizes) s->sizes = lm_malloc(2 * (size_t)size * sizeof *s->sizes);
  if (!s->sizes) return LM_E_OOM;
  for (int r = 0; r < size; r++) s->sizes[r] = lm_nbytes(c->in[r]);
  NEED(LM_MPI(g, MPI_Ialltoall(s->sizes, 1, MPI_UINT64_T, s->sizes + size, 1, MPI_UINT64_T, s->calls, &request)));
  NEED(lm_mpi_wait(g, 1, &request, SPIN));
  for (int r = 0; r < size; r++) {
    unsigned long long theirs = s->sizes[size + r], wanted = lm_nbytes(c->out[r]);
    if (theirs == wanted) continue;
    lm_ticket other = *lm_group_ticket(g);
    snprintf(other.what, sizeof other.what, "all_to_all of %llu bytes instead of %llu", theirs, wanted);
    other.where[0] = 0;
    return lm_group_mismatch(g, r, &other);
  }
  return LM_OK;
}

/* Runs a collective by messages, where each byte is sent to each rank once. MPI's own algorithms for nonblocking
 * collectives send large data several times and allocate as much memory again. */
static lm_status mpi_run(lm_group *g, const lm_group_call *c) {
  lm_mpi_state *s = g->state;
  lm_status status = mpi_meet(g);
  if (status == LM_OK && c->kind == LM_ALL_TO_ALL) status = compare_sizes(g, c);
  if (status == LM_OK && c->kind != LM_BARRIER) status = lm_host_run(s->host, c);
  if (status == LM_OK || !lm_mpi_is_lost()) return status;
  if (c->t) lm_retain(c->t); /* the tensors leak, since MPI may still access them */
  for (int i = 0; i < c->nin; i++) lm_retain(c->in[i]);
  for (int i = 0; i < c->nout; i++) lm_retain(c->out[i]);
  return status;
}

/* ---- opening and closing */

typedef struct open_job {
  lm_mpi_job job;
  MPI_Comm calls, messages;
  int n;
  int ranks[]; /* [n] ranks in MPI_COMM_WORLD */
} open_job;

static int make_communicators(lm_mpi_job *job) {
  open_job *o = (open_job *)job;
  MPI_Group world, members;
  int code = MPI_Comm_group(MPI_COMM_WORLD, &world);
  if (code == MPI_SUCCESS) code = MPI_Group_incl(world, o->n, o->ranks, &members);
  if (code == MPI_SUCCESS) code = MPI_Comm_create_group(MPI_COMM_WORLD, members, 0, &o->calls);
  if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(o->calls, MPI_ERRORS_RETURN);
  if (code == MPI_SUCCESS) code = MPI_Comm_dup(o->calls, &o->messages); /* the error handler is copied too */
  if (code == MPI_SUCCESS) code = MPI_Group_free(&members);
  if (code == MPI_SUCCESS) code = MPI_Group_free(&world);
  return code;
}

static lm_status connect(lm_group *g, const lm_mpi_rank_place *positions) {
  lm_mpi_state *s = g->state;
  open_job *o = lm_calloc(1, sizeof *o + (size_t)g->size * sizeof *o->ranks);
  if (!o) return LM_E_OOM;
  o->job.run = make_communicators;
  o->n = g->size;
  for (int r = 0; r < g->size; r++) o->ranks[r] = positions[r].rank;
  NEED(lm_mpi_run(g, &o->job));
  s->calls = o->calls;
  s->messages = o->messages;
  lm_free(o);
  return LM_OK;
}

/* Frees the group's state, unless MPI is lost and may still use it. */
static void mpi_close_group(lm_group *g) {
  lm_mpi_state *s = g->state;
  g->state = NULL;
  if (!s) return;
  if (lm_group_failed(g) && lm_mpi_has_begun()) lm_mpi_give_up();
  if (!lm_mpi_enter()) return;
  if (s->calls != MPI_COMM_NULL) MPI_Comm_free(&s->calls);
  if (s->messages != MPI_COMM_NULL) MPI_Comm_free(&s->messages);
  lm_mpi_leave();
  lm_mpi_messages_close(s->posted);
  lm_free(s->sizes);
  lm_host_free(s->host);
  lm_free(s);
}

static lm_status mpi_open_group(lm_group *g) {
  lm_status status;
  lm_mpi_rank_place *positions = NULL;
  lm_mpi_state *s = g->state = lm_calloc(1, sizeof *s);
  if (!s) return LM_E_OOM;
  s->calls = s->messages = MPI_COMM_NULL;
  TRY(lm_host_new(g, &lm_mpi_host_messages, &s->host));
  TRY(lm_mpi_messages_open(g, &s->posted));
  TRY(lm_mpi_rank_mapping(g, &positions));
  TRY(lm_mpi_begin(g, positions[g->rank].rank, positions[g->rank].size));
  TRY(connect(g, positions));
done:
  lm_free(positions);
  if (status != LM_OK) {
    lm_saved_error saved;
    lm_error_save(status, &saved);
    mpi_close_group(g);
    lm_error_restore(&saved);
  }
  return status;
}

static const lm_group_table table = {
    .abi = LM_GROUP_ABI,
    .name = "mpi",
    .kinds = 1u << LM_CPU,
    .collectives = LM_EVERY_COLLECTIVE,
    .open = mpi_open_group,
    .close = mpi_close_group,
    .run = mpi_run,
    .post = lm_mpi_post,
    .finish = lm_mpi_finish,
    .forget = lm_mpi_forget,
};

const lm_group_table *lm_group_plugin(void) { return &table; }
