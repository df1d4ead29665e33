/* Reads and writes files, for file formats implemented in Lua. Offsets count from 0.
 *
 *   file_kind(path)                   "a regular file", "a folder", "a FIFO", "a socket" or "a device"; size; a text of
 *                                     its inode and last change; nothing if there is no file. Does not open it
 *   file_open(path [, mmap [, who]])  an open file; its size in bytes; its stamp, which changes when it is written to
 *   file_close(file)                  tensors read from it stay valid
 *   file_text(file, at, n)            n bytes: a string
 *   file_section(file, at, n)         the same as uint8 [n], mapped or read
 *   file_read(file, dtypes, shapes, offsets)   a list of tensors, read at once
 *   file_inflate(file, at, packed, n, start)   uint8 [n]: `packed` bytes inflated; start: only their first n bytes
 *   file_lines(file)                  int64 [lines + 1] (data/record_file.h)
 *   file_blocks(file, index, dtype, from, size, stride, base, below)   x, y (data/record_file.h)
 *   stream_open(path)                 a file read sequentially, unpacked if gzipped; the most bytes it can have then
 *   stream_text(stream, n)            n bytes, fewer at the end: a string
 *   stream_bytes(stream [, n])        uint8 [n]; without n all remaining bytes
 *   stream_skip(stream, n)            false if a plain file ends before that
 *   stream_finish(stream)             reads to the end, closes it, and raises if the rest is damaged
 *   stream_close(stream)
 *   view_as(x, dtype, sizes, strides, at)  a view of the memory of a contiguous tensor from byte `at` on
 *   crc32(x, before)                  checksum of a contiguous tensor or a string; before: 0, or the preceding bytes'
 *   crc32c(x, before)                 the same with Castagnoli's polynomial
 *   write_pieces(path, list [, who])  writes strings and tensors in order: a complete file or none
 *   growing_file_open(path, keep [, mode])  io/growing_file.h
 *   growing_file_write(file, text)
 *   growing_file_close(file)
 *   remove_abandoned(path, shards)      removes killed writers' temporary files, and shards not named in the list
 *   complete_parts(path, suffix, shards)  renames path .. suffix to path
 *   remove_part(path, suffix)         removes path .. suffix, so that nobody renames it
 *   background_write(path, head, sums_at, tensors, sums_before, shards, background, locked, who, whole, suffix)
 *                                     io/background_write.h; shards: a list of names, or nil; who begins error messages
 *   background_write_done(write [, seconds])  true if it has ended, or ends within that time
 *   background_write_ended(write)     nil while it runs; then its error, which is now reported, or ""
 *   background_write_close(write)     drops the handle; the write continues
 */
#include "base/crc32c.h"
#include "base/mem.h"
#include "base/message.h"
#include "base/regular_file.h"
#include "bind/bind.h"
#include "data/record_file.h"
#include "io/atomic_write.h"
#include "io/background_write.h"
#include "io/file_stream.h"
#include "io/growing_file.h"
#include "op/kernels.h"
#include "op_entries.h"

LM_HELD_TYPE(file_type, lm_file, lm_file_close, "luminary.file", "a file", NULL);

static lm_file *need_file(lua_State *L, const char *fn) { return lm_need_held(L, 1, &file_type, fn); }
static lm_file *file_at_1(lua_State *L) { return *(lm_file **)lua_touserdata(L, 1); } /* checked by need_file */

static lm_status read_count(lua_State *L, lm_lua *s, int i, uint64_t *out) {
  int64_t v;
  lm_status status = lm_read_int(L, s, i, "load", "a position or size", &v);
  if (status == LM_OK && v < 0) status = lm_fail_int("load", "offsets and sizes", "at least 0", v);
  *out = (uint64_t)v;
  return status;
}

static uint64_t need_count(lua_State *L, int i) {
  uint64_t n;
  lm_need(L, read_count(L, LM_STATE(L), i, &n));
  return n;
}

LM_FUNCTION(file_kind) {
  struct stat info;
  if (stat(lm_need_text(L, 1, "file_kind", "path"), &info) != 0) return 0;
  lua_pushstring(L, lm_file_kind(info.st_mode));
  lua_pushnumber(L, (double)info.st_size);
  lua_pushfstring(L, "%f %f %f", (double)info.st_ino, (double)info.st_ctim.tv_sec, (double)info.st_ctim.tv_nsec);
  return 3;
}

static lm_status open_file(lua_State *L, lm_lua *s, void *arg) {
  (void)s;
  return lm_file_open(lua_tostring(L, 1), lua_toboolean(L, 2), arg);
}

