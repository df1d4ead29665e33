/* Writes the text of a group's kernel. Its functions are those of kernels/generated.cuh.
 *
 * A row has `lanes` threads. Each takes packs of neighboring elements, `held` of them, which stay in registers while
 * the row's reductions are computed one after another: in phase p, those that depend on p others. Long rows are read
 * again in each phase instead. Without reductions of rows, a block has a tile of a row. */
#include "backend/cuda/group_text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/message.h"
#include "op/pointwise.h"

enum { MIN_THREADS = 128, USUAL_THREADS = 256, MAX_LANES = 1024, MAX_HELD = 32, MAX_REGISTERS = 80 };

typedef struct writer {
  const lm_group *g;
  lm_group_launch *l;
  lm_bytes *out;
  bool by_row[LM_GROUP_OPERANDS], by_column[LM_GROUP_OPERANDS]; /* true if an operand differs there */
  bool is_wide[LM_GROUP_OPERANDS];                              /* true if its offsets need 64 bits */
  bool is_each[LM_GROUP_MEMBERS];                               /* true if a member differs within rows */
  bool has_shared[LM_DTYPE_COUNT];
  bool needed[LM_GROUP_MEMBERS], read[LM_GROUP_OPERANDS]; /* values that the phase needs */
  int ready[LM_GROUP_MEMBERS];                            /* number of phases before a value */
  int phases;
} writer;

__attribute__((format(printf, 2, 3))) static void print(writer *w, const char *format, ...) {
  char text[1024];
  va_list list;
  va_start(list, format);
  const int n = vsnprintf(text, sizeof text, format, list);
  va_end(list);
  lm_put(w->out, text, n < (int)sizeof text ? (size_t)n : sizeof text - 1);
}

static const char *stored(lm_dtype dtype) {
  static const char *const names[] = {
#define X(id, ...) "lm_stored_" #id,
      LM_DTYPES(X)
#undef X
  };
  return names[dtype];
}

static const char *number_type(lm_dtype compute) {
  return compute == LM_F32 ? "float" : compute == LM_F64 ? "double" : "int64_t";
}

int lm_group_numbers(const lm_group_member *m) {
  return m->kind == LM_GROUP_EACH ? lm_ops[lm_pointwise_op(m->kernel)].nnumber : 0;
}

/* ---- the space */

static int64_t product(const lm_group *g, int from, int to) {
  int64_t n = 1;
  for (int d = from; d < to; d++) n *= g->size[d];
  return n;
}

static bool differs(const lm_group *g, int k, int from, int to) {
  bool any = false;
  for (int d = from; d < to; d++) any = any || g->operand[k].stride[d] != 0;
  return any;
}

static void describe_values(writer *w) {
  const lm_group *g = w->g;
  for (int k = 0; k < g->noperands; k++) {
    int64_t last = 0;
    w->by_row[k] = differs(g, k, 0, g->nrow);
    w->by_column[k] = differs(g, k, g->nrow, g->ndim);
    for (int d = 0; d < g->ndim; d++) last += (g->size[d] - 1) * g->operand[k].stride[d];
    w->is_wide[k] = last >= INT32_MAX;
  }
  for (int i = 0; i < g->nmembers; i++) {
    const lm_group_member *m = &g->member[i];
    w->is_each[i] = false;
    w->ready[i] = 0;
    for (int n = 0; n < m->nin; n++) {
      w->is_each[i] = w->is_each[i] || (m->in[n] < 0 ? w->by_column[~m->in[n]] : w->is_each[m->in[n]]);
      if (m->in[n] >= 0 && w->ready[m->in[n]] > w->ready[i]) w->ready[i] = w->ready[m->in[n]];
    }
    if (m->kind == LM_GROUP_KEPT) w->is_each[i] = true;
    if (m->kind == LM_GROUP_SUM || m->kind == LM_GROUP_MAX) {
      w->is_each[i] = false;
      w->ready[i]++;
    }
    if (w->ready[i] > w->phases) w->phases = w->ready[i];
  }
}

