/* A process group built outside the tree, against the installed headers alone: every rank leaves its tensor in the
 * job's store, and takes the others' from there. Slow, and short: it has what DistributedDataParallel needs. */
#include <string.h>

#include "base/mem.h"
#include "distributed/group/backend.h"

typedef struct letter { /* followed by the tensor */
  lm_ticket ticket;
} letter;

static size_t bytes_of(const lm_tensor *t) { return t ? (size_t)t->numel * lm_dtype_size(t->dtype) : 0; }

static void key_of(const lm_group *g, int rank, char key[64]) {
  char digits[24], *d = digits + sizeof digits - 1;
  uint64_t n = lm_group_ticket(g)->seq * (uint64_t)g->size + (uint64_t)rank;
  *d = '\0';
  do *--d = (char)('0' + n % 10);
  while (n /= 10);
  strcpy(key, "relay/");
  strcat(key, d);
}

/* Stores this rank's bytes of the call; t may be NULL. */
static lm_status leave(lm_group *g, const lm_tensor *t) {
  char key[64];
  size_t bytes = bytes_of(t);
  letter *l = lm_malloc(sizeof *l + bytes);
  if (!l) return LM_E_OOM;
  l->ticket = *lm_group_ticket(g);
  if (t) memcpy(l + 1, t->data, bytes);
  key_of(g, g->rank, key);
  lm_status status = lm_group_set(g, key, l, sizeof *l + bytes);
  lm_free(l);
  return status;
}

/* Fetches the `bytes` bytes that `rank` stored. The letter is yours. */
static lm_status fetch(lm_group *g, int rank, size_t bytes, letter **out) {
  char key[64];
  void *data = NULL;
  size_t n = 0;
  *out = NULL;
  key_of(g, rank, key);
  lm_status status = lm_group_get(g, key, &data, &n);
  if (status != LM_OK) return status;
  *out = data;
  if (n >= sizeof(letter) && (*out)->ticket.hash != lm_group_ticket(g)->hash)
    return lm_group_mismatch(g, rank, &(*out)->ticket);
  return n == sizeof(letter) + bytes ? LM_OK : lm_group_lost(g, rank, "a letter of another size");
}

static lm_status relay_all_reduce(lm_group *g, lm_tensor *t, lm_reduce_op op) {
  lm_status status;
  letter *l = NULL;
  TRY(leave(g, t));
  for (int r = 0; r < g->size; r++) {
    TRY(fetch(g, r, bytes_of(t), &l));
    if (r == 0) {
      memcpy(t->data, l + 1, bytes_of(t));
    } else {
      lm_reduce_into(t->dtype, op, t->data, t->data, l + 1, (size_t)t->numel);
    }
    lm_free(l);
    l = NULL;
  }
  if (op == LM_REDUCE_MEAN) lm_reduce_scale(t->dtype, t->data, (size_t)t->numel, 1.0 / g->size);
done:
  lm_free(l);
  return status;
}

static lm_status relay_broadcast(lm_group *g, lm_tensor *t, int root) {
  if (g->rank == root) return leave(g, t);
  lm_status status;
  letter *l = NULL;
  TRY(fetch(g, root, bytes_of(t), &l));
  memcpy(t->data, l + 1, bytes_of(t));
done:
  lm_free(l);
  return status;
}

static lm_status relay_all_gather(lm_group *g, const lm_tensor *t, lm_tensor *const *out) {
  lm_status status;
  letter *l = NULL;
  TRY(leave(g, t));
  for (int r = 0; r < g->size; r++) {
    TRY(fetch(g, r, bytes_of(t), &l));
    memcpy(out[r]->data, l + 1, bytes_of(t));
    lm_free(l);
    l = NULL;
  }
done:
  lm_free(l);
  return status;
}

static lm_status relay_barrier(lm_group *g) {
  lm_status status;
  letter *l = NULL;
  TRY(leave(g, NULL));
  for (int r = 0; r < g->size; r++) {
    TRY(fetch(g, r, 0, &l));
    lm_free(l);
    l = NULL;
  }
done:
  lm_free(l);
  return status;
}

static lm_status relay_run(lm_group *g, const lm_group_call *c) {
  switch (c->kind) {
    case LM_ALL_REDUCE: return relay_all_reduce(g, c->t, c->op);
    case LM_BROADCAST: return relay_broadcast(g, c->t, c->root);
    case LM_ALL_GATHER: return relay_all_gather(g, c->t, c->out);
    default: return relay_barrier(g);
  }
}

static lm_status relay_open(lm_group *g) {
  (void)g;
  return LM_OK;
}

static void relay_close(lm_group *g) { (void)g; }

LM_API const lm_group_table *lm_group_plugin(void) {
  static const lm_group_table table = {
      .abi = LM_GROUP_ABI,
      .name = "relay",
      .kinds = 1u << LM_CPU,
      .collectives = 1u << LM_ALL_REDUCE | 1u << LM_BROADCAST | 1u << LM_ALL_GATHER | 1u << LM_BARRIER,
      .open = relay_open,
      .close = relay_close,
      .run = relay_run,
  };
  return &table;
}
