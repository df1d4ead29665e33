/* Reads and writes files, for file formats implemented in Lua. Offsets count from 0.
 *
 *   file_kind          "a regular file", "a folder", "a FIFO", "a socket" or "a device"; size; a text of its inode and
 *                      last change; nothing if there is no file. Does not open it
 *   file_open          an open file; its size in bytes; its stamp, which changes when it is written to
 *   file_close         tensors read from it stay valid
 *   file_text          n bytes: a string
 *   file_section       the same as uint8 [n], mapped or read
 *   file_read          a list of tensors, read at once
 *   file_inflate       uint8 [n]: `packed` bytes inflated; start: only their first n bytes
 *   file_lines         int64 [lines + 1] (data/record_file.h)
 *   file_blocks        x, y (data/record_file.h)
 *   stream_open        a file read sequentially, unpacked if gzipped; the most bytes it can have then
 *   stream_text        n bytes, fewer at the end: a string
 *   stream_bytes       uint8 [n]; without n all remaining bytes
 *   stream_skip        false if a plain file ends before that
 *   stream_finish      reads to the end, closes it, and raises if the rest is damaged
 *   view_as            a view of the memory of a contiguous tensor from byte `at` on
 *   crc32              checksum of a contiguous tensor or a string; before: 0, or the preceding bytes'
 *   crc32c             the same with Castagnoli's polynomial
 *   write_pieces       writes strings, tensors, and those that functions return when it is their turn, in order: a
 *                      complete file or none
 *   growing_file_open  io/growing_file.h
 *   remove_abandoned   removes killed writers' temporary files, and shards not named in the list
 *   complete_parts     renames path .. suffix to path
 *   remove_part        removes path .. suffix, so that nobody renames it
 *   background_write   io/background_write.h; shards: a list of names, or nil; who begins error messages
 *   background_write_done   true if it has ended, or ends within that time
 *   background_write_ended  nil while it runs; then its error, which is now reported, or ""
 *   background_write_close  drops the handle; the write continues
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

LM_HELD_TYPE(file, lm_file, lm_file_close, "luminary.file", "a file", NULL, NULL)

static lm_file *file_at_1(lua_State *L) { return *(lm_file **)lua_touserdata(L, 1); } /* checked by lm_need_file */

LM_READER(uint64_t, count) {
  int64_t v = lm_need_int(L, i, "load", "a position or size");
  if (v < 0) lm_raise(L, lm_fail_int("load", "offsets and sizes", "at least 0", v));
  return (uint64_t)v;
}

LM_FUNCTION(file_kind, (text, path)) {
  struct stat info;
  if (stat(path, &info) != 0) return 0;
  lua_pushstring(L, lm_file_kind(info.st_mode));
  lua_pushnumber(L, (double)info.st_size);
  lua_pushfstring(L, "%f %f %f", (double)info.st_ino, (double)info.st_ctim.tv_sec, (double)info.st_ctim.tv_nsec);
  return 3;
}

static lm_status open_file(lua_State *L, lm_lua *s, void *arg) {
  (void)s;
  return lm_file_open(lua_tostring(L, 1), lua_toboolean(L, 2), arg);
}

LM_FUNCTION(file_open, (any, path), (flag, mmap), (text, who, "load")) {
  lm_need_text(L, path, who, "path");
  lm_file **file = lm_object_new(L, &file_type);
  lm_need(L, lm_retry_after_gc(L, LM_STATE(L), open_file, file));
  lua_pushnumber(L, (double)lm_file_bytes(*file));
  lua_pushstring(L, lm_file_stamp(*file));
  return 3;
}

LM_FUNCTION(file_close) { return lm_object_close(L, &file_type, "file_close"); }

LM_FUNCTION(file_text, (file, f), (count, at), (count, n)) {
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

/* Returns the count at i, which the function's declaration checked. */
static uint64_t count_at(lua_State *L, const lm_lua *s, int i) {
  int64_t n = 0;
  (void)lm_read_int(L, s, i, "load", "", &n);
  return (uint64_t)n;
}

static lm_status read_section(lua_State *L, lm_lua *s, void *arg) {
  lm_file_part part = {.dtype = LM_U8, .ndim = 1, .at = count_at(L, s, 2), .alignment = 8};
  part.size[0] = (int64_t)count_at(L, s, 3);
  NEED(lm_file_read(file_at_1(L), 1, &part));
  *(lm_tensor **)arg = part.t;
  return LM_OK;
}

LM_FUNCTION(file_section, (file, f), (count, at), (count, n)) { return lm_return_tensor(L, 3, read_section); }

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
  part->at = lm_need_count(L, top + 3, fn, "offset");
  part->ndim = shape.n;
  memcpy(part->size, shape.v, (size_t)shape.n * sizeof *shape.v);
  part->alignment = lm_dtype_size(part->dtype);
  part->t = NULL;
  lua_settop(L, top);
}