LM_FUNCTION(file_open) {
  lua_settop(L, 3);
  lm_need_text(L, 1, lua_isstring(L, 3) ? lua_tostring(L, 3) : "load", "path");
  lm_file **file = lm_object_new(L, &file_type);
  lm_need(L, lm_retry_after_gc(L, LM_STATE(L), open_file, file));
  lua_pushnumber(L, (double)lm_file_bytes(*file));
  lua_pushstring(L, lm_file_stamp(*file));
  return 3;
}

LM_FUNCTION(file_close) { return lm_object_close(L, &file_type, "file_close"); }

LM_FUNCTION(file_text) {
  lm_file *f = need_file(L, "file_text");
  uint64_t at = need_count(L, 2), n = need_count(L, 3);
  const char *text;
  if (n > (uint64_t)1 << 30 && n <= lm_file_bytes(f)) {
    return lm_raise(
        L, lm_fail_file("read", lm_file_path(f), lm_text("a header of %.0f bytes is longer than 2^30", (double)n)));
  }
  lm_need(L, lm_file_view(f, at, n, &text));
  lm_need(L, lm_file_check(f));
  lua_pushlstring(L, text, (size_t)n);
  return 1;
}

static lm_status read_section(lua_State *L, lm_lua *s, void *arg) {
  uint64_t at, n;
  NEED(read_count(L, s, 2, &at));
  NEED(read_count(L, s, 3, &n));
  lm_file_part part = {.dtype = LM_U8, .ndim = 1, .size = {(int64_t)n}, .at = at, .alignment = 8};
  NEED(lm_file_read(file_at_1(L), 1, &part));
  *(lm_tensor **)arg = part.t;
  return LM_OK;
}

LM_FUNCTION(file_section) {
  need_file(L, "file_section");
  return lm_return_tensor(L, 3, read_section);
}

typedef struct reading {
  int n;
  lm_file_part *part;
} reading;

static lm_status read_parts(lua_State *L, lm_lua *s, void *arg) {
  const reading *r = arg;
  (void)s;
  return lm_file_read(file_at_1(L), r->n, r->part);
}

/* Reads entry i of the lists of dtypes, shapes and offsets at 2 to 4 into *part. */
static void read_part(lua_State *L, int i, lm_file_part *part) {
  static const char fn[] = "file_read";
  int top = lua_gettop(L);
  lm_ints shape;
  for (int list = 2; list <= 4; list++) lua_rawgeti(L, list, i);
  LM_NEED_ARGS(L, top + 1, fn, {"dtype", LM_ARG_DTYPE, &part->dtype}, {"shape", LM_ARG_SIZE, &shape});
  part->at = need_count(L, top + 3);
  part->ndim = shape.n;
  memcpy(part->size, shape.v, (size_t)shape.n * sizeof *shape.v);
  part->alignment = lm_dtype_size(part->dtype);
  part->t = NULL;
  lua_settop(L, top);
}

LM_FUNCTION(file_read) {
  lm_lua *s = LM_STATE(L);
  lua_settop(L, 4);
  need_file(L, "file_read");
  for (int list = 2; list <= 4; list++) lm_need_table(L, list, "file_read", "the list");
  reading r = {(int)lua_objlen(L, 2), NULL};
  lm_gc_step_if_due(L, s);
  r.part = lua_newuserdata(L, (size_t)r.n * sizeof *r.part + 1);
  lm_tensor_handle **handle = lua_newuserdata(L, (size_t)r.n * sizeof(lm_tensor_handle *) + 1);
  lua_createtable(L, r.n, 0);
  for (int i = 0; i < r.n; i++) {
    read_part(L, i + 1, &r.part[i]);
    handle[i] = lm_tensor_handle_new(L);
    lua_rawseti(L, 7, i + 1);
  }
  lm_status status = lm_retry_after_gc(L, s, read_parts, &r);
  for (int i = 0; i < r.n && status != LM_OK; i++) lm_release(r.part[i].t); /* set if a mapping was truncated */
  lm_need(L, status);
  for (int i = 0; i < r.n; i++) {
    lm_tensor_handle_fill(s, handle[i], r.part[i].t);
    lm_gc_step_count(s, r.part[i].t);
  }
  return 1;
}

static lm_status inflate_section(lua_State *L, lm_lua *s, void *arg) {
  uint64_t at, packed, n;
  NEED(read_count(L, s, 2, &at));
  NEED(read_count(L, s, 3, &packed));
  NEED(read_count(L, s, 4, &n));
  return lm_file_inflate(file_at_1(L), at, packed, n, lua_toboolean(L, 5), arg);
}