static bool has_row_reduction(const lm_group *g) {
  for (int i = 0; i < g->nmembers; i++)
    if (g->member[i].kind == LM_GROUP_SUM || g->member[i].kind == LM_GROUP_MAX) return true;
  return false;
}

/* Returns true if operand k may move in packs. */
static bool can_pack(const writer *w, int k, int pack) {
  const lm_group *g = w->g;
  const lm_group_operand *o = &g->operand[k];
  if (o->is_number || !w->by_column[k] || o->stride[g->ndim - 1] != 1 || g->size[g->ndim - 1] % pack != 0) return false;
  for (int d = 0; d < g->ndim - 1; d++)
    if (o->stride[d] % pack != 0) return false;
  return true;
}

/* Returns how many neighboring elements a thread takes: 16 bytes of the narrowest operand that has them. */
static int choose_pack(const writer *w) {
  const lm_group *g = w->g;
  int pack = 1, widest = 1;
  if (g->ndim == g->nrow) return 1;
  for (int k = 0; k < g->noperands; k++) {
    const int width = (int)lm_dtype_size(g->operand[k].dtype);
    if (w->by_column[k] && width > widest) widest = width;
    for (int n = 8; n > pack; n /= 2)
      if (n * width <= 16 && can_pack(w, k, n)) pack = n;
  }
  while (pack * widest > 32) pack /= 2;
  while (g->size[g->ndim - 1] % pack != 0) pack /= 2;
  return pack;
}

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Returns the packs of a row that each of `lanes` threads holds; 0 if they and what is computed of them do not fit its
 * registers. */
static int held_packs(const writer *w, int lanes) {
  const lm_group *g = w->g;
  const int64_t packs = ceil_div(ceil_div(w->l->columns, w->l->pack), lanes), n = packs * w->l->pack;
  int64_t bytes = 0, widest = 0;
  for (int k = 0; k < g->noperands; k++)
    if (w->by_column[k] && g->operand[k].member < 0) bytes += (int64_t)lm_dtype_size(g->operand[k].dtype);
  for (int i = 0; i < g->nmembers; i++) {
    const int64_t size = (int64_t)lm_dtype_size(g->member[i].compute);
    if (g->member[i].kind == LM_GROUP_SUM_OF_ROWS) bytes += size;
    if (size > widest) widest = size;
  }
  const int64_t most = lanes < 512 ? MAX_REGISTERS : MAX_REGISTERS * 400 / lanes; /* a block has 65,536 */
  return n <= MAX_HELD && (bytes + 2 * widest) * n / 4 <= most ? (int)packs : 0;
}

static lm_status plan_launch(writer *w, int processors) {
  const lm_group *g = w->g;
  lm_group_launch *l = w->l;
  l->rows = product(g, 0, g->nrow);
  l->columns = product(g, g->nrow, g->ndim);
  if (l->rows >= INT32_MAX || l->columns >= INT32_MAX - (MAX_LANES * MAX_HELD))
    return lm_fail(LM_E_MISSING, "a group has too many elements");
  l->pack = choose_pack(w);
  for (int k = 0; k < g->noperands; k++) l->is_packed[k] = l->pack > 1 && can_pack(w, k, l->pack);
  for (int i = 0; i < g->nmembers; i++) l->nsums += g->member[i].kind == LM_GROUP_SUM_OF_ROWS;
  const bool reduces = has_row_reduction(g);
  const int64_t packs = ceil_div(l->columns, l->pack);
  l->lanes = 32;
  if (reduces) {
    while ((l->held = held_packs(w, l->lanes)) == 0 && l->lanes < MAX_LANES) l->lanes *= l->lanes == 32 ? 4 : 2;
    if (l->held == 0 && l->nsums > 0) return lm_fail(LM_E_MISSING, "rows are too long for sums of them in registers");
    l->tiles = 1;
  } else {
    const int most = l->nsums > 0 ? MIN_THREADS : USUAL_THREADS;
    while (l->lanes < most && l->lanes < packs) l->lanes *= 2;
    l->held = packs >= 4 * l->lanes && l->nsums == 0 && g->noperands < 4 ? 2 : 1;
    l->tiles = ceil_div(packs, (int64_t)l->lanes * l->held);
  }
  l->threads = reduces && l->lanes > 32 ? l->lanes : l->lanes > USUAL_THREADS / 2 ? l->lanes : USUAL_THREADS / 2;
  l->blocks = ceil_div(l->rows, l->threads / l->lanes);
  if (l->nsums > 0) {
    const int64_t most = ceil_div(2 * (int64_t)processors, l->tiles);
    if (l->blocks > most) l->blocks = most;
  }
  return l->tiles * l->blocks < INT32_MAX ? LM_OK : lm_fail(LM_E_MISSING, "a group has too many elements");
}