LM_FUNCTION(file_read, (file, f), (table, dtypes), (table, shapes), (table, offsets)) {
  lm_lua *s = LM_STATE(L);
  reading r = {(int)lua_objlen(L, dtypes), NULL};
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
  uint64_t at = count_at(L, s, 2), packed = count_at(L, s, 3), n = count_at(L, s, 4);
  return lm_file_inflate(file_at_1(L), at, packed, n, lua_toboolean(L, 5), arg);
}

LM_FUNCTION(file_inflate, (file, f), (count, at), (count, packed), (count, n), (flag, start)) {
  return lm_return_tensor(L, 5, inflate_section);
}

/* ---- records */

static lm_status find_lines(lua_State *L, lm_lua *s, void *arg) {
  (void)s;
  return lm_file_lines(file_at_1(L), arg);
}

LM_FUNCTION(file_lines, (file, f)) { return lm_return_tensor(L, 1, find_lines); }

static lm_status read_blocks(lua_State *L, lm_lua *s, void *arg) {
  static const char fn[] = "file_blocks";
  lm_tensor **result = arg, *index;
  lm_blocks b;
  NEED(LM_READ_ARGS(L, s, 2, fn, {"index", LM_ARG_T, &index}, {"dtype", LM_ARG_TEXT, &b.dtype},
                    {"from", LM_ARG_I, &b.from}, {"size", LM_ARG_I, &b.size}, {"stride", LM_ARG_I, &b.stride},
                    {"base", LM_ARG_I, &b.base}, {"below", LM_ARG_I, &b.below}));
  return lm_file_blocks(file_at_1(L), &b, index, &result[0], &result[1]);
}

LM_FUNCTION(file_blocks, (file, f), (any, index), (any, dtype), (any, from), (any, size), (any, stride), (any, base),
            (any, below)) {
  lm_tensor *result[2];
  return lm_return_tensors(L, 8, 2, read_blocks, result, result);
}

/* ---- streams */

LM_HELD_TYPE(file_stream, lm_file_stream, lm_file_stream_close, "luminary.stream", "a stream", NULL, NULL)

static lm_status open_stream(lua_State *L, lm_lua *s, void *arg) {
  (void)s;
  return lm_file_stream_open(lua_tostring(L, 1), arg);
}

LM_FUNCTION_AS(stream_open, "load", (text, path)) {
  lm_file_stream **stream = lm_object_new(L, &file_stream_type);
  lm_need(L, lm_retry_after_gc(L, LM_STATE(L), open_stream, stream));
  lua_pushnumber(L, (double)lm_file_stream_most(*stream));
  return 2;
}

LM_FUNCTION(stream_text, (file_stream, stream), (count, n)) {
  uint64_t most = lm_file_stream_most(stream);
  size_t got;
  if (n > most) n = most;
  char *to = lua_newuserdata(L, (size_t)n + 1);
  lm_need(L, lm_file_stream_read(stream, to, (size_t)n, &got));
  lua_pushlstring(L, to, got);
  return 1;
}

static lm_status stream_bytes(lua_State *L, lm_lua *s, void *arg) {
  lm_file_stream *stream = *(lm_file_stream **)lua_touserdata(L, 1);
  if (lua_isnil(L, 2)) return lm_file_stream_rest(stream, arg);
  return lm_file_stream_bytes(stream, count_at(L, s, 2), arg);
}

LM_FUNCTION(stream_bytes, (file_stream, stream), (count, n, 0)) { return lm_return_tensor(L, 2, stream_bytes); }

LM_FUNCTION(stream_skip, (file_stream, stream), (count, n)) {
  return lm_return_bool(L, lm_file_stream_skip(stream, n));
}

LM_FUNCTION(stream_close) { return lm_object_close(L, &file_stream_type, "stream_close"); }

LM_FUNCTION(stream_finish) {
  lm_file_stream **stream = lm_need_object(L, 1, &file_stream_type, "stream_finish");
  lm_status status = *stream ? lm_file_stream_finish(*stream) : LM_OK;
  file_stream_type.close(stream);
  return lm_return(L, status, 0);
}

/* ---- bytes in memory */

static lm_status view_bytes(lua_State *L, lm_lua *s, void *arg) {
  lm_tensor *t;
  lm_dtype dtype;
  lm_ints size, stride;
  NEED(LM_READ_ARGS(L, s, 1, "view_as", {"bytes", LM_ARG_T, &t}, {"dtype", LM_ARG_DTYPE, &dtype},
                    {"sizes", LM_ARG_SIZE, &size}, {"strides", LM_ARG_SIZE, &stride}));
  if (!lm_is_contiguous(t) || size.n != stride.n) {
    return lm_fail(LM_E_ARG, "view_as: x must be contiguous, with one stride for each size");
  }
  return lm_tensor_view_as(t, dtype, size.n, size.v, stride.v, count_at(L, s, 5), arg);
}

