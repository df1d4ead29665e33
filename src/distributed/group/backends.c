#include "distributed/group/backends.h"
#include "base/thread.h"
#include "distributed/group/call_timeouts.h"

#include <stdio.h>
#include <string.h>

#include "device/known.h"
#include "distributed/group/enqueued_calls.h"
#include "distributed/group/world_core.h"

/* ---- text */

typedef struct entry { /* "cuda:nccl" */
  int kind;
  char backend[64];
} entry;

static lm_status parse_entry(const char *text, const char *at, size_t n, entry *out) {
  char word[64], prefix[256], shown[64];
  const char *colon = memchr(at, ':', n);
  size_t device = colon ? (size_t)(colon - at) : 0, backend = colon ? n - device - 1 : 0;
  snprintf(shown, sizeof shown, "%.*s", (int)n, at);
  if (!colon)
    return lm_fail(LM_E_ARG, "backend '%s': '%s' must name its device, as in \"cpu:gloo,cuda:nccl\"",
                   lm_ellipsize(text, 200), lm_ellipsize(shown, 60));
  if (device == 0 || backend == 0 || device >= sizeof word || backend >= sizeof out->backend)
    return lm_fail(LM_E_ARG, "backend '%s': '%s' must be a device and its backend, as in \"cuda:nccl\"",
                   lm_ellipsize(text, 200), lm_ellipsize(shown, 60));
  memcpy(word, at, device);
  word[device] = 0;
  memcpy(out->backend, colon + 1, backend);
  out->backend[backend] = 0;
  lm_status status = lm_device_kind(word, &out->kind);
  if (status == LM_OK) return LM_OK;
  snprintf(prefix, sizeof prefix, "backend '%s'", lm_ellipsize(text, 200));
  return lm_fail_in(status, prefix);
}

/* Adds device kinds to the backend's part, or a new part: a backend that serves several kinds is one part. */
static void add_part(lm_backends *b, const lm_group_table *table, unsigned kinds) {
  int i = 0;
  while (i < b->n && b->part[i].table != table) i++;
  if (i == b->n) b->part[b->n++].table = table;
  b->part[i].kinds |= kinds;
}

/* Returns whether the backend is that of a kind of devices. It would copy CPU tensors to a device and wait for that. */
static bool is_of_devices(const char *backend) {
  for (int kind = LM_CPU + 1; kind < lm_known_count; kind++)
    if (lm_known_kinds[kind].group && strcmp(lm_known_kinds[kind].group, backend) == 0) return true;
  return false;
}

lm_status lm_backends_parse(const char *text, lm_backends *out) {
  const lm_group_table *table;
  entry entries[LM_DEVICE_KINDS], one;
  bool named[LM_DEVICE_KINDS] = {false};
  size_t at = 0;
  *out = (lm_backends){.n = 0};
  if (!strpbrk(text, ":,")) {
    NEED(lm_group_table_find(text, &table));
    add_part(out, table, is_of_devices(text) ? ~(1u << LM_CPU) : ~0u);
    if (is_of_devices(text)) {
      NEED(lm_group_table_find("gloo", &table));
      add_part(out, table, 1u << LM_CPU);
    }
    snprintf(out->text, sizeof out->text, "%s", text);
    return LM_OK;
  }
  for (const char *rest = text;; rest++) {
    size_t n = strcspn(rest, ",");
    NEED(parse_entry(text, rest, n, &one));
    if (named[one.kind])
      return lm_fail(LM_E_ARG, "backend '%s': %s is listed twice", lm_ellipsize(text, 200),
                     lm_device_kind_name(one.kind));
    named[one.kind] = true;
    entries[one.kind] = one;
    rest += n;
    if (!*rest) break;
  }
  for (int kind = 0; kind < LM_DEVICE_KINDS; kind++) {
    if (!named[kind]) continue;
    NEED(lm_group_table_find(entries[kind].backend, &table));
    add_part(out, table, 1u << kind);
    at += (size_t)snprintf(out->text + at, sizeof out->text - at, "%s%s:%s", at ? "," : "", lm_device_kind_name(kind),
                           entries[kind].backend);
    if (at >= sizeof out->text) return lm_fail(LM_E_ARG, "backend '%s' is too long", lm_ellipsize(text, 200));
  }
  return LM_OK;
}

/* ---- parts */

void lm_parts_make(lm_group_core *core, const lm_backends *backends) {
  core->nparts = backends->n;
  snprintf(core->backend, sizeof core->backend, "%s", backends->text);
  for (int i = 0; i < backends->n; i++) {
    lm_group *g = i == 0 ? &core->g : &core->more[i - 1];
    if (i > 0) *g = core->g;
    g->table = backends->part[i].table;
    g->part = i;
    core->part[i] = (lm_part){.g = g, .kinds = backends->part[i].kinds};
  }
}

/* Returns the part of that backend in the world's first group, if that has all ranks and is open, and all ranks make
 * this group; else NULL. */
static lm_part *parent_of(lm_group_core *core, const lm_group_table *table) {
  lm_world *w = core->world;
  lm_part *found = NULL;
  LM_LOCKED(&w->lock);
  for (lm_group_core *c = w->groups; c; c = c->next) {
    if (c == core || core->id & LM_TWIN || c->id != 1 || c->g.size != w->size) continue;
    for (int i = 0; i < c->nparts; i++)
      if (c->part[i].g->table == table) found = &c->part[i];
  }
  return found;
}

static lm_status backends_split_part(lm_group_core *core, lm_group *g, int color) {
  lm_part *parent = g->table->split ? parent_of(core, g->table) : NULL;
  if (!parent) return LM_OK;
  if (parent->issuer) lm_issuer_hold(parent->issuer, true);
  lm_status status = parent->issuer ? lm_issuer_wait(parent->issuer, true) : LM_OK; /* no call may be in progress */
  if (status == LM_OK) status = g->table->split(g, parent->g, color);
  if (parent->issuer) lm_issuer_hold(parent->issuer, false);
  return status == LM_OK ? LM_OK : lm_group_broken(g, lm_error()); /* other ranks may wait in split */
}

static lm_status open_part(lm_group_core *core, lm_part *part, int color) {
  NEED(backends_split_part(core, part->g, color));
  if (core->g.rank < 0) return LM_OK;
  NEED(part->g->table->open(part->g));
  if (!part->g->table->enqueues) return LM_OK;
  lm_status status = lm_issuer_new(core, part);
  if (status != LM_OK) part->g->table->close(part->g);
  return status;
}

static void close_part(lm_part *part) {
  if (part->issuer) lm_issuer_close(part->issuer);
  part->issuer = NULL;
  part->g->table->close(part->g);
}

lm_status lm_parts_open(lm_group_core *core, int color) {
  lm_status status = LM_OK;
  for (int i = 0; i < core->nparts; i++) {
    status = open_part(core, &core->part[i], color);
    if (status == LM_OK) continue;
    lm_saved_error saved;
    lm_error_save(status, &saved);
    while (i-- > 0 && core->g.rank >= 0) close_part(&core->part[i]);
    return lm_error_restore(&saved);
  }
  return status;
}

void lm_parts_close(lm_group_core *core) {
  for (int i = core->nparts - 1; i >= 0; i--) close_part(&core->part[i]);
}