/* ---- values */

/* Writes the offset of an element of operand k by its index over dims from `from` to `to`. */
static void print_offset(writer *w, int k, const char *index, int from, int to) {
  const lm_group *g = w->g;
  int64_t divisor = 1;
  bool any = false;
  for (int d = to - 1; d >= from; divisor *= g->size[d--]) {
    const int64_t stride = g->operand[k].stride[d];
    if (stride == 0) continue;
    print(w, any ? " + %s" : "%s", w->is_wide[k] ? "(int64_t)(" : "(");
    print(w, divisor > 1 ? "(%s) / %lldu" : "(%s)", index, (long long)divisor);
    if (d > from) print(w, " %% %lldu", (long long)g->size[d]);
    print(w, w->is_wide[k] ? ") * %lldll" : ") * %lldu", (long long)stride);
    any = true;
  }
  if (!any) print(w, "0u");
}

static void print_columns_offset(writer *w, int k, const char *index) {
  print_offset(w, k, index, w->g->nrow, w->g->ndim);
}

/* Writes the address of operand k's row. */
static void print_address(writer *w, int k) {
  const lm_group_operand *o = &w->g->operand[k];
  print(w, "((%s%s *)a.p%d + r%d)", o->member < 0 ? "const " : "", stored(o->dtype), k, k);
}

static void print_value(writer *w, int ref, lm_dtype compute) {
  print(w, "lm_get<%s>(%c%d)", number_type(compute), ref < 0 ? 'x' : 'v', ref < 0 ? ~ref : ref);
}

/* Returns the operand that gets a member's values; -1: none. */
static int result_of(const lm_group *g, int i) {
  int k = g->noperands - 1;
  while (k >= 0 && g->operand[k].member != i) k--;
  return k;
}

/* Writes the index in memory of element c + j of what a member draws. */
static void print_drawn_index(writer *w, int i, const char *column) {
  const int k = result_of(w->g, i);
  print(w, "(int64_t)(r%d + ", k);
  print_columns_offset(w, k, column);
  print(w, ")");
}

/* Writes the blocks of random bits of a pack, if it has complete blocks. */
static bool draws_packs(const writer *w, int i) { return w->l->pack % 4 == 0 && w->l->is_packed[result_of(w->g, i)]; }
static void print_drawn_blocks(writer *w, int i) {
  if (w->g->member[i].kind != LM_GROUP_KEPT || !w->needed[i] || !draws_packs(w, i)) return;
  print(w, "lm_philox_block b%d[V / 4];\nLM_UNROLL\nfor (int q = 0; q < V / 4; q++) b%d[q] = lm_block_of(&a.d%d, ", i,
        i, i);
  print_drawn_index(w, i, "c");
  print(w, " / 4 + q);\n");
}

static void print_kept(writer *w, int i) {
  const unsigned threshold = (unsigned)ceil(w->g->member[i].number[0] * 0x1p24);
  if (draws_packs(w, i)) {
    print(w, "const lm_bool v%d = {(uint8_t)(b%d[j / 4].word[j %% 4] >> 8 >= %uu)};\n", i, i, threshold);
    return;
  }
  print(w, "const lm_bool v%d = {(uint8_t)(lm_drawn_word(&a.d%d, ", i, i);
  print_drawn_index(w, i, "c + j");
  print(w, ") >> 8 >= %uu)};\n", threshold);
}

