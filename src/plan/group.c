/* Finds groups among a segment's steps, and runs them.
 *
 * A step joins a group if its values are over the same elements, if it reads what the group makes or reads, and if no
 * path of dependence leads from the group through another step to it. Afterward steps are in an order in which a
 * group's are next to each other. Steps do not cross events at which a part of the steps may run. */
#include "plan/group.h"

#include <stdio.h>

#include "autograd/record_graph.h"
#include "autograd/tape.h"
#include "base/mem.h"
#include "plan/passes.h"

typedef struct finder {
  lm_segment *g;
  int begin, n, words; /* steps of the part */
  uint64_t *before;    /* [n][words]: steps that a step depends on, and those of their groups */
  uint64_t *members;   /* [group][words] */
  int *group;          /* [n]: 0: none */
  lm_group_space *space;
  lm_group_form *form;
  int ngroups;
  int *order;
} finder;

/* Returns true for a step that draws random numbers, which others that do may not pass. */
static bool draws(const lm_segment_step *s) {
  return s->op >= 0 && lm_ops[s->op].kind != LM_POINTWISE && lm_call_is_random(s->op, s->args);
}

/* Returns true if step b, a later one, depends on step a. */
static bool depends(const lm_segment *g, const lm_segment_step *b, const lm_segment_step *a) {
  if (lm_step_is_view(a) || lm_step_is_view(b)) return false;
  if (draws(a) && draws(b)) return true;
  for (int k = 0; k < b->nin; k++) {
    const int buffer = lm_buffer_of(g, b->in[k]);
    if (buffer >= 0 && (lm_step_changes(g, a, buffer) || (lm_step_writes(b, k) && lm_step_reads(g, a, buffer))))
      return true;
  }
  for (int k = 0; k < b->nout; k++) {
    const int buffer = lm_buffer_of(g, b->out[k]);
    if (buffer >= 0 && (lm_step_changes(g, a, buffer) || lm_step_reads(g, a, buffer))) return true;
  }
  return false;
}

static bool contains(const uint64_t *set, int i) { return set[i / 64] >> i % 64 & 1; }
static void include(uint64_t *set, int i) { set[i / 64] |= UINT64_C(1) << i % 64; }

static void unite(uint64_t *to, const uint64_t *from, int words) {
  for (int i = 0; i < words; i++) to[i] |= from[i];
}

static bool depends_on_group(const finder *f, int i, int group) {
  const uint64_t *before = f->before + i * f->words, *members = f->members + group * f->words;
  for (int k = 0; k < f->words; k++)
    if (before[k] & members[k]) return true;
  return false;
}

static const lm_segment_step *step_at(const finder *f, int i) { return &f->g->step[f->begin + i]; }

/* Sets what step i depends on. */
static void find_before(finder *f, int i) {
  uint64_t *before = f->before + i * f->words;
  for (int j = 0; j < i; j++) {
    if (contains(before, j) || !depends(f->g, step_at(f, i), step_at(f, j))) continue;
    for (int k = 0; k < i; k++)
      if (k == j || (f->group[j] > 0 && f->group[k] == f->group[j])) {
        include(before, k);
        unite(before, f->before + k * f->words, f->words);
      }
  }
}

/* Returns true if a step reads a buffer that the group makes or reads. */
static bool is_related(const finder *f, int i, int group) {
  const lm_segment_step *s = step_at(f, i);
  for (int k = 0; k < s->nin; k++) {
    const int buffer = lm_buffer_of(f->g, s->in[k]);
    for (int j = 0; j < i && buffer >= 0; j++)
      if (f->group[j] == group &&
          (lm_step_changes(f->g, step_at(f, j), buffer) || lm_step_reads(f->g, step_at(f, j), buffer)))
        return true;
  }
  return false;
}

/* Returns true if a path leads from the group through another step to step i. */
static bool is_apart(const finder *f, int i, int group) {
  for (int j = 0; j < i; j++)
    if (contains(f->before + i * f->words, j) && f->group[j] != group && depends_on_group(f, j, group)) return true;
  return false;
}

static void mark_all(bool *stores, int n) {
  for (int b = 0; b < n; b++) stores[b] = true;
}

