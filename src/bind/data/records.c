/* What data sets read: whole files, parts of files, folders, tar archives, tables. For lua/luminary/data/ alone.
 *
 *   bytes_of(path)           uint8 [n]: a file, plain or gzipped        bytes_tensor(text)  the same of a string
 *   count_up(t)              adds one to an int64 tensor of one element, whoever else does meanwhile
 *   span_text(text, spans, i [, k])
 *       the string at spans[i] = {first byte from 0, length} of a uint8 tensor; of spans [n, columns, 2] (a table's)
 *       that at spans[i][k], as it is meant
 *   scan_folder(root, suffixes)   list of classes, text, spans, labels from 0 (data/folder.h), files of each class
 *   source_open(path)        a file to be read in place, its bytes, its stamp (data/source.h)
 *   source_read(source, at, n)   a string   source_lines(source)   source_line_of(source, at)
 *   source_blocks(source, index, dtype, from, size, stride, base, below)   x, y
 *   tar_open(path)   tar_next(tar)  a file's name, nil at the end   tar_read(tar)  its bytes   tar_close(tar)
 *   csv_rows(path, text, delimiter)   int64 [rows + 1]
 *   csv_fields(path, text, delimiter, from, to)   list of a row's fields
 *   csv_line_of(text, spans, i, k)   the line, from 1, on which a span begins
 *   csv_read(path, text, delimiter, starts, numbers, texts, names, nan, skip)
 *       numbers, texts: for each column which of them it is, from 1, or 0; names: for messages, {} if there are none
 *       gives float32 [rows, numbers], int64 [rows, texts, 2] and how many rows of them are filled
 */
#include "base/mem.h"
#include "bind/bind.h"
#include "data/csv.h"
#include "data/folder.h"
#include "data/source.h"
#include "data/tar.h"
#include "io/unpacked.h"

/* ---- tensors of bytes */

static lm_status bytes_of(lua_State *L, lm_lua *s, void *arg) {
  const char *path;
  lm_status status = lm_read_text(L, s, 1, "bytes_of", "path", &path);
  return status == LM_OK ? lm_read_unpacked(path, arg) : status;
}

static lm_status bytes_tensor(lua_State *L, lm_lua *s, void *arg) {
  lm_tensor **out = arg;
  (void)s;
  if (lua_type(L, 1) != LUA_TSTRING) return lm_fail(LM_E_ARG, "bytes_tensor: a string expected");
  size_t n;
  const char *text = lua_tolstring(L, 1, &n);
  int64_t size = (int64_t)n;
  lm_status status = lm_tensor_empty(LM_U8, LM_DEVICE(LM_CPU, 0), 1, &size, LM_CONTIGUOUS, out);
  if (status == LM_OK && n) memcpy((*out)->data, text, n);
  return status;
}

static int give_tensor(lua_State *L, lm_attempt f) {
  lm_lua *s = LM_STATE(L);
  lm_tensor *t = NULL;
  lua_settop(L, 4);
  lm_pace(L, s);
  lm_box *box = lm_box_new(L);
  lm_status status = lm_attempt_twice(L, s, f, &t);
  if (status != LM_OK) return lm_raise(L, status);
  lm_box_fill(s, box, t);
  lm_pace_count(s, t);
  return 1;
}

static int bind_bytes_of(lua_State *L) { return give_tensor(L, bytes_of); }
static int bind_bytes_tensor(lua_State *L) { return give_tensor(L, bytes_tensor); }

/* A contiguous tensor on the CPU of that dtype. */
static lm_status read_plain(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, lm_dtype dtype,
                            lm_tensor **out) {
  lm_status status = lm_read_tensor(L, s, i, fn, arg, out);
  if (status != LM_OK) return status;
  const lm_tensor *t = *out;
  if (t->dtype == dtype && lm_is_contiguous(t) && LM_DEVICE_KIND(t->device) == LM_CPU) return LM_OK;
  return lm_fail(LM_E_DTYPE, "%s: %s: a contiguous tensor of dtype %s on the CPU expected, got %s", fn, arg,
                 lm_dtype_name(dtype), lm_got(L, s, i));
}