/* Writes the definition of a member that reduces nothing. */
static void print_member(writer *w, int i) {
  const lm_group_member *m = &w->g->member[i];
  const char *num = number_type(m->compute), *type = stored(m->dtype);
  if (m->kind == LM_GROUP_KEPT) {
    print_kept(w, i);
    return;
  }
  print(w, "const %s v%d = lm_put<%s>(", type, i, type);
  if (m->kind == LM_GROUP_NUMBER) print(w, "(%s)%a", num, m->number[0]);
  if (m->kind == LM_GROUP_CONVERTED) print_value(w, m->in[0], m->compute);
  if (m->kind == LM_GROUP_EACH) {
    print(w, "lm_row_%s<%s>::of(lm_inputs<%s, %d>{", lm_cuda_row_name(m->kernel), num, num, m->nin);
    for (int n = 0; n < m->nin; n++) {
      if (n > 0) print(w, ", ");
      print_value(w, m->in[n], m->compute);
    }
    if (lm_group_numbers(m) > 0)
      print(w, "}.of, a.n%d)", i);
    else
      print(w, "}.of, lm_numbers<%s>{})", num);
  }
  print(w, ");\n");
}

/* Marks the members, and operands that differ within rows, that a value needs. */
static void require(writer *w, int ref) {
  if (ref < 0) {
    w->read[~ref] = w->by_column[~ref];
    return;
  }
  if (w->needed[ref] || !w->is_each[ref]) return;
  w->needed[ref] = true;
  for (int n = 0; n < w->g->member[ref].nin; n++) require(w, w->g->member[ref].in[n]);
}

static bool reduces_in(const writer *w, int i, int phase) {
  const lm_group_kind kind = w->g->member[i].kind;
  if (kind == LM_GROUP_SUM_OF_ROWS) return phase == w->phases;
  return (kind == LM_GROUP_SUM || kind == LM_GROUP_MAX) && w->ready[i] == phase + 1;
}

static bool is_stored_each(const writer *w, int k) {
  const lm_group_operand *o = &w->g->operand[k];
  return o->member >= 0 && w->g->member[o->member].kind != LM_GROUP_SUM_OF_ROWS && w->by_column[k];
}

/* Marks what the phase needs; false if it has nothing to do. */
static bool begin_phase(writer *w, int phase) {
  bool any = false;
  memset(w->needed, 0, sizeof w->needed);
  memset(w->read, 0, sizeof w->read);
  for (int i = 0; i < w->g->nmembers; i++) {
    if (!reduces_in(w, i, phase)) continue;
    require(w, w->g->member[i].in[0]);
    any = true;
  }
  for (int k = 0; k < w->g->noperands && phase == w->phases; k++) {
    if (!is_stored_each(w, k)) continue;
    require(w, w->g->operand[k].member);
    any = true;
  }
  return any;
}

static void print_accumulation(writer *w, int i) {
  const lm_group_member *m = &w->g->member[i];
  const char *of = m->kind == LM_GROUP_SUM_OF_ROWS ? "[k * V + j]" : "";
  if (m->kind == LM_GROUP_MAX)
    print(w, "s%d = lm_max_of()(s%d, ", i, i);
  else
    print(w, "s%d%s += (", i, of);
  print_value(w, m->in[0], m->compute);
  print(w, ");\n");
}