/* Lists the steps of a group, and step `more` (-1: none). */
static int list_steps(const finder *f, int group, int more, int *list) {
  int n = 0;
  for (int j = 0; j < f->n; j++)
    if (f->group[j] == group || j == more) list[n++] = f->begin + j;
  return n;
}

static bool try_join(finder *f, int i, int group, const lm_group_space *space, const bool *stores, int *list) {
  lm_group_space joined = f->space[group];
  if (!is_related(f, i, group) || is_apart(f, i, group) || !lm_group_space_join(&joined, space)) return false;
  const int n = list_steps(f, group, i, list);
  if (lm_group_write(f->g, n, list, &joined, stores, f->form) != LM_OK) return false;
  f->space[group] = joined;
  f->group[i] = group;
  include(f->members + group * f->words, i);
  uint64_t *all = f->before + i * f->words;
  for (int j = 0; j < f->n; j++)
    if (f->group[j] == group) unite(all, f->before + j * f->words, f->words);
  for (int k = 0; k < f->words; k++) all[k] &= ~f->members[group * f->words + k];
  for (int j = 0; j < i; j++) {
    uint64_t *before = f->before + j * f->words;
    if (f->group[j] == group) {
      memcpy(before, all, (size_t)f->words * sizeof *all);
    } else if (depends_on_group(f, j, group)) {
      unite(before, all, f->words);
      include(before, i);
    }
  }
  return true;
}

static void find_groups(finder *f, const bool *stores, int *list) {
  for (int i = 0; i < f->n; i++) {
    lm_group_space space;
    find_before(f, i);
    if (lm_step_is_view(step_at(f, i)) || !lm_group_space_of(f->g, step_at(f, i), &space)) continue;
    bool joined = false;
    for (int group = f->ngroups; group > 0 && !joined; group--) joined = try_join(f, i, group, &space, stores, list);
    if (joined) continue;
    lm_group_space alone = {.ndim = 1, .size = {space.numel}, .numel = space.numel};
    list[0] = f->begin + i;
    if (!lm_group_space_join(&alone, &space) || lm_group_write(f->g, 1, list, &alone, stores, f->form) != LM_OK)
      continue;
    f->space[++f->ngroups] = alone;
    f->group[i] = f->ngroups;
    include(f->members + f->ngroups * f->words, i);
  }
}

/* Returns true if a and b have the same strides, and b is dense. */
static bool are_alike(const lm_place *a, const lm_place *b) {
  int64_t last = 0;
  for (int d = 0; d < a->ndim; d++) {
    if (a->size[d] > 1 && a->stride[d] != b->stride[d]) return false;
    last += (b->size[d] - 1) * b->stride[d];
  }
  return last + 1 == lm_place_numel(b);
}

/* Returns true for a copy of a dense tensor between float32 and half precision that no other step joined. */
static bool is_single_cast(const finder *f, int i) {
  const lm_segment_step *s = step_at(f, i);
  for (int j = 0; j < f->n && f->group[i] > 0; j++)
    if (j != i && f->group[j] == f->group[i]) return false;
  if (s->op != LM_OP_to_copy || f->group[i] == 0 || f->g->value[s->in[0]].number) return false;
  const lm_place *from = &f->g->value[s->in[0]].place, *to = &f->g->value[s->out[0]].place;
  if (!are_alike(from, to)) return false;
  return (from->dtype == LM_F32 && lm_dtype_is_half(to->dtype)) ||
         (to->dtype == LM_F32 && lm_dtype_is_half(from->dtype));
}

static bool is_cast_alike(const lm_segment *g, const lm_segment_step *a, const lm_segment_step *b) {
  return g->value[a->in[0]].place.dtype == g->value[b->in[0]].place.dtype &&
         g->value[a->out[0]].place.dtype == g->value[b->out[0]].place.dtype;
}

/* Adds cast i to the casts of a group, if no path leads from one to the other. */
static bool try_join_casts(finder *f, int i, int group) {
  uint64_t *all = f->before + i * f->words, *members = f->members + group * f->words;
  int first = 0;
  while (!contains(members, first)) first++;
  if (!is_cast_alike(f->g, step_at(f, i), step_at(f, first)) || depends_on_group(f, i, group) ||
      contains(f->before + first * f->words, i))
    return false;
  unite(all, f->before + first * f->words, f->words);
  f->group[i] = group;
  include(members, i);
  for (int j = 0; j < f->n; j++) {
    if (contains(members, j)) memmove(f->before + j * f->words, all, (size_t)f->words * sizeof *all);
    if (!depends_on_group(f, j, group)) continue;
    unite(f->before + j * f->words, all, f->words);
    unite(f->before + j * f->words, members, f->words);
  }
  return true;
}

