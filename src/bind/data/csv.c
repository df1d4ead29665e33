/* Reads CSV tables, and strings at byte spans of a text (data/csv.h):
 *
 *   span_text(text, spans, i [, k])
 *       the string at spans[i] = {first byte from 0, length} of a uint8 tensor; of spans [n, columns, 2] (a table's)
 *       that at spans[i][k], with doubled quotes undone
 *   csv_rows(path, text, delimiter)   int64 [rows + 1]
 *   csv_fields(path, text, delimiter, from, to)   list of a row's fields
 *   csv_line_of(text, spans, i, k)   the line, from 1, on which a span begins
 *   csv_read(path, text, delimiter, starts, numbers, texts, names, nan, skip)
 *       numbers, texts: each column's index, from 1, in that result, or 0; names: for messages, {} if there are none
 *       returns float32 [rows, numbers], int64 [rows, texts, 2] and the number of rows that are filled
 */
#include "data/csv.h"

#include "base/mem.h"
#include "base/message.h"
#include "bind/bind.h"

/* A buffer that the collector frees if Lua raises. */
static void close_buffer(void *object) { lm_bytes_free(object); }
static const lm_object_type buffer_type = {"luminary.buffer", sizeof(lm_bytes), close_buffer, NULL, NULL};

/* Reads text, spans, i and k (or nil) at 1 to 4. *out: {first byte from 0, length}, borrowed; *meant: spans are 3-d. */
static lm_status read_span(lua_State *L, const lm_lua *s, const char *fn, lm_tensor **text, bool *meant,
                           const int64_t **out) {
  lm_tensor *spans;
  int64_t i, k = 1;
  NEED(LM_READ_ARGS(L, s, 1, fn, {"text", LM_ARG_BYTES, text}, {"spans", LM_ARG_INT64S, &spans}, {"i", LM_ARG_I, &i},
                    {"k", LM_ARG_I | LM_OR_NIL, &k}));
  *meant = spans->ndim == 3;
  int64_t columns = *meant ? spans->size[1] : 1;
  if (spans->ndim < 2 || spans->ndim > 3 || spans->size[spans->ndim - 1] != 2 || i < 1 || i > spans->size[0] || k < 1 ||
      k > columns) {
    return lm_fail(LM_E_INDEX, "%s: span %lld, %lld is out of range", fn, (long long)i, (long long)k);
  }
  const int64_t *span = (const int64_t *)spans->data + 2 * ((i - 1) * columns + k - 1), n = (*text)->numel;
  if (span[0] < 0 || span[1] < 0 || span[0] > n || span[1] > n - span[0]) {
    return lm_fail(LM_E_INDEX, "%s: span %lld is out of range of the text", fn, (long long)i);
  }
  *out = span;
  return LM_OK;
}

LM_FUNCTION(span_text) {
  lm_tensor *text;
  const int64_t *span = NULL;
  bool meant;
  lua_settop(L, 4);
  lm_bytes *made = lm_object_new(L, &buffer_type);
  lm_need(L, read_span(L, LM_STATE(L), "span_text", &text, &meant, &span));
  if (!meant) {
    lua_pushlstring(L, span[1] ? (const char *)text->data + span[0] : "", (size_t)span[1]);
    return 1;
  }
  lm_csv_text((const char *)text->data, span[0], span[1], made);
  if (made->failed) return lm_raise(L, lm_fail_memory("%lld bytes", (long long)span[1]));
  lua_pushlstring(L, made->n ? made->data : "", made->n);
  lm_bytes_free(made);
  return 1;
}

LM_FUNCTION(csv_line_of) {
  lm_tensor *text;
  const int64_t *span = NULL;
  bool meant;
  int64_t line = 1;
  lua_settop(L, 4);
  lm_need(L, read_span(L, LM_STATE(L), "csv_line_of", &text, &meant, &span));
  for (int64_t i = 0; i < span[0]; i++) line += text->data[i] == '\n';
  return lm_return_number(L, (double)line);
}

/* ---- tables */

/* Reads path, text and delimiter at 1 to 3, borrowed. */
static lm_status read_csv(lua_State *L, const lm_lua *s, const char *fn, lm_csv *c) {
  lm_tensor *text;
  const char *delimiter;
  NEED(LM_READ_ARGS(L, s, 1, fn, {"path", LM_ARG_TEXT, &c->path}, {"text", LM_ARG_BYTES, &text},
                    {"delimiter", LM_ARG_TEXT, &delimiter}));
  c->text = text->numel ? (const char *)text->data : "";
  c->n = text->numel;
  c->delimiter = delimiter[0];
  return LM_OK;
}

static lm_status csv_rows(lua_State *L, lm_lua *s, void *arg) {
  lm_csv c;
  lm_status status = read_csv(L, s, "csv_rows", &c);
  return status == LM_OK ? lm_csv_rows(&c, arg) : status;
}

LM_FUNCTION(csv_rows) { return lm_return_tensor(L, 3, csv_rows); }