/* Writes the body of the loop over a thread's elements j of a pack. */
static void print_elements(writer *w, int phase) {
  const lm_group *g = w->g;
  for (int i = 0; i < g->nmembers; i++) print_drawn_blocks(w, i);
  print(w, "LM_UNROLL\nfor (int j = 0; j < V; j++) {\n");
  for (int k = 0; k < g->noperands; k++) {
    if (!w->read[k] || g->operand[k].member >= 0) continue;
    print(w, "const %s x%d = ", stored(g->operand[k].dtype), k);
    if (w->l->held > 0 || w->l->is_packed[k]) {
      print(w, w->l->held > 0 ? "p%d[k].v[j];\n" : "p%d.v[j];\n", k);
    } else {
      print_address(w, k);
      print(w, "[");
      print_columns_offset(w, k, "c + j");
      print(w, "];\n");
    }
  }
  for (int i = 0; i < g->nmembers; i++)
    if (w->needed[i] && !lm_group_is_reduction(g->member[i].kind)) print_member(w, i);
  for (int i = 0; i < g->nmembers; i++)
    if (reduces_in(w, i, phase)) print_accumulation(w, i);
  for (int k = 0; k < g->noperands && phase == w->phases; k++) {
    if (!is_stored_each(w, k)) continue;
    if (w->l->is_packed[k]) {
      print(w, "q%d.v[j] = v%d;\n", k, g->operand[k].member);
      continue;
    }
    print_address(w, k);
    print(w, "[");
    print_columns_offset(w, k, "c + j");
    print(w, "] = v%d;\n", g->operand[k].member);
  }
  print(w, "}\n");
}

/* Writes the loop over a thread's packs in a phase. */
static void print_phase(writer *w, int phase) {
  const lm_group *g = w->g;
  print(w, w->l->held > 0 ? "LM_UNROLL\nfor (int k = 0; k < K; k++) {\nconst uint32_t c = begin + k * (T * V);\n"
                            "if (c < C) {\n"
                          : "for (uint32_t c = begin; c < C; c += T * V) {\n{\n");
  for (int k = 0; k < g->noperands; k++) {
    if (w->read[k] && w->l->held == 0 && w->l->is_packed[k] && g->operand[k].member < 0) {
      print(w, "const lm_pack<%s, V> p%d = lm_load<V>(", stored(g->operand[k].dtype), k);
      print_address(w, k);
      print(w, " + ");
      print_columns_offset(w, k, "c");
      print(w, ");\n");
    }
    if (phase == w->phases && is_stored_each(w, k) && w->l->is_packed[k])
      print(w, "lm_pack<%s, V> q%d;\n", stored(g->operand[k].dtype), k);
  }
  print_elements(w, phase);
  for (int k = 0; k < g->noperands && phase == w->phases; k++) {
    if (!is_stored_each(w, k) || !w->l->is_packed[k]) continue;
    print(w, "lm_store<V>(");
    print_address(w, k);
    print(w, " + ");
    print_columns_offset(w, k, "c");
    print(w, ", q%d);\n", k);
  }
  print(w, "}\n}\n");
}

static bool is_held(const writer *w, int k, bool by_row) {
  return w->g->operand[k].member < 0 && w->by_column[k] && w->by_row[k] == by_row;
}

/* Writes loads of the held packs of operands that differ by row, or of those that do not. */
static void print_held(writer *w, bool by_row) {
  const lm_group *g = w->g;
  bool any = false;
  for (int k = 0; k < g->noperands; k++) {
    const char *type = stored(g->operand[k].dtype);
    if (is_held(w, k, by_row)) print(w, "lm_words<%s, V> w%d[K];\nlm_pack<%s, V> p%d[K];\n", type, k, type, k);
    any = any || is_held(w, k, by_row);
  }
  if (!any) return;
  print(w, "LM_UNROLL\nfor (int k = 0; k < K; k++) {\nconst uint32_t c = begin + k * (T * V);\nif (c < C) {\n");
  for (int k = 0; k < g->noperands; k++) {
    const bool is_packed = w->l->is_packed[k];
    if (!is_held(w, k, by_row)) continue;
    print(w, is_packed ? "w%d[k] = lm_load_words<V>(" : "LM_UNROLL\nfor (int j = 0; j < V; j++) p%d[k].v[j] = ", k);
    print_address(w, k);
    print(w, is_packed ? " + " : "[");
    print_columns_offset(w, k, is_packed ? "c" : "c + j");
    print(w, is_packed ? ");\n" : "];\n");
  }
  print(w, "}\n}\nLM_UNROLL\nfor (int k = 0; k < K; k++) {\n");
  for (int k = 0; k < g->noperands; k++)
    if (is_held(w, k, by_row) && w->l->is_packed[k]) print(w, "p%d[k] = lm_unpack(w%d[k]);\n", k, k);
  print(w, "}\n");
}