/* Joins casts that stand alone. casts[group]: set for their groups. */
static void join_casts(finder *f, int *casts) {
  int n = 0;
  for (int i = 0; i < f->n; i++) {
    if (!is_single_cast(f, i)) continue;
    bool joined = false;
    for (int k = 0; k < n && !joined; k++) joined = try_join_casts(f, i, casts[k]);
    if (!joined) casts[n++] = f->group[i];
  }
}

/* Lists the steps in an order in which each follows what it depends on, and a group's are together. */
static void order_steps(finder *f, uint64_t *done) {
  int n = 0;
  memset(done, 0, (size_t)f->words * sizeof *done);
  while (n < f->n) {
    for (int i = 0; i < f->n; i++) {
      bool is_ready = !contains(done, i);
      for (int k = 0; k < f->words && is_ready; k++) is_ready = (f->before[i * f->words + k] & ~done[k]) == 0;
      if (!is_ready) continue;
      for (int j = i; j < f->n; j++)
        if (j == i || (f->group[i] > 0 && f->group[j] == f->group[i])) {
          f->order[n++] = j;
          include(done, j);
        }
      break;
    }
  }
}

/* Sets which buffers are needed after a group: by other steps or, `visible`, by the script. */
static void find_stored(const lm_segment *g, int first, int n, bool visible, bool *stores) {
  memset(stores, 0, (size_t)g->nbuffers * sizeof *stores);
  for (int i = 0; i < g->nsteps; i++) {
    const lm_segment_step *s = &g->step[i];
    for (int k = 0; k < s->nin && !lm_step_is_view(s) && (i < first || i >= first + n); k++)
      if (lm_buffer_of(g, s->in[k]) >= 0) stores[lm_buffer_of(g, s->in[k])] = true;
  }
  for (int i = 0; i < g->nleaves; i++)
    if (g->leaf[i].after >= 0) stores[g->value[g->leaf[i].after].buffer] = true;
  for (int i = 0; i < g->ninstances && visible; i++) stores[g->value[g->instance[i].value].buffer] = true;
}

/* Returns true if n steps are casts between the same dtypes, of different tensors. */
static bool are_casts(const lm_segment *g, int first, int n) {
  for (int i = first; i < first + n; i++)
    if (g->step[i].op != LM_OP_to_copy || !is_cast_alike(g, &g->step[i], &g->step[first])) return false;
  return true;
}

static lm_status add_group(lm_segment *g, int first, int n, const lm_group_space *space, bool *stores) {
  lm_segment_group group = {.first = first, .nsteps = n, .is_casts = are_casts(g, first, n), .space = *space};
  int list[LM_GROUP_MEMBERS];
  lm_status status = LM_OK;
  for (int i = 0; i < n && !group.is_casts; i++) list[i] = first + i;
  for (int visible = 0; visible < 2 && status == LM_OK && !group.is_casts; visible++) {
    lm_group_form *form = lm_malloc(sizeof *form);
    if (!form) status = LM_E_OOM;
    find_stored(g, first, n, visible != 0, stores);
    if (form && lm_group_write(g, n, list, space, stores, form) == LM_OK)
      group.form[visible] = form;
    else
      lm_free(form);
  }
  if (status == LM_OK && !LM_APPEND(g->group, g->ngroups, g->group_capacity, group)) status = LM_E_OOM;
  for (int i = 0; i < n && status == LM_OK; i++) g->step[first + i].group = g->ngroups;
  if (status == LM_OK) return LM_OK;
  lm_group_form_free(group.form[0]);
  lm_group_form_free(group.form[1]);
  return status;
}