static int bind_count_up(lua_State *L) {
  lm_tensor *t;
  lm_status status = read_plain(L, LM_STATE(L), 1, "count_up", "t", LM_I64, &t);
  if (status == LM_OK && t->numel != 1) status = lm_fail(LM_E_SHAPE, "count_up: t: one element expected");
  if (status != LM_OK) return lm_raise(L, status);
  __atomic_fetch_add((int64_t *)t->data, 1, __ATOMIC_RELAXED);
  return 0;
}

/* A buffer that an error in Lua frees. */
static int free_buffer(lua_State *L);
static const lm_object_type buffer_type = {"luminary.buffer", sizeof(lm_bytes), free_buffer};
static int free_buffer(lua_State *L) {
  lm_bytes *b = lm_to_object(L, 1, &buffer_type);
  if (b) lm_bytes_free(b);
  return 0;
}

/* text, spans, i and k or nil at 1 to 4 */
static lm_status read_span(lua_State *L, const lm_lua *s, const char *fn, lm_tensor **text, bool *meant,
                           const int64_t **out) {
  lm_tensor *spans;
  int64_t i, k = 1;
  lm_status status;
  TRY(read_plain(L, s, 1, fn, "text", LM_U8, text));
  TRY(read_plain(L, s, 2, fn, "spans", LM_I64, &spans));
  TRY(lm_read_int(L, s, 3, fn, "i", &i));
  if (!lua_isnil(L, 4)) TRY(lm_read_int(L, s, 4, fn, "k", &k));
  *meant = spans->ndim == 3;
  int64_t columns = *meant ? spans->size[1] : 1;
  if (spans->ndim < 2 || spans->ndim > 3 || spans->size[spans->ndim - 1] != 2 || i < 1 || i > spans->size[0] || k < 1 ||
      k > columns) {
    return lm_fail(LM_E_INDEX, "%s: there is no span %lld, %lld", fn, (long long)i, (long long)k);
  }
  const int64_t *span = (const int64_t *)spans->data + 2 * ((i - 1) * columns + k - 1), n = (*text)->numel;
  if (span[0] < 0 || span[1] < 0 || span[0] > n || span[1] > n - span[0]) {
    return lm_fail(LM_E_INDEX, "%s: span %lld is not in the text", fn, (long long)i);
  }
  *out = span;
done:
  return status;
}

static int bind_span_text(lua_State *L) {
  lm_tensor *text;
  const int64_t *span = NULL;
  bool meant;
  lua_settop(L, 4);
  lm_bytes *made = lm_object_new(L, &buffer_type);
  lm_status status = read_span(L, LM_STATE(L), "span_text", &text, &meant, &span);
  if (status != LM_OK) return lm_raise(L, status);
  if (!meant) {
    lua_pushlstring(L, span[1] ? (const char *)text->data + span[0] : "", (size_t)span[1]);
    return 1;
  }
  lm_csv_text((const char *)text->data, span[0], span[1], made);
  if (made->failed) return lm_raise(L, lm_fail(LM_E_OOM, "out of memory: a field of a table"));
  lua_pushlstring(L, made->n ? made->data : "", made->n);
  lm_bytes_free(made);
  return 1;
}

static int bind_csv_line_of(lua_State *L) {
  lm_tensor *text;
  const int64_t *span = NULL;
  bool meant;
  int64_t line = 1;
  lua_settop(L, 4);
  lm_status status = read_span(L, LM_STATE(L), "csv_line_of", &text, &meant, &span);
  if (status != LM_OK) return lm_raise(L, status);
  for (int64_t i = 0; i < span[0]; i++) line += text->data[i] == '\n';
  lua_pushnumber(L, (double)line);
  return 1;
}

/* ---- folders */