/* ---- the kernel */

static void print_parameters(writer *w) {
  const lm_group *g = w->g;
  print(w, "struct lm_group_parameters {\n");
  for (int k = 0; k < g->noperands; k++) {
    if (g->operand[k].is_number)
      print(w, "alignas(8) %s x%d;\n", stored(g->operand[k].dtype), k);
    else
      print(w, "char *p%d;\n", k);
  }
  for (int i = 0; i < g->nmembers; i++)
    if (lm_group_numbers(&g->member[i]) > 0) print(w, "lm_numbers<%s> n%d;\n", number_type(g->member[i].compute), i);
  for (int i = 0; i < g->nmembers; i++)
    if (g->member[i].kind == LM_GROUP_KEPT) print(w, "lm_blocks_drawn d%d;\n", i);
  print(w, "};\n");
}

/* Writes members that are the same within a row, after `ready` phases. */
static void print_row_members(writer *w, int ready) {
  for (int i = 0; i < w->g->nmembers; i++)
    if (!w->is_each[i] && w->ready[i] == ready && !lm_group_is_reduction(w->g->member[i].kind)) print_member(w, i);
}

static void print_begin_of_row(writer *w) {
  const lm_group *g = w->g;
  for (int k = 0; k < g->noperands; k++) {
    const lm_group_operand *o = &g->operand[k];
    if (o->is_number || !w->by_row[k]) continue;
    print(w, "const %s r%d = ", w->is_wide[k] ? "int64_t" : "uint32_t", k);
    print_offset(w, k, "row", 0, g->nrow);
    print(w, ";\n");
    if (o->member >= 0 || w->by_column[k]) continue;
    print(w, "const %s x%d = *", stored(o->dtype), k);
    print_address(w, k);
    print(w, ";\n");
  }
  print_row_members(w, 0);
  if (w->l->held > 0) print_held(w, true);
}

static void print_reductions(writer *w, int phase) {
  for (int i = 0; i < w->g->nmembers; i++) {
    const lm_group_member *m = &w->g->member[i];
    if (m->kind == LM_GROUP_SUM_OF_ROWS || !reduces_in(w, i, phase)) continue;
    const char *op = m->kind == LM_GROUP_MAX ? "lm_max_of()" : "lm_add_of()", *type = stored(m->dtype);
    if (w->l->lanes == 32)
      print(w, "const %s v%d = lm_put<%s>(lm_warp_reduce(s%d, %s));\n", type, i, type, i, op);
    else
      print(w, "const %s v%d = lm_put<%s>(lm_block_reduce(s%d, %s, shared_%s));\n", type, i, type, i, op,
            number_type(m->compute));
  }
}

static void print_row(writer *w) {
  const lm_group *g = w->g;
  print_begin_of_row(w);
  for (int phase = 0; phase <= w->phases; phase++) {
    for (int i = 0; i < g->nmembers; i++) {
      const lm_group_member *m = &g->member[i];
      const char *num = number_type(m->compute);
      if (m->kind == LM_GROUP_SUM_OF_ROWS || !reduces_in(w, i, phase)) continue;
      print(w, m->kind == LM_GROUP_MAX ? "%s s%d = lm_lowest<%s>();\n" : "%s s%d = 0;\n", num, i, num);
    }
    if (begin_phase(w, phase)) print_phase(w, phase);
    print_reductions(w, phase);
    if (phase < w->phases) print_row_members(w, phase + 1);
  }
  for (int k = 0; k < g->noperands; k++) {
    const lm_group_operand *o = &g->operand[k];
    if (o->member < 0 || w->by_column[k] || g->member[o->member].kind == LM_GROUP_SUM_OF_ROWS) continue;
    print(w, "if (begin == 0) *");
    print_address(w, k);
    print(w, " = v%d;\n", o->member);
  }
}