LM_FUNCTION(file_inflate) {
  need_file(L, "file_inflate");
  return lm_return_tensor(L, 5, inflate_section);
}

/* ---- records */

static lm_status find_lines(lua_State *L, lm_lua *s, void *arg) {
  (void)s;
  return lm_file_lines(file_at_1(L), arg);
}

LM_FUNCTION(file_lines) {
  need_file(L, "file_lines");
  return lm_return_tensor(L, 1, find_lines);
}

static lm_status read_blocks(lua_State *L, lm_lua *s, void *arg) {
  static const char fn[] = "file_blocks";
  lm_tensor **result = arg, *index;
  lm_blocks b;
  NEED(LM_READ_ARGS(L, s, 2, fn, {"index", LM_ARG_T, &index}, {"dtype", LM_ARG_TEXT, &b.dtype},
                    {"from", LM_ARG_I, &b.from}, {"size", LM_ARG_I, &b.size}, {"stride", LM_ARG_I, &b.stride},
                    {"base", LM_ARG_I, &b.base}, {"below", LM_ARG_I, &b.below}));
  return lm_file_blocks(file_at_1(L), &b, index, &result[0], &result[1]);
}

LM_FUNCTION(file_blocks) {
  lm_tensor *result[2];
  need_file(L, "file_blocks");
  return lm_return_tensors(L, 8, 2, read_blocks, result, result);
}

/* ---- streams */

LM_HELD_TYPE(stream_type, lm_file_stream, lm_file_stream_close, "luminary.stream", "a stream", NULL);

static lm_status open_stream(lua_State *L, lm_lua *s, void *arg) {
  (void)s;
  return lm_file_stream_open(lua_tostring(L, 1), arg);
}

LM_FUNCTION(stream_open) {
  lm_need_text(L, 1, "load", "path");
  lm_file_stream **stream = lm_object_new(L, &stream_type);
  lm_need(L, lm_retry_after_gc(L, LM_STATE(L), open_stream, stream));
  lua_pushnumber(L, (double)lm_file_stream_most(*stream));
  return 2;
}

LM_FUNCTION(stream_text) {
  lm_file_stream *stream = lm_need_held(L, 1, &stream_type, "stream_text");
  uint64_t n = need_count(L, 2), most = lm_file_stream_most(stream);
  size_t got;
  if (n > most) n = most;
  char *to = lua_newuserdata(L, (size_t)n + 1);
  lm_need(L, lm_file_stream_read(stream, to, (size_t)n, &got));
  lua_pushlstring(L, to, got);
  return 1;
}

static lm_status stream_bytes(lua_State *L, lm_lua *s, void *arg) {
  lm_file_stream *stream = *(lm_file_stream **)lua_touserdata(L, 1);
  uint64_t n;
  if (lua_isnil(L, 2)) return lm_file_stream_rest(stream, arg);
  lm_status status = read_count(L, s, 2, &n);
  return status == LM_OK ? lm_file_stream_bytes(stream, n, arg) : status;
}

LM_FUNCTION(stream_bytes) {
  lm_need_held(L, 1, &stream_type, "stream_bytes");
  return lm_return_tensor(L, 2, stream_bytes);
}

LM_FUNCTION(stream_skip) {
  lm_file_stream *stream = lm_need_held(L, 1, &stream_type, "stream_skip");
  return lm_return_bool(L, lm_file_stream_skip(stream, need_count(L, 2)));
}

LM_FUNCTION(stream_close) { return lm_object_close(L, &stream_type, "stream_close"); }

LM_FUNCTION(stream_finish) {
  lm_file_stream **stream = lm_need_object(L, 1, &stream_type, "stream_finish");
  lm_status status = *stream ? lm_file_stream_finish(*stream) : LM_OK;
  stream_type.close(stream);
  return lm_return(L, status, 0);
}

/* ---- bytes in memory */

static lm_status view_bytes(lua_State *L, lm_lua *s, void *arg) {
  lm_tensor *t;
  lm_dtype dtype;
  lm_ints size, stride;
  uint64_t at;
  NEED(LM_READ_ARGS(L, s, 1, "view_as", {"bytes", LM_ARG_T, &t}, {"dtype", LM_ARG_DTYPE, &dtype},
                    {"sizes", LM_ARG_SIZE, &size}, {"strides", LM_ARG_SIZE, &stride}));
  NEED(read_count(L, s, 5, &at));
  if (!lm_is_contiguous(t) || size.n != stride.n) {
    return lm_fail(LM_E_ARG, "view_as: x must be contiguous, with one stride for each size");
  }
  return lm_tensor_view_as(t, dtype, size.n, size.v, stride.v, (size_t)at, arg);
}