/* Suffixes and what was found, freed by the collector if Lua raises. */
typedef struct scanning {
  const char *suffix[64];
  int n;
  lm_folder found;
} scanning;
static int free_scanning(lua_State *L);
static const lm_object_type scanning_type = {"luminary.scanning", sizeof(scanning), free_scanning};
static int free_scanning(lua_State *L) {
  scanning *v = lm_to_object(L, 1, &scanning_type);
  if (v) lm_folder_free(&v->found);
  return 0;
}

static lm_status scan(lua_State *L, lm_lua *s, void *arg) {
  scanning *v = arg;
  const char *root;
  lm_status status = lm_read_text(L, s, 1, "scan_folder", "root", &root);
  return status == LM_OK ? lm_folder_scan(root, v->n, v->suffix, &v->found) : status;
}

static int bind_scan_folder(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  lm_status status;
  lua_settop(L, 2);
  luaL_checktype(L, 2, LUA_TTABLE);
  lm_pace(L, s);
  scanning *v = lm_object_new(L, &scanning_type); /* 3 */
  lm_box *text = lm_box_new(L), *spans = lm_box_new(L), *label = lm_box_new(L);
  for (int i = 1; i <= (int)lua_objlen(L, 2); i++) {
    if (v->n == (int)(sizeof v->suffix / sizeof *v->suffix)) {
      return lm_raise_text(L, "scan_folder: at most %d suffixes", v->n);
    }
    lua_rawgeti(L, 2, i);
    TRY(lm_read_text(L, s, lua_gettop(L), "scan_folder", "a suffix", &v->suffix[v->n++]));
    lua_pop(L, 1);
  }
  TRY(lm_attempt_twice(L, s, scan, v));
  lua_createtable(L, (int)v->found.nclasses, 0);
  const char *name = v->found.classes.data;
  for (int i = 1; i <= (int)v->found.nclasses; i++, name += strlen(name) + 1) {
    lua_pushstring(L, name);
    lua_rawseti(L, -2, i);
  }
  lua_createtable(L, (int)v->found.nclasses, 0);
  const int64_t *of = (const int64_t *)v->found.label->data;
  for (int64_t i = 0, k = 0; k < v->found.nclasses; k++) {
    int64_t first = i;
    while (i < v->found.label->numel && of[i] == k) i++;
    lua_pushnumber(L, (double)(i - first));
    lua_rawseti(L, -2, (int)k + 1);
  }
  lm_tensor **made[] = {&v->found.text, &v->found.spans, &v->found.label};
  lm_box *boxes[] = {text, spans, label};
  lua_pushvalue(L, 7);
  for (int i = 0; i < 3; i++) {
    lm_box_fill(s, boxes[i], *made[i]);
    lm_pace_count(s, *made[i]);
    *made[i] = NULL;
    lua_pushvalue(L, 4 + i);
  }
  lua_pushvalue(L, 8);
  return 5;
done:
  return lm_raise(L, status);
}

/* ---- files read in place */

typedef struct held_source {
  lm_source *source;
} held_source;
static int free_source(lua_State *L);
static const lm_object_type source_type = {"luminary.source", sizeof(held_source), free_source};
static int free_source(lua_State *L) {
  held_source *h = lm_to_object(L, 1, &source_type);
  if (h) {
    lm_source_close(h->source);
    h->source = NULL;
  }
  return 0;
}

static lm_status read_source(lua_State *L, const lm_lua *s, const char *fn, lm_source **out) {
  const held_source *h = lm_to_object(L, 1, &source_type);
  if (!h || !h->source) return lm_fail(LM_E_ARG, "%s: a source expected, got %s", fn, lm_got(L, s, 1));
  *out = h->source;
  return LM_OK;
}

static int bind_source_open(lua_State *L) {
  const char *path;
  lm_status status;
  lua_settop(L, 1);
  held_source *h = lm_object_new(L, &source_type);
  TRY(lm_read_text(L, LM_STATE(L), 1, "source_open", "path", &path));
  TRY(lm_source_open(path, &h->source));
  lua_pushnumber(L, (double)lm_source_bytes(h->source));
  lua_pushstring(L, lm_source_stamp(h->source));
  return 3;
done:
  return lm_raise(L, status);
}

