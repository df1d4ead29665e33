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

#include "base/message.h"
#include "bind/bind.h"

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
  lm_bytes *buffer = lm_buffer_new(L);
  lm_need(L, read_span(L, LM_STATE(L), "span_text", &text, &meant, &span));
  if (!meant) {
    lua_pushlstring(L, span[1] ? (const char *)text->data + span[0] : "", (size_t)span[1]);
    return 1;
  }
  lm_csv_text((const char *)text->data, span[0], span[1], buffer);
  if (buffer->failed) return lm_raise(L, lm_fail_memory("%lld bytes", (long long)span[1]));
  lua_pushlstring(L, buffer->n ? buffer->data : "", buffer->n);
  lm_bytes_free(buffer);
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
  lm_bytes *buffer = lm_buffer_new(L);
  int64_t from, to;
  LM_NEED_ARGS(L, 4, fn, {"from", LM_ARG_I, &from}, {"to", LM_ARG_I, &to});
  lm_need(L, read_csv(L, LM_STATE(L), fn, &c));
  if (from < 0 || to < from || to > c.n)
    return lm_raise(L,
                    lm_fail_value(fn, "from and to", lm_text("a range within the %lld bytes of text", (long long)c.n),
                                  lm_text("%lld and %lld", (long long)from, (long long)to)));
  lm_need(L, lm_csv_fields(&c, from, to, buffer, &count));
  lua_createtable(L, count, 0);
  lm_reader r = lm_reader_of(buffer->data, buffer->n);
  for (int i = 1; i <= count; i++) {
    size_t n;
    const char *text = lm_get_string(&r, &n);
    lua_pushlstring(L, text ? text : "", n);
    lua_rawseti(L, -2, i);
  }
  return 1;
}

enum { MAX_COLUMNS = 1 << 16 };

/* Pushes a userdata with the columns' list at i, whose indices count from 1, and 0 is none; *most: the largest. */
static const int *need_columns(lua_State *L, int i, int n, int *most) {
  int *out = lua_newuserdata(L, (size_t)(n + 1) * sizeof *out);
  for (int k = 0; k < n; k++) {
    lua_rawgeti(L, i, k + 1);
    int64_t which = lm_need_int(L, lua_gettop(L), "csv_read", "a column");
    if (which < 0 || which > n) lm_raise(L, lm_fail_int("csv_read", "column", lm_text("from 0 to %d", n), which));
    if (which > *most) *most = (int)which;
    out[k] = (int)which - 1;
    lua_pop(L, 1);
  }
  return out;
}

typedef struct csv_result {
  lm_csv_plan plan;
  lm_csv_table table;
  lm_tensor *buffer[2];
} csv_result;

static lm_status csv_read(lua_State *L, lm_lua *s, void *arg) {
  static const char fn[] = "csv_read";
  csv_result *out = arg;
  lm_csv c;
  lm_tensor *starts;
  NEED(read_csv(L, s, fn, &c));
  NEED(lm_read_plain(L, s, 4, fn, "starts", LM_I64, &starts));
  NEED(LM_READ_ARGS(L, s, 8, fn, {"nan", LM_ARG_B, &out->plan.nan}, {"skip", LM_ARG_B, &out->plan.skip}));
  const int64_t *at = (const int64_t *)starts->data;
  bool rising = starts->ndim == 1 && starts->numel > 0;
  for (int64_t i = 0; i < starts->numel && rising; i++) rising = at[i] >= (i ? at[i - 1] : 0) && at[i] <= c.n;
  if (!rising) return lm_fail(LM_E_ARG, "csv_read: starts must increase");
  NEED(lm_csv_read(&c, starts, &out->plan, &out->table));
  out->buffer[0] = out->table.numbers;
  out->buffer[1] = out->table.spans;
  return LM_OK;
}

LM_FUNCTION(csv_read) {
  enum { COLUMNS = 12 }; /* stack index of the last userdata */
  csv_result result = {0};
  lua_settop(L, 9);
  for (int i = 5; i <= 7; i++) lm_need_table(L, i, "csv_read", "columns");
  int n = (int)lua_objlen(L, 5);
  if (n > MAX_COLUMNS) return lm_raise_text(L, "csv_read: a table must have at most %d columns", MAX_COLUMNS);
  if ((int)lua_objlen(L, 6) != n)
    return lm_raise_text(L, "csv_read: lists must have %d entries, one for each column", n);
  const char **names = lua_newuserdata(L, (size_t)(n + 1) * sizeof *names);
  for (int k = 0; k < n; k++) {
    lua_rawgeti(L, 7, k + 1);
    names[k] = lm_to_text(L, -1); /* kept alive by the list */
    lua_pop(L, 1);
  }
  lm_csv_plan *plan = &result.plan;
  plan->columns = n;
  plan->name = names;
  plan->number = need_columns(L, 5, n, &plan->numbers);
  plan->text = need_columns(L, 6, n, &plan->texts);
  lm_return_tensors(L, COLUMNS, 2, csv_read, &result, result.buffer);
  lua_pushnumber(L, (double)result.table.rows);
  return 3;
}