LM_FUNCTION(view_as, (any, x), (any, dtype), (any, sizes), (any, strides), (count, at)) {
  return lm_return_tensor(L, 5, view_bytes);
}

/* Returns the bytes of the string or the contiguous tensor on the CPU at i, borrowed. */
LM_READER(lm_lua_string, bytes) {
  if (lua_type(L, i) == LUA_TSTRING) return lm_need_string(L, i, fn, arg);
  const lm_tensor *t = lm_need_tensor(L, i, fn, "a tensor");
  if (LM_DEVICE_KIND(t->device) != LM_CPU || !lm_is_contiguous(t))
    lm_raise(L, lm_fail(LM_E_ARG, "%s: x must be contiguous and on cpu", fn));
  return (lm_lua_string){t->data, lm_nbytes(t)};
}

LM_FUNCTION(crc32, (bytes, x), (number, before)) {
  return lm_return_number(L, x.n > 0 ? lm_crc32((uint32_t)before, x.text, x.n) : before);
}
LM_FUNCTION(crc32c, (bytes, x), (number, before)) {
  return lm_return_number(L, x.n > 0 ? lm_crc32c((uint32_t)before, x.text, x.n) : before);
}

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
  TRY(lm_read_text(L, s, 1, arg, "path", &path));
  TRY(lm_new_file_open(path, "", &f));
  for (int i = 1, n = (int)lua_objlen(L, 2); i <= n; i++) {
    lua_rawgeti(L, 2, i);
    if (lua_isfunction(L, -1) && lm_pcall(L, 0, 1)) {
      const char *why = lua_tostring(L, -1);
      TRY(lm_fail(LM_E_ARG, "%s", why ? why : "a piece cannot be made"));
    }
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

LM_FUNCTION(write_pieces, (any, path), (table, pieces), (text, who, "save")) {
  return lm_return(L, lm_retry_after_gc(L, LM_STATE(L), write_pieces, (void *)who), 0);
}

LM_HELD_TYPE(growing, lm_growing_file, lm_growing_file_close, "luminary.growing_file", "a file", NULL, NULL)

LM_FUNCTION_AS(growing_file_open, "write", (text, path), (flag, keep), (number, mode, 0666)) {
  lm_growing_file **file = lm_object_new(L, &growing_type);
  return lm_return(L, lm_growing_file_open(path, keep, (mode_t)mode, file), 1);
}

LM_FUNCTION_AS(growing_file_write, "write", (growing, file), (string, text)) {
  return lm_return(L, lm_growing_file_write(file, text.text, text.n), 0);
}

LM_FUNCTION(growing_file_close) { return lm_object_close(L, &growing_type, "write"); }

LM_FUNCTION_AS(remove_abandoned, "save", (text, path), (any, shards)) {
  int n;
  const char **names = lm_need_strings(L, shards, "save", "shards", 0, &n);
  lm_remove_abandoned(path, n, names);
  return 0;
}

LM_FUNCTION_AS(complete_parts, "save", (text, path), (text, suffix), (any, shards)) {
  int n;
  const char **names = lm_need_strings(L, shards, "save", "shards", 0, &n);
  return lm_return(L, lm_complete_parts(path, suffix, n, names), 0);
}

LM_FUNCTION_AS(remove_part, "save", (text, path), (text, suffix)) {
  return lm_return_bool(L, lm_remove_part(path, suffix));
}

LM_HELD_TYPE(write, lm_background_write, lm_background_write_release, "luminary.background_write", "a save", NULL, NULL)

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

LM_FUNCTION_AS(background_write, "save", (text, path), (string, head), (int, sums_at), (any, tensors),
               (any, sums_before), (any, shards), (flag, background), (flag, locked), (text, who), (text, whole, NULL),
               (text, suffix, NULL)) {
  lm_write_plan plan = {.path = path, .head = head.text, .head_bytes = head.n, .dense = dense_on_cpu};
  plan.sums_at = sums_at < 0 ? head.n : (size_t)sums_at;
  plan.background = background, plan.locked = locked, plan.whole = whole, plan.suffix = suffix;
  if (!lua_isnil(L, shards)) plan.shards = lm_need_strings(L, shards, "save", "shards", 0, &plan.nshards);
  writing v = {.plan = plan};
  v.plan.sums_before = lm_need_numbers(L, sums_before, "save", "sums_before", &v.sums);
  v.out = lm_object_new(L, &write_type);
  return lm_return_as(L, who, lm_retry_after_gc(L, LM_STATE(L), start_write, &v), 1);
}

LM_FUNCTION_AS(background_write_ended, "save", (write, w)) {
  return lm_background_write_wait(w, 0) ? lm_return_text(L, lm_background_write_error(w)) : 0;
}

LM_FUNCTION_AS(background_write_done, "save", (write, w), (number, seconds, 0)) {
  return lm_return_bool(L, lm_background_write_wait(w, seconds));
}

LM_FUNCTION(background_write_close) { return lm_object_close(L, &write_type, "save"); }