static int bind_source_read(lua_State *L) {
  const lm_lua *s = LM_STATE(L);
  lm_source *source = NULL;
  int64_t at, n;
  const char *text;
  lm_status status;
  TRY(read_source(L, s, "source_read", &source));
  TRY(lm_read_int(L, s, 2, "source_read", "at", &at));
  TRY(lm_read_int(L, s, 3, "source_read", "n", &n));
  TRY(lm_source_read(source, at, n, &text));
  lua_pushlstring(L, text, (size_t)n);
  return 1;
done:
  return lm_raise(L, status);
}

static lm_status source_lines(lua_State *L, lm_lua *s, void *arg) {
  lm_source *source = NULL;
  lm_status status = read_source(L, s, "source_lines", &source);
  return status == LM_OK ? lm_source_lines(source, arg) : status;
}

static int bind_source_lines(lua_State *L) { return give_tensor(L, source_lines); }

static int bind_source_line_of(lua_State *L) {
  const lm_lua *s = LM_STATE(L);
  lm_source *source = NULL;
  int64_t at, line;
  lm_status status;
  TRY(read_source(L, s, "source_line_of", &source));
  TRY(lm_read_int(L, s, 2, "source_line_of", "at", &at));
  TRY(lm_source_line_of(source, at, &line));
  lua_pushnumber(L, (double)line);
  return 1;
done:
  return lm_raise(L, status);
}

static lm_status source_blocks(lua_State *L, lm_lua *s, void *arg) {
  static const char fn[] = "source_blocks";
  lm_tensor **made = arg, *index;
  lm_source *source = NULL;
  lm_blocks b;
  lm_status status;
  TRY(read_source(L, s, fn, &source));
  TRY(lm_read_tensor(L, s, 2, fn, "index", &index));
  TRY(lm_read_text(L, s, 3, fn, "dtype", &b.dtype));
  TRY(lm_read_int(L, s, 4, fn, "from", &b.from));
  TRY(lm_read_int(L, s, 5, fn, "size", &b.size));
  TRY(lm_read_int(L, s, 6, fn, "stride", &b.stride));
  TRY(lm_read_int(L, s, 7, fn, "base", &b.base));
  TRY(lm_read_int(L, s, 8, fn, "below", &b.below));
  TRY(lm_source_blocks(source, &b, index, &made[0], &made[1]));
done:
  return status;
}

static int bind_source_blocks(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  lm_tensor *made[2] = {NULL, NULL};
  lua_settop(L, 8);
  lm_pace(L, s);
  lm_box *x = lm_box_new(L), *y = lm_box_new(L);
  lm_status status = lm_attempt_twice(L, s, source_blocks, made);
  if (status != LM_OK) return lm_raise(L, status);
  lm_box_fill(s, x, made[0]);
  lm_box_fill(s, y, made[1]);
  lm_pace_count(s, made[0]);
  lm_pace_count(s, made[1]);
  return 2;
}

/* ---- tar archives */

typedef struct held_tar {
  lm_tar *tar;
} held_tar;
static int free_tar(lua_State *L);
static const lm_object_type tar_type = {"luminary.tar", sizeof(held_tar), free_tar};
static int free_tar(lua_State *L) {
  held_tar *h = lm_to_object(L, 1, &tar_type);
  if (h) {
    lm_tar_close(h->tar);
    h->tar = NULL;
  }
  return 0;
}

static lm_status read_tar(lua_State *L, const lm_lua *s, const char *fn, lm_tar **out) {
  const held_tar *h = lm_to_object(L, 1, &tar_type);
  if (!h || !h->tar) return lm_fail(LM_E_ARG, "%s: an open archive expected, got %s", fn, lm_got(L, s, 1));
  *out = h->tar;
  return LM_OK;
}