/* Writes a block's sums, those of its rows added up. */
static void print_partial_sums(writer *w) {
  const bool is_shared = w->l->threads > w->l->lanes;
  for (int i = 0; i < w->g->nmembers; i++) {
    const char *num = number_type(w->g->member[i].compute);
    if (w->g->member[i].kind != LM_GROUP_SUM_OF_ROWS || result_of(w->g, i) < 0) continue;
    print(w, "%s *t%d = (%s *)a.p%d + (uint64_t)(blockIdx.x / TILES) * C;\n", num, i, num, result_of(w->g, i));
    if (is_shared) print(w, "__shared__ %s shared%d[C];\nfor (int r = 0; r < R; r++) {\n", num, i);
    print(w, is_shared ? "if (threadIdx.x / T == r)\n" : "");
    print(w,
          "LM_UNROLL\nfor (int k = 0; k < K; k++) {\nconst uint32_t c = begin + k * (T * V);\nLM_UNROLL\n"
          "for (int j = 0; j < V; j++) {\nif (c < C) ");
    if (is_shared)
      print(w,
            "shared%d[c + j] = s%d[k * V + j] + (r > 0 ? shared%d[c + j] : 0);\n}\n}\n__syncthreads();\n}\n"
            "for (uint32_t c = threadIdx.x; c < C; c += T * R) t%d[c] = shared%d[c];\n",
            i, i, i, i, i);
    else
      print(w, "t%d[c + j] = s%d[k * V + j];\n}\n}\n", i, i);
  }
}

static void print_kernel(writer *w) {
  const lm_group *g = w->g;
  const lm_group_launch *l = w->l;
  print(w, "enum { V = %d, T = %d, K = %d, R = %d };\n", l->pack, l->lanes, l->held, l->threads / l->lanes);
  print(w, "static const uint32_t C = %lldu, ROWS = %lldu, TILES = %lldu;\n", (long long)l->columns, (long long)l->rows,
        (long long)l->tiles);
  print_parameters(w);
  print(w, "extern \"C\" LM_KERNEL void __launch_bounds__(%d) lm_group(const lm_group_parameters a) {\n", l->threads);
  for (int c = 0; c < 3 && l->lanes > 32 && has_row_reduction(g); c++)
    print(w, "__shared__ %s shared_%s[LM_WARP];\n", number_type((lm_dtype[]){LM_F32, LM_F64, LM_I64}[c]),
          number_type((lm_dtype[]){LM_F32, LM_F64, LM_I64}[c]));
  print(w, "const uint32_t begin = (blockIdx.x %% TILES * (T * %d) + threadIdx.x %% T) * V;\n",
        l->held > 0 ? l->held : 1);
  for (int k = 0; k < g->noperands; k++) {
    const lm_group_operand *o = &g->operand[k];
    if (o->is_number) {
      print(w, "const %s x%d = a.x%d;\n", stored(o->dtype), k, k);
    } else if (!w->by_row[k]) {
      print(w, "const uint32_t r%d = 0;\n", k);
      if (o->member < 0 && !w->by_column[k])
        print(w, "const %s x%d = *(const %s *)a.p%d;\n", stored(o->dtype), k, stored(o->dtype), k);
    }
  }
  for (int i = 0; i < g->nmembers; i++)
    if (g->member[i].kind == LM_GROUP_SUM_OF_ROWS)
      print(w, "%s s%d[K * V] = {};\n", number_type(g->member[i].compute), i);
  if (l->held > 0) print_held(w, false);
  print(w,
        "for (uint32_t row = blockIdx.x / TILES * R + threadIdx.x / T; row < ROWS; row += gridDim.x / TILES * R) {\n");
  print_row(w);
  print(w, "}\n");
  print_partial_sums(w);
  print(w, "}\n");
}

lm_status lm_group_text(const lm_group *g, int processors, lm_group_launch *l, lm_bytes *out) {
  writer w = {.g = g, .l = l, .out = out};
  *l = (lm_group_launch){0};
  describe_values(&w);
  NEED(plan_launch(&w, processors));
  print_kernel(&w);
  return out->failed ? LM_E_OOM : LM_OK;
}