/* Moves the steps, and notes groups of several. */
static lm_status place_groups(finder *f, bool *stores) {
  LM_FREED lm_segment_step *moved = lm_malloc((size_t)f->n * sizeof *moved);
  if (!moved) return LM_E_OOM;
  for (int i = 0; i < f->n; i++) moved[i] = *step_at(f, f->order[i]);
  for (int i = 0; i < f->n; i++) f->g->step[f->begin + i] = moved[i];
  for (int i = 0, n; i < f->n; i += n) {
    const int group = f->group[f->order[i]];
    for (n = 1; group > 0 && i + n < f->n && f->group[f->order[i + n]] == group;) n++;
    if (n > 1) NEED(add_group(f->g, f->begin + i, n, &f->space[group], stores));
  }
  return LM_OK;
}

static lm_status group_part(lm_segment *g, int begin, int end) {
  const size_t n = (size_t)(end - begin), words = n / 64 + 1;
  if (n < 2) return LM_OK;
  LM_FREED uint64_t *before = lm_calloc((2 * n + 2) * words, sizeof *before);
  LM_FREED int *numbers = lm_calloc(3 * n + 1, sizeof *numbers);
  LM_FREED lm_group_space *space = lm_calloc(n + 1, sizeof *space);
  LM_FREED lm_group_form *form = lm_malloc(sizeof *form);
  LM_FREED bool *stores = lm_malloc((size_t)g->nbuffers + 1);
  if (!before || !numbers || !space || !form || !stores) return LM_E_OOM;
  finder f = {g, begin, (int)n, (int)words, before, before + (n + 1) * words, numbers, space, form, 0, numbers + n};
  mark_all(stores, g->nbuffers);
  find_groups(&f, stores, numbers + 2 * n);
  join_casts(&f, numbers + 2 * n);
  order_steps(&f, before + n * words);
  return place_groups(&f, stores);
}

lm_status lm_segment_group_steps(lm_segment *g) {
  int begin = 0;
  const lm_backend *backend = lm_backend_of(g->device);
  if (!backend || !backend->group_prepare) return LM_OK;
  for (int i = 0; i < g->nevents; i++) {
    if (!g->event[i].is_pause && !g->event[i].may_fail) continue;
    const int after = i + 1 < g->nevents ? g->event[i + 1].nsteps : g->nsteps;
    NEED(group_part(g, begin, g->event[i].nsteps));
    NEED(group_part(g, g->event[i].nsteps, after));
    begin = after;
  }
  return group_part(g, begin, g->nsteps);
}

/* ---- running */

/* Returns true if somebody holds what the form does not store. */
static bool is_held(const lm_segment *g, const lm_segment_group *group, const lm_group_form *form) {
  for (int i = group->first; i < group->first + group->nsteps; i++) {
    for (int k = 0; k < g->step[i].nout; k++) {
      bool stores = g->step[i].out[k] < 0 || !g->buffer[g->value[g->step[i].out[k]].buffer].is_kept;
      for (int o = 0; form && o < form->group.noperands; o++)
        stores = stores || (form->group.operand[o].member >= 0 && form->value[o] == g->step[i].out[k]);
      if (!stores) return true;
    }
  }
  return false;
}

/* Returns in *out memory for the partial sums of a result, which the segment keeps. */
static lm_status take_parts(lm_segment *g, const lm_group_form *form, int k, lm_tensor **out) {
  lm_segment_sum sum = {.value = form->value[k]};
  const lm_place *p = &g->value[sum.value].place;
  const int64_t size[] = {form->group.parts, lm_place_numel(p)};
  NEED(lm_tensor_empty(form->group.operand[k].dtype, g->device, 2, size, LM_CONTIGUOUS, &sum.parts));
  *out = sum.parts;
  if (LM_APPEND(g->sum, g->nsums, g->sum_capacity, sum)) return LM_OK;
  lm_release(sum.parts);
  return LM_E_OOM;
}

static bool is_partial(const lm_group *group, int k) {
  return group->operand[k].member >= 0 && group->member[group->operand[k].member].kind == LM_GROUP_SUM_OF_ROWS;
}

static lm_status run_kernel(lm_segment *g, lm_group_form *form) {
  lm_tensor *operand[LM_GROUP_OPERANDS];
  if (!form->is_prepared) NEED(lm_group_prepare(g->device, &form->group));
  form->is_prepared = true;
  for (int k = 0; k < form->group.noperands; k++)
    NEED(is_partial(&form->group, k)
             ? take_parts(g, form, k, &operand[k])
             : lm_segment_header(g, form->value[k], form->group.operand[k].member >= 0, &operand[k]));
  return lm_group_run(g->device, &form->group, operand);
}

