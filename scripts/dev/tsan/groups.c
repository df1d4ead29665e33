/* Eight threads of one process, each a rank of one world, in groups of two, four and eight at once: every collective,
 * synchronous and not, with sends and receives beside them. groups [backend]; gloo without. Meant for
 * ThreadSanitizer; see tsan/run. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "distributed/group/collective.h"
#include "distributed/group/world.h"

enum { RANKS = 8, ROUNDS = 3, GROUPS = 7 };

/* Lengths for the three ways of a send: kept by a receiver that is late, requested, and requested in several pieces. */
static const int64_t lengths[] = {1, 1001, 70001};

static char method[300];
static const char *backend = "gloo";
static int rounds = ROUNDS;
static _Atomic int wrong;

typedef struct member {
  int rank; /* in the world */
  lm_world *world;
  lm_group *group[GROUPS]; /* four of two, two of four, one of all; NULL: not in it */
} member;

static int complain(const member *m, const char *what, const char *why) {
  wrong++;
  fprintf(stderr, "tsan_groups: rank %d: %s: %s\n", m->rank, what, why);
  return 1;
}

#define TRY_OR(m, call) \
  if ((call) != LM_OK) return complain(m, #call, lm_error())

/* RUN(m, g, work, LM_REDUCE, .t = t, .root = root): starts a call; the fields are lm_group_call's. */
#define RUN(m, g, work, ...) TRY_OR(m, lm_collective_start(g, &(lm_group_call){.kind = __VA_ARGS__}, work))

static lm_tensor *numbers(int64_t n) {
  lm_tensor *t = NULL;
  if (lm_tensor_empty(LM_F32, LM_DEVICE(LM_CPU, 0), 1, &n, LM_CONTIGUOUS, &t) != LM_OK) abort();
  return t;
}

static float value(int rank, int64_t i) { return (float)((rank + 1) * 10 + i % 7); }

static void fill(lm_tensor *t, int rank) {
  for (int64_t i = 0; i < t->numel; i++) ((float *)t->data)[i] = value(rank, i);
}

/* Sum over the n members from the `first` rank of the world on. */
static float sum(int first, int n, int64_t i) {
  float total = 0;
  for (int r = first; r < first + n; r++) total += value(r, i);
  return total;
}

static int expect(const member *m, const char *what, const lm_tensor *t, float (*want)(int, int, int64_t), int first,
                  int n) {
  for (int64_t i = 0; i < t->numel; i++)
    if (((const float *)t->data)[i] != want(first, n, i)) return complain(m, what, "wrong values");
  return 0;
}

static float of_one(int rank, int n, int64_t i) {
  (void)n;
  return value(rank, i);
}

/* One of each, in a group whose first member has the world's rank `first`. */
static int collectives(const member *m, lm_group *g, int first, int64_t length) {
  int n = g->size, bad = 0, root = n - 1;
  lm_tensor *t = numbers(length), *in[RANKS], *out[RANKS];
  for (int r = 0; r < n; r++) {
    in[r] = numbers(length);
    out[r] = numbers(length);
    fill(in[r], m->rank);
  }
  fill(t, m->rank);
  RUN(m, g, NULL, LM_ALL_REDUCE, .t = t);
  bad += expect(m, "all_reduce", t, sum, first, n);
  fill(t, m->rank);
  RUN(m, g, NULL, LM_BROADCAST, .t = t, .root = root);
  bad += expect(m, "broadcast", t, of_one, first + root, 1);
  fill(t, m->rank);
  RUN(m, g, NULL, LM_REDUCE, .t = t, .root = root);
  if (g->rank == root) bad += expect(m, "reduce", t, sum, first, n);
  fill(t, m->rank);
  RUN(m, g, NULL, LM_ALL_GATHER, .t = t, .nout = n, .out = out);
  for (int r = 0; r < n; r++) bad += expect(m, "all_gather", out[r], of_one, first + r, 1);
  RUN(m, g, NULL, LM_GATHER, .t = t, .root = root, .nout = g->rank == root ? n : 0, .out = out);
  for (int r = 0; r < n && g->rank == root; r++) bad += expect(m, "gather", out[r], of_one, first + r, 1);
  RUN(m, g, NULL, LM_SCATTER, .t = t, .root = root, .nin = g->rank == root ? n : 0, .in = in);
  bad += expect(m, "scatter", t, of_one, first + root, 1);
  RUN(m, g, NULL, LM_REDUCE_SCATTER, .t = t, .nin = n, .in = in);
  bad += expect(m, "reduce_scatter", t, sum, first, n);
  RUN(m, g, NULL, LM_ALL_TO_ALL, .nin = n, .in = in, .nout = n, .out = out);
  for (int r = 0; r < n; r++) bad += expect(m, "all_to_all", out[r], of_one, first + r, 1);
  RUN(m, g, NULL, LM_BARRIER);
  lm_release(t);
  for (int r = 0; r < n; r++) {
    lm_release(in[r]);
    lm_release(out[r]);
  }
  return bad;
}

/* Sends around a ring while two collectives of the same group run on its own thread. */
static int beside(const member *m, lm_group *g, int first, int64_t length) {
  int n = g->size, next = (g->rank + 1) % n, before = (g->rank + n - 1) % n, bad = 0;
  lm_tensor *t = numbers(length), *all = numbers(length), *come = numbers(length), *part[RANKS];
  lm_work *work[4] = {NULL};
  fill(t, m->rank);
  fill(all, m->rank);
  for (int r = 0; r < n; r++) part[r] = numbers(length);
  RUN(m, g, &work[0], LM_ALL_REDUCE, .t = all);
  RUN(m, g, &work[1], LM_SEND, .t = t, .peer = next, .tag = 1);
  RUN(m, g, &work[2], LM_RECV, .t = come, .peer = before, .tag = 1);
  RUN(m, g, &work[3], LM_ALL_GATHER, .t = t, .nout = n, .out = part);
  for (int i = 2; i >= 1; i--) TRY_OR(m, lm_work_wait(work[i], -1));
  bad += expect(m, "recv", come, of_one, first + before, 1);
  TRY_OR(m, lm_work_wait(work[3], -1));
  TRY_OR(m, lm_work_wait(work[0], -1));
  bad += expect(m, "all_reduce beside", all, sum, first, n);
  for (int r = 0; r < n; r++) bad += expect(m, "all_gather beside", part[r], of_one, first + r, 1);
  for (int i = 0; i < 4; i++) lm_work_release(work[i]);
  lm_release(t);
  lm_release(all);
  lm_release(come);
  for (int r = 0; r < n; r++) lm_release(part[r]);
  return bad;
}

static int run(member *m) {
  lm_world_config config = {
      .init_method = method, .rank = m->rank, .size = RANKS, .timeout = 300, .heartbeat_timeout = 120};
  int first[GROUPS], k = 0, bad = 0;
  TRY_OR(m, lm_world_open(&config, &m->world));
  for (int size = 2; size <= RANKS; size *= 2)
    for (int from = 0; from < RANKS; from += size, k++) {
      int number[RANKS] = {0};
      for (int i = 0; i < size; i++) number[from + i] = 1;
      first[k] = from;
      TRY_OR(m, lm_groups_new(m->world, backend, RANKS, number, 0, NULL, &m->group[k]));
    }
  for (int round = 0; round < rounds; round++)
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++)
      for (k = 0; k < GROUPS && !wrong; k++) {
        if (!m->group[k]) continue;
        bad += collectives(m, m->group[k], first[k], lengths[l]);
        bad += beside(m, m->group[k], first[k], lengths[l]);
      }
  return bad;
}

static void *rank(void *arg) {
  member *m = arg;
  run(m);
  for (int k = GROUPS - 1; k >= 0; k--) lm_group_close(m->group[k]);
  lm_world_close(m->world);
  return NULL;
}

int main(int argc, char **argv) {
  if (argc > 1) {
    backend = argv[1];
    rounds = 1; /* it may keep all it moves in the store */
  }
  char folder[] = "/tmp/tsan_groups.XXXXXX";
  if (!mkdtemp(folder)) {
    perror("tsan_groups: a folder in /tmp");
    return 1;
  }
  snprintf(method, sizeof method, "file://%s/store", folder);
  member members[RANKS];
  pthread_t thread[RANKS];
  memset(members, 0, sizeof members);
  for (int r = 0; r < RANKS; r++) {
    members[r].rank = r;
    if (pthread_create(&thread[r], NULL, rank, &members[r]) != 0) return 1;
  }
  for (int r = 0; r < RANKS; r++) pthread_join(thread[r], NULL);
  unlink(method + strlen("file://"));
  rmdir(folder);
  printf("tsan_groups: %s\n", wrong ? "FAILED" : "all values are right");
  return wrong != 0;
}
