/* Reduces and gathers large data around a ring, where each byte is sent to each rank once. MPI's own algorithms for
 * nonblocking collectives send all data several times and allocate as much memory again. */
#include <string.h>

#include "base/mem.h"
#include "distributed/mpi/mpi_backend.h"

double lm_mpi_spin(size_t bytes) { return 5e-3 + (double)bytes / 200e6; }

/* Runs one round: sends n bytes of `to` to the next rank, receives m bytes from the previous one into `from`. */
static lm_status pass_on(lm_group *g, const char *to, size_t n, char *from, size_t m) {
  lm_status status;
  lm_mpi_state *s = g->state;
  int next = (g->rank + 1) % g->size, before = (g->rank + g->size - 1) % g->size, under_way = 0;
  if (m > 0) TRY(LM_MPI(g, MPI_Irecv(from, (int)m, MPI_BYTE, before, 0, s->calls, &s->rounds[under_way++])));
  if (n > 0) TRY(LM_MPI(g, MPI_Isend(to, (int)n, MPI_BYTE, next, 0, s->calls, &s->rounds[under_way++])));
  status = under_way > 0 ? lm_mpi_wait(g, under_way, s->rounds, lm_mpi_spin(n + m)) : LM_OK;
done:
  return status;
}

/* Returns the number of elements, at most `most`, of the piece at offset `at` of n elements. */
static size_t ring_piece(size_t n, size_t at, size_t most) { return n <= at ? 0 : n - at < most ? n - at : most; }

static size_t longest(const lm_group *g, const size_t *n) {
  size_t most = 0;
  for (int r = 0; r < g->size; r++) most = n[r] > most ? n[r] : most;
  return most;
}

/* Block b starts at the rank after b and travels around the ring; each rank adds its own block b, until the sum is
 * complete at rank b. */
lm_status lm_mpi_ring_reduce(lm_group *g, lm_dtype dtype, lm_reduce_op op, lm_mpi_blocks in, char *out) {
  lm_mpi_state *s = g->state;
  int rank = g->rank, size = g->size;
  size_t element = lm_dtype_size(dtype), most = LM_MPI_PIECE / element, end = longest(g, in.n);
  if (size == 1) memmove(out, in.data[0], in.n[0] * element);
  if (size == 1) return LM_OK;
  if (!s->scratch) s->scratch = lm_malloc(2 * (size_t)LM_MPI_PIECE);
  if (!s->scratch) return LM_E_OOM;
  for (size_t at = 0; at < end; at += most) {
    int b = (rank + size - 1) % size;
    const char *sent = in.data[b] + at * element;
    for (int k = 0; k < size - 1; k++) {
      int next = (b + size - 1) % size;
      char *got = s->scratch + (k & 1) * (size_t)LM_MPI_PIECE;
      size_t n = ring_piece(in.n[next], at, most);
      NEED(pass_on(g, sent, ring_piece(in.n[b], at, most) * element, got, n * element));
      char *sum = next == rank ? out + at * element : got;
      lm_reduce_into(dtype, op, sum, got, in.data[next] + at * element, n);
      sent = got;
      b = next;
    }
  }
  return LM_OK;
}

lm_status lm_mpi_ring_gather(lm_group *g, lm_dtype dtype, lm_mpi_blocks blocks) {
  int size = g->size;
  size_t element = lm_dtype_size(dtype), most = LM_MPI_PIECE / element, end = longest(g, blocks.n);
  for (size_t at = 0; at < end; at += most) {
    int b = g->rank;
    for (int k = 0; k < size - 1; k++) {
      int next = (b + size - 1) % size;
      NEED(pass_on(g, blocks.data[b] + at * element, ring_piece(blocks.n[b], at, most) * element,
                   blocks.data[next] + at * element, ring_piece(blocks.n[next], at, most) * element));
      b = next;
    }
  }
  return LM_OK;
}

/* Exchanges one piece with every other rank at a time, all pairs at once. */
lm_status lm_mpi_exchange(lm_group *g, char *const *from, char *const *to, const size_t *bytes) {
  lm_mpi_state *s = g->state;
  int rank = g->rank, size = g->size;
  const size_t *leaving = bytes, *coming = bytes + size;
  size_t out = longest(g, leaving), in = longest(g, coming), end = out > in ? out : in;
  if (leaving[rank] > 0) memmove(to[rank], from[rank], leaving[rank]);
  for (size_t at = 0; at < end; at += LM_MPI_PIECE) {
    int n = 0;
    size_t moving = 0;
    for (int k = 1; k < size; k++) {
      int before = (rank + size - k) % size, next = (rank + k) % size;
      size_t a = ring_piece(coming[before], at, LM_MPI_PIECE), b = ring_piece(leaving[next], at, LM_MPI_PIECE);
      if (a > 0) NEED(LM_MPI(g, MPI_Irecv(to[before] + at, (int)a, MPI_BYTE, before, 0, s->calls, &s->rounds[n++])));
      if (b > 0) NEED(LM_MPI(g, MPI_Isend(from[next] + at, (int)b, MPI_BYTE, next, 0, s->calls, &s->rounds[n++])));
      moving += a + b;
    }
    if (n > 0) NEED(lm_mpi_wait(g, n, s->rounds, lm_mpi_spin(moving)));
  }
  return LM_OK;
}