static int bind_tar_open(lua_State *L) {
  const char *path;
  lm_status status;
  lua_settop(L, 1);
  held_tar *h = lm_object_new(L, &tar_type);
  TRY(lm_read_text(L, LM_STATE(L), 1, "tar_open", "path", &path));
  TRY(lm_tar_open(path, &h->tar));
  return 1;
done:
  return lm_raise(L, status);
}

static int bind_tar_next(lua_State *L) {
  lm_tar *tar = NULL;
  const char *name;
  size_t n;
  lm_status status;
  TRY(read_tar(L, LM_STATE(L), "tar_next", &tar));
  TRY(lm_tar_next(tar, &name, &n));
  if (!name) return 0;
  lua_pushlstring(L, name, n);
  return 1;
done:
  return lm_raise(L, status);
}

static int bind_tar_read(lua_State *L) {
  lm_tar *tar = NULL;
  const char *data;
  size_t n;
  lm_status status;
  TRY(read_tar(L, LM_STATE(L), "tar_read", &tar));
  TRY(lm_tar_read(tar, &data, &n));
  lua_pushlstring(L, data, n);
  return 1;
done:
  return lm_raise(L, status);
}

static int bind_tar_close(lua_State *L) { return free_tar(L); }

/* ---- tables */

/* path, text, delimiter at 1 to 3 */
static lm_status read_csv(lua_State *L, const lm_lua *s, const char *fn, lm_csv *c) {
  lm_status status;
  lm_tensor *text;
  const char *delimiter;
  TRY(lm_read_text(L, s, 1, fn, "path", &c->path));
  TRY(read_plain(L, s, 2, fn, "text", LM_U8, &text));
  TRY(lm_read_text(L, s, 3, fn, "delimiter", &delimiter));
  c->text = text->numel ? (const char *)text->data : "";
  c->n = text->numel;
  c->delimiter = delimiter[0];
done:
  return status;
}

static lm_status csv_rows(lua_State *L, lm_lua *s, void *arg) {
  lm_csv c;
  lm_status status = read_csv(L, s, "csv_rows", &c);
  return status == LM_OK ? lm_csv_rows(&c, arg) : status;
}

static int bind_csv_rows(lua_State *L) { return give_tensor(L, csv_rows); }

static int bind_csv_fields(lua_State *L) {
  static const char fn[] = "csv_fields";
  const lm_lua *s = LM_STATE(L);
  lm_csv c;
  int64_t from, to;
  int count;
  lm_status status;
  lua_settop(L, 5);
  lm_bytes *made = lm_object_new(L, &buffer_type);
  TRY(read_csv(L, s, fn, &c));
  TRY(lm_read_int(L, s, 4, fn, "from", &from));
  TRY(lm_read_int(L, s, 5, fn, "to", &to));
  if (from < 0 || to < from || to > c.n) {
    status = lm_fail(LM_E_INDEX, "csv_fields: bytes %lld to %lld", (long long)from, (long long)to);
    goto done;
  }
  TRY(lm_csv_fields(&c, from, to, made, &count));
  lua_createtable(L, count, 0);
  lm_reader r = lm_reader_of(made->data, made->n);
  for (int i = 1; i <= count; i++) {
    size_t n;
    const char *text = lm_get_string(&r, &n);
    lua_pushlstring(L, text ? text : "", n);
    lua_rawseti(L, -2, i);
  }
  return 1;
done:
  return lm_raise(L, status);
}

enum { MOST_COLUMNS = 1 << 16 };

typedef struct reading {
  lm_csv_table table;
  const char **name;
  int *number, *text;
} reading;