LM_FUNCTION(view_as) { return lm_return_tensor(L, 5, view_bytes); }

/* Returns the bytes, and their number, of the string or the contiguous tensor on the CPU at 1, borrowed. */
static const void *need_bytes(lua_State *L, const char *fn, size_t *n) {
  if (lua_type(L, 1) == LUA_TSTRING) return lua_tolstring(L, 1, n);
  const lm_tensor *t = lm_need_tensor(L, 1, fn, "a tensor");
  if (LM_DEVICE_KIND(t->device) != LM_CPU || !lm_is_contiguous(t))
    lm_raise(L, lm_fail(LM_E_ARG, "%s: x must be contiguous and on cpu", fn));
  *n = lm_nbytes(t);
  return t->data;
}

static int return_sum(lua_State *L, const char *fn, uint32_t (*sum)(uint32_t before, const void *data, size_t n)) {
  size_t n;
  const uint32_t before = (uint32_t)lm_need_number(L, 2, fn, "before");
  const void *data = need_bytes(L, fn, &n);
  return lm_return_number(L, n > 0 ? sum(before, data, n) : before);
}

LM_FUNCTION(crc32) { return return_sum(L, "crc32", lm_crc32); }
LM_FUNCTION(crc32c) { return return_sum(L, "crc32c", lm_crc32c); }

/* ---- writing */

/* Returns in *out a new reference to t if it is contiguous and on the CPU, else such a copy (lm_write_plan's dense). */
static lm_status dense_on_cpu(lm_tensor *t, lm_tensor **out) {
  if (LM_DEVICE_KIND(t->device) == LM_CPU && lm_is_contiguous(t)) {
    *out = lm_retain(t);
    return LM_OK;
  }
  lm_to_copy_args a = {.x = t, .dtype = LM_NO_DTYPE, .device = LM_DEVICE(LM_CPU, 0), .memory_format = LM_CONTIGUOUS};
  lm_tensor *outs[LM_MAX_OUTS];
  NEED(lm_op_run(LM_OP_to_copy, &a, outs));
  *out = outs[0];
  return LM_OK;
}

static lm_status write_pieces(lua_State *L, lm_lua *s, void *arg) {
  lm_status status;
  lm_new_file f = {.fd = -1};
  lm_tensor *dense = NULL;
  const char *path;
  (void)arg;
  TRY(lm_read_text(L, s, 1, lua_isstring(L, 3) ? lua_tostring(L, 3) : "save", "path", &path));
  TRY(lm_new_file_open(path, "", &f));
  for (int i = 1, n = (int)lua_objlen(L, 2); i <= n; i++) {
    lua_rawgeti(L, 2, i);
    if (lua_type(L, -1) == LUA_TSTRING) {
      size_t bytes;
      const char *text = lua_tolstring(L, -1, &bytes);
      TRY(lm_new_file_write(&f, text, bytes));
    } else {
      lm_tensor *t;
      TRY(lm_read_tensor(L, s, lua_gettop(L), "save", "a tensor", &t));
      TRY(dense_on_cpu(t, &dense));
      TRY(lm_new_file_write(&f, dense->data, lm_nbytes(dense)));
      lm_release(dense);
      dense = NULL;
    }
    lua_pop(L, 1);
  }
  TRY(lm_new_file_commit(&f));
done:
  lm_release(dense);
  lm_new_file_abandon(&f);
  return status;
}

LM_FUNCTION(write_pieces) {
  lua_settop(L, 3);
  lm_need_table(L, 2, "write_pieces", "pieces");
  return lm_return(L, lm_retry_after_gc(L, LM_STATE(L), write_pieces, NULL), 0);
}

LM_HELD_TYPE(growing_type, lm_growing_file, lm_growing_file_close, "luminary.growing_file", "a file", NULL);

LM_FUNCTION(growing_file_open) {
  const char *path = lm_need_text(L, 1, "write", "path");
  double mode = lua_isnumber(L, 3) ? lua_tonumber(L, 3) : 0666;
  lm_growing_file **file = lm_object_new(L, &growing_type);
  return lm_return(L, lm_growing_file_open(path, lua_toboolean(L, 2), (mode_t)mode, file), 1);
}