static lm_status run_form(lm_segment *g, const lm_segment_group *group, lm_group_form *form) {
  const int nsums = g->nsums;
  const lm_status status = run_kernel(g, form);
  while (status != LM_OK && g->nsums > nsums) lm_release(g->sum[--g->nsums].parts);
  NEED(status);
  for (int i = nsums; i < g->nsums; i++) g->buffer[g->value[g->sum[i].value].buffer].has_parts = true;
  for (int i = group->first; i < group->first + group->nsteps; i++)
    for (int k = 0; k < g->step[i].nout; k++)
      if (g->step[i].out[k] >= 0) g->buffer[g->value[g->step[i].out[k]].buffer].was_made = true;
  return LM_OK;
}

static bool has_parts(const lm_segment *g, int value) {
  const int buffer = lm_buffer_of(g, value);
  return buffer >= 0 && g->buffer[buffer].has_parts;
}

lm_status lm_segment_add_parts(lm_segment *g, int first, int n) {
  bool any = n == 0;
  for (int i = first; i < first + n && g->nsums > 0; i++) {
    for (int k = 0; k < g->step[i].nin; k++) any = any || has_parts(g, g->step[i].in[k]);
    for (int k = 0; k < g->step[i].nout; k++) any = any || has_parts(g, g->step[i].out[k]);
  }
  if (!any || g->nsums == 0) return LM_OK;
  LM_FREED lm_tensor **from = lm_calloc(2 * (size_t)g->nsums, sizeof *from);
  lm_tensor **to = from + g->nsums;
  int nsums = 0;
  if (!from) return LM_E_OOM;
  for (int i = 0; i < g->nsums; i++) {
    if (!has_parts(g, g->sum[i].value)) continue; /* nobody needs it */
    from[nsums] = g->sum[i].parts;
    NEED(lm_segment_header(g, g->sum[i].value, true, &to[nsums++]));
  }
  if (nsums > 0) NEED(lm_group_sum_parts(g->device, nsums, from, to));
  for (int i = 0; i < g->nsums; i++) g->buffer[g->value[g->sum[i].value].buffer].has_parts = false;
  while (g->nsums > 0) lm_release(g->sum[--g->nsums].parts);
  return LM_OK;
}

static lm_status run_casts(lm_segment *g, const lm_segment_group *group) {
  LM_FREED lm_tensor **from = lm_calloc(2 * (size_t)group->nsteps, sizeof *from);
  lm_tensor **to = from + group->nsteps;
  if (!from) return LM_E_OOM;
  for (int i = 0; i < group->nsteps; i++) {
    const lm_segment_step *step = &g->step[group->first + i];
    NEED(lm_segment_header(g, step->in[0], false, &from[i]));
    NEED(lm_segment_header(g, step->out[0], true, &to[i]));
    g->buffer[g->value[step->out[0]].buffer].was_made = true;
  }
  return lm_cast_together(g->device, group->nsteps, from, to);
}

/* Drops memory for results that the group did not compute. */
static void drop_results(lm_segment *g, const lm_segment_group *group) {
  for (int i = group->first; i < group->first + group->nsteps; i++)
    for (int k = 0; k < g->step[i].nout; k++) {
      const int b = lm_buffer_of(g, g->step[i].out[k]);
      if (b >= 0 && g->buffer[b].origin == LM_FROM_STEP && !g->buffer[b].was_made)
        lm_segment_drop_buffer(g, &g->buffer[b]);
    }
}

bool lm_segment_group_run(lm_segment *g, lm_segment_group *group, lm_status *status) {
  if (group->is_casts) {
    *status = run_casts(g, group);
    return true;
  }
  lm_group_form **form = &group->form[is_held(g, group, group->form[0])];
  if (!*form || is_held(g, group, *form)) return false;
  *status = run_form(g, group, *form);
  if (*status != LM_E_MISSING) return true;
  drop_results(g, group);
  *status = LM_OK;
  if ((*form)->is_prepared) return false;
  if (!g->reason[0]) snprintf(g->reason, sizeof g->reason, "its kernels run one by one: %.150s", lm_error());
  lm_group_form_free(*form);
  *form = NULL;
  return false;
}