LM_FUNCTION(csv_fields) {
  static const char fn[] = "csv_fields";
  lm_csv c;
  int count;
  lua_settop(L, 5);
  lm_bytes *made = lm_object_new(L, &buffer_type);
  int64_t from, to;
  LM_NEED_ARGS(L, 4, fn, {"from", LM_ARG_I, &from}, {"to", LM_ARG_I, &to});
  lm_need(L, read_csv(L, LM_STATE(L), fn, &c));
  if (from < 0 || to < from || to > c.n)
    return lm_raise(L,
                    lm_fail_value(fn, "from and to", lm_text("a range within the %lld bytes of text", (long long)c.n),
                                  lm_text("%lld and %lld", (long long)from, (long long)to)));
  lm_need(L, lm_csv_fields(&c, from, to, made, &count));
  lua_createtable(L, count, 0);
  lm_reader r = lm_reader_of(made->data, made->n);
  for (int i = 1; i <= count; i++) {
    size_t n;
    const char *text = lm_get_string(&r, &n);
    lua_pushlstring(L, text ? text : "", n);
    lua_rawseti(L, -2, i);
  }
  return 1;
}

enum { MAX_COLUMNS = 1 << 16 };

typedef struct reading {
  const char **name;
  int *number, *text;
} reading;

/* Reads the columns' lists at 5, 6 and, unless it is empty, 7. The caller frees v's arrays, which the plan borrows. */
static lm_status read_plan(lua_State *L, const lm_lua *s, reading *v, lm_csv_plan *plan) {
  static const char fn[] = "csv_read";
  size_t n = lua_objlen(L, 5);
  if (n > MAX_COLUMNS) return lm_fail(LM_E_ARG, "csv_read: a table must have at most %d columns", MAX_COLUMNS);
  if (lua_objlen(L, 6) != n) return lm_fail(LM_E_ARG, "csv_read: lists must have %zu entries, one for each column", n);
  bool named = lua_objlen(L, 7) == n;
  v->name = lm_malloc(n * sizeof *v->name);
  v->number = lm_malloc(n * sizeof *v->number);
  v->text = lm_malloc(n * sizeof *v->text);
  if (!v->name || !v->number || !v->text) return LM_E_OOM;
  for (int i = 0; i < (int)n; i++) {
    for (int list = 5; list <= 6; list++) {
      int64_t which;
      lua_rawgeti(L, list, i + 1);
      NEED(lm_read_int(L, s, lua_gettop(L), fn, "a column", &which));
      lua_pop(L, 1);
      if (which < 0 || which > (int64_t)n) return lm_fail_int("csv_read", "column", lm_text("from 0 to %zu", n), which);
      int *most = list == 5 ? &plan->numbers : &plan->texts;
      if (which > *most) *most = (int)which;
      (list == 5 ? v->number : v->text)[i] = (int)which - 1;
    }
    lua_rawgeti(L, 7, i + 1);
    v->name[i] = named ? lm_to_text(L, lua_gettop(L)) : NULL; /* kept alive by the list */
    lua_pop(L, 1);
  }
  plan->columns = (int)n;
  plan->number = v->number;
  plan->text = v->text;
  plan->name = v->name;
  return LM_OK;
}

typedef struct csv_result {
  lm_csv_table table;
  lm_tensor *made[2];
} csv_result;

static lm_status csv_read(lua_State *L, lm_lua *s, void *arg) {
  static const char fn[] = "csv_read";
  csv_result *out = arg;
  reading v = {0};
  lm_csv_plan plan = {0};
  lm_csv c;
  lm_tensor *starts;
  lm_status status;
  TRY(read_csv(L, s, fn, &c));
  TRY(lm_read_plain(L, s, 4, fn, "starts", LM_I64, &starts));
  TRY(LM_READ_ARGS(L, s, 8, fn, {"nan", LM_ARG_B, &plan.nan}, {"skip", LM_ARG_B, &plan.skip}));
  TRY(read_plan(L, s, &v, &plan));
  const int64_t *at = (const int64_t *)starts->data;
  bool rising = starts->ndim == 1 && starts->numel > 0;
  for (int64_t i = 0; i < starts->numel && rising; i++) rising = at[i] >= (i ? at[i - 1] : 0) && at[i] <= c.n;
  if (!rising) TRY(lm_fail(LM_E_ARG, "csv_read: starts must increase"));
  TRY(lm_csv_read(&c, starts, &plan, &out->table));
  out->made[0] = out->table.numbers;
  out->made[1] = out->table.spans;
done:
  lm_free((void *)v.name);
  lm_free(v.number);
  lm_free(v.text);
  return status;
}

LM_FUNCTION(csv_read) {
  csv_result result = {0};
  lua_settop(L, 9);
  for (int i = 5; i <= 7; i++) lm_need_table(L, i, "csv_read", "columns");
  lm_return_tensors(L, 9, 2, csv_read, &result, result.made);
  lua_pushnumber(L, (double)result.table.rows);
  return 3;
}