LM_FUNCTION(growing_file_write) {
  size_t bytes;
  lm_growing_file *f = lm_need_held(L, 1, &growing_type, "write");
  const char *text = lm_need_string(L, 2, "write", "text", &bytes);
  return lm_return(L, lm_growing_file_write(f, text, bytes), 0);
}

LM_FUNCTION(growing_file_close) { return lm_object_close(L, &growing_type, "write"); }

LM_FUNCTION(remove_abandoned) {
  int n;
  const char *path = lm_need_text(L, 1, "save", "path");
  lua_settop(L, 2);
  const char **shards = lm_need_strings(L, 2, "save", "shards", 0, &n);
  lm_remove_abandoned(path, n, shards);
  return 0;
}

LM_FUNCTION(complete_parts) {
  int n;
  const char *path = lm_need_text(L, 1, "save", "path"), *suffix = lm_need_text(L, 2, "save", "suffix");
  lua_settop(L, 3);
  const char **shards = lm_need_strings(L, 3, "save", "shards", 0, &n);
  return lm_return(L, lm_complete_parts(path, suffix, n, shards), 0);
}

LM_FUNCTION(remove_part) {
  return lm_return_bool(L, lm_remove_part(lm_need_text(L, 1, "save", "path"), lm_need_text(L, 2, "save", "suffix")));
}

LM_HELD_TYPE(write_type, lm_background_write, lm_background_write_release, "luminary.background_write", "a save", NULL);

typedef struct writing {
  lm_write_plan plan;
  int sums;
  lm_background_write **out;
} writing;

static lm_status start_write(lua_State *L, lm_lua *s, void *arg) {
  writing *v = arg;
  lm_write_plan *p = &v->plan;
  lm_tensor **tensors = NULL;
  lm_status status;
  TRY(lm_read_list(L, s, 4, "save", "tensors", false, &p->n, &tensors));
  p->tensors = tensors;
  for (int i = 0; i < p->n && p->background; i++) {
    if (LM_DEVICE_KIND(tensors[i]->device) != LM_CPU || !lm_is_contiguous(tensors[i])) {
      TRY(lm_fail(LM_E_ARG, "save: tensors must be contiguous and on cpu"));
    }
  }
  if (p->n != v->sums || (uint64_t)p->sums_at + 9 * (uint64_t)p->n > p->head_bytes + 1) {
    TRY(lm_fail(LM_E_ARG, "save: the head has no room for %d checksums", p->n));
  }
  TRY(lm_background_write_start(p, v->out));
done:
  lm_free(tensors);
  return status;
}

LM_FUNCTION(background_write) {
  writing v = {.plan = {.path = lm_need_text(L, 1, "save", "path"), .dense = dense_on_cpu}};
  lm_write_plan *p = &v.plan;
  const char *who = lm_need_text(L, 9, "save", "who");
  lua_settop(L, 11);
  p->head = lm_need_string(L, 2, "save", "head", &p->head_bytes);
  int64_t at = lm_need_int(L, 3, "save", "sums_at");
  p->sums_at = at < 0 ? p->head_bytes : (size_t)at;
  if (!lua_isnil(L, 10)) {
    p->whole = lm_need_text(L, 10, "save", "whole");
    p->suffix = lm_need_text(L, 11, "save", "suffix");
  }
  if (!lua_isnil(L, 6)) p->shards = lm_need_strings(L, 6, "save", "shards", 0, &p->nshards);
  p->background = lua_toboolean(L, 7), p->locked = lua_toboolean(L, 8);
  p->sums_before = lm_need_numbers(L, 5, "save", "sums_before", &v.sums);
  v.out = lm_object_new(L, &write_type);
  return lm_return_as(L, who, lm_retry_after_gc(L, LM_STATE(L), start_write, &v), 1);
}

LM_FUNCTION(background_write_ended) {
  lm_background_write *w = lm_need_held(L, 1, &write_type, "save");
  if (!lm_background_write_wait(w, 0)) return 0;
  return lm_return_text(L, lm_background_write_error(w));
}

LM_FUNCTION(background_write_done) {
  lm_background_write *w = lm_need_held(L, 1, &write_type, "save");
  double seconds = 0;
  LM_NEED_ARGS(L, 2, "save", {"seconds", LM_ARG_F | LM_OR_NIL, &seconds});
  return lm_return_bool(L, lm_background_write_wait(w, seconds));
}

LM_FUNCTION(background_write_close) { return lm_object_close(L, &write_type, "save"); }