/* Lists of `columns` at 5, 6 and, unless it is empty, 7. */
static lm_status read_plan(lua_State *L, const lm_lua *s, reading *v, lm_csv_plan *plan) {
  static const char fn[] = "csv_read";
  lm_status status = LM_OK;
  size_t n = lua_objlen(L, 5);
  if (n > MOST_COLUMNS) return lm_fail(LM_E_ARG, "csv_read: more than %d columns", MOST_COLUMNS);
  if (lua_objlen(L, 6) != n) return lm_fail(LM_E_ARG, "csv_read: lists of %zu columns expected", n);
  bool named = lua_objlen(L, 7) == n;
  v->name = lm_malloc(n * sizeof *v->name);
  v->number = lm_malloc(n * sizeof *v->number);
  v->text = lm_malloc(n * sizeof *v->text);
  if (!v->name || !v->number || !v->text) return LM_E_OOM;
  for (int i = 0; i < (int)n; i++) {
    for (int list = 5; list <= 6; list++) {
      int64_t which;
      lua_rawgeti(L, list, i + 1);
      TRY(lm_read_int(L, s, lua_gettop(L), fn, "a column", &which));
      lua_pop(L, 1);
      if (which < 0 || which > (int64_t)n) return lm_fail(LM_E_ARG, "csv_read: a column %lld", (long long)which);
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
done:
  return status;
}

static lm_status csv_read(lua_State *L, lm_lua *s, void *arg) {
  static const char fn[] = "csv_read";
  lm_csv_table *out = arg;
  reading v = {0};
  lm_csv_plan plan = {0};
  lm_csv c;
  lm_tensor *starts;
  lm_status status;
  TRY(read_csv(L, s, fn, &c));
  TRY(read_plain(L, s, 4, fn, "starts", LM_I64, &starts));
  TRY(lm_read_bool(L, s, 8, fn, "nan", &plan.nan));
  TRY(lm_read_bool(L, s, 9, fn, "skip", &plan.skip));
  TRY(read_plan(L, s, &v, &plan));
  const int64_t *at = (const int64_t *)starts->data;
  bool rising = starts->ndim == 1 && starts->numel > 0;
  for (int64_t i = 0; i < starts->numel && rising; i++) rising = at[i] >= (i ? at[i - 1] : 0) && at[i] <= c.n;
  status = rising ? lm_csv_read(&c, starts, &plan, out) : lm_fail(LM_E_ARG, "csv_read: starts do not rise");
done:
  lm_free((void *)v.name);
  lm_free(v.number);
  lm_free(v.text);
  return status;
}

static int bind_csv_read(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  lm_csv_table table = {0};
  lua_settop(L, 9);
  for (int i = 5; i <= 7; i++) luaL_checktype(L, i, LUA_TTABLE);
  lm_pace(L, s);
  lm_box *numbers = lm_box_new(L), *spans = lm_box_new(L);
  lm_status status = lm_attempt_twice(L, s, csv_read, &table);
  if (status != LM_OK) return lm_raise(L, status);
  lm_box_fill(s, numbers, table.numbers);
  lm_box_fill(s, spans, table.spans);
  lm_pace_count(s, table.numbers);
  lm_pace_count(s, table.spans);
  lua_pushnumber(L, (double)table.rows);
  return 3;
}

const luaL_Reg lm_record_functions[] = {{"bytes_of", bind_bytes_of},
                                        {"bytes_tensor", bind_bytes_tensor},
                                        {"count_up", bind_count_up},
                                        {"span_text", bind_span_text},
                                        {"scan_folder", bind_scan_folder},
                                        {"source_open", bind_source_open},
                                        {"source_read", bind_source_read},
                                        {"source_lines", bind_source_lines},
                                        {"source_line_of", bind_source_line_of},
                                        {"source_blocks", bind_source_blocks},
                                        {"tar_open", bind_tar_open},
                                        {"tar_next", bind_tar_next},
                                        {"tar_read", bind_tar_read},
                                        {"tar_close", bind_tar_close},
                                        {"csv_rows", bind_csv_rows},
                                        {"csv_fields", bind_csv_fields},
                                        {"csv_line_of", bind_csv_line_of},
                                        {"csv_read", bind_csv_read},
                                        {NULL, NULL}};
