/* Reads and writes ONNX files:
 *   onnx_read(bytes)         the message of a model, uint8 [n], as nested tables: fields by name, as in io/onnx.proto,
 *                            without those that the file leaves out; elements of tensors are tensors [n] (raw_data:
 *                            uint8), which own the memory that the message was read into
 *   onnx_write(path, model)  writes such tables; raw_data is a contiguous tensor on the CPU of any dtype */
#include "base/mapping_guard.h"
#include "base/mem.h"
#include "base/plugin.h"
#include "bind/bind.h"
#include "io/atomic_write.h"
#include "io/onnx_message.h"

#ifdef LM_ONNX
#include <protobuf-c/protobuf-c.h>

enum { MAX_DEPTH = 100 }; /* messages in one another; each takes slots of Lua's stack */

static lm_onnx_messages messages;

static lm_status load_onnx_plugin(void *arg) {
  static const lm_plugin_family family = {"file", LM_VAR_BACKEND_PATH, "lm_onnx_messages_of", "file format", 0};
  void (*messages_of)(lm_onnx_messages *) = NULL;
  (void)arg;
  NEED(lm_plugin_need(&family, "onnx", (void **)&messages_of));
  messages_of(&messages);
  return LM_OK;
}

static void need_messages(lua_State *L) {
  static _Atomic bool loaded;
  lm_need(L, lm_load_once(&loaded, load_onnx_plugin, NULL));
}

static void release(void *message) { messages.release(message); }
LM_HELD_TYPE(message, void, release, "luminary.onnx_message", "a message", NULL, NULL)

/* Pushes the block of n elements at *data as a tensor, which takes its memory. */
static void push_block(lua_State *L, void **data, size_t n, lm_dtype dtype) {
  int64_t size = (int64_t)n;
  lm_tensor_handle *handle = lm_tensor_handle_new(L);
  void *block = *data;
  lm_tensor *t;
  *data = NULL;
  lm_need(
      L, lm_tensor_foreign(dtype, LM_DEVICE(LM_CPU, 0), 1, &size, block, n * lm_dtype_size(dtype), lm_free, block, &t));
  lm_tensor_handle_fill(LM_STATE(L), handle, t);
}

static void push_message(lua_State *L, const ProtobufCMessage *m, int depth);

/* Pushes the value of a field at p. */
static void push_value(lua_State *L, const ProtobufCFieldDescriptor *f, void *p, int depth) {
  ProtobufCBinaryData *bytes = p;
  if (f->type == PROTOBUF_C_TYPE_MESSAGE) {
    push_message(L, *(ProtobufCMessage **)p, depth + 1);
  } else if (f->type == PROTOBUF_C_TYPE_STRING) {
    lua_pushstring(L, *(char **)p);
  } else if (f->type == PROTOBUF_C_TYPE_BYTES && strcmp(f->name, "raw_data") == 0) {
    push_block(L, (void **)&bytes->data, bytes->len, LM_U8);
  } else if (f->type == PROTOBUF_C_TYPE_BYTES) {
    lua_pushlstring(L, bytes->data ? (char *)bytes->data : "", bytes->len);
  } else {
    lua_pushnumber(L, f->type == PROTOBUF_C_TYPE_FLOAT   ? *(float *)p
                      : f->type == PROTOBUF_C_TYPE_INT32 ? (double)*(int32_t *)p
                                                         : (double)*(int64_t *)p);
  }
}

/* Returns the bytes of a value of a repeated field. */
static size_t size_of_value(const ProtobufCFieldDescriptor *f) {
  const bool is_small = f->type == PROTOBUF_C_TYPE_FLOAT || f->type == PROTOBUF_C_TYPE_INT32;
  return is_small ? 4 : f->type == PROTOBUF_C_TYPE_BYTES ? sizeof(ProtobufCBinaryData) : 8;
}

/* Pushes a repeated field of n values at *list. */
static void push_values(lua_State *L, const ProtobufCFieldDescriptor *f, void **list, size_t n, int depth) {
  bool is_float = f->type == PROTOBUF_C_TYPE_FLOAT, is_int32 = f->type == PROTOBUF_C_TYPE_INT32;
  size_t bytes = size_of_value(f);
  if (f->flags & PROTOBUF_C_FIELD_FLAG_PACKED) {
    lm_dtype wide = f->type == PROTOBUF_C_TYPE_DOUBLE ? LM_F64 : LM_I64;
    push_block(L, list, n, is_float ? LM_F32 : is_int32 ? LM_I32 : wide);
    return;
  }
  lua_createtable(L, (int)n, 0);
  for (size_t i = 0; i < n; i++) {
    push_value(L, f, (char *)*list + i * bytes, depth);
    lua_rawseti(L, -2, (int)i + 1);
  }
}

static void push_message(lua_State *L, const ProtobufCMessage *m, int depth) {
  luaL_checkstack(L, 8, "ONNX messages");
  if (depth > MAX_DEPTH) lm_raise(L, lm_fail(LM_E_IO, "its messages are nested too deeply"));
  lua_newtable(L);
  for (unsigned i = 0; i < m->descriptor->n_fields; i++) {
    const ProtobufCFieldDescriptor *f = &m->descriptor->fields[i];
    char *p = (char *)m + f->offset;
    const size_t *n = (const void *)((const char *)m + f->quantifier_offset);
    bool is_pointer = f->type == PROTOBUF_C_TYPE_MESSAGE || f->type == PROTOBUF_C_TYPE_STRING;
    if (f->label == PROTOBUF_C_LABEL_REPEATED) {
      if (*n == 0) continue;
      push_values(L, f, (void **)p, *n, depth);
    } else {
      if (is_pointer ? !*(void **)p : !*(const protobuf_c_boolean *)n) continue;
      push_value(L, f, p, depth);
    }
    lua_setfield(L, -2, f->name);
  }
}

LM_FUNCTION(onnx_read, (any, source)) {
  need_messages(L);
  void **message = lm_object_new(L, &message_type);
  lm_tensor *bytes;
  lm_need(L, lm_read_plain(L, LM_STATE(L), 1, "onnx_read", "bytes", LM_U8, &bytes));
  lm_need(L, messages.unpack((uint8_t *)bytes->data, (size_t)bytes->numel, message));
  lm_need(L, lm_truncation_check());
  push_message(L, *message, 1);
  message_type.close(message);
  return 1;
}

/* ---- writing */

enum { KEPT = 3, PIECE = 4096 }; /* stack index of a table that owns the message's memory; bytes of a small write */

/* Returns n zeroed bytes that the table at KEPT owns. */
static void *keep_block(lua_State *L, size_t n) {
  void *block = lua_newuserdata(L, n + 1);
  lua_rawseti(L, KEPT, (int)lua_objlen(L, KEPT) + 1);
  return memset(block, 0, n);
}

static ProtobufCMessage *read_message(lua_State *L, const ProtobufCMessageDescriptor *d, int depth);

/* Sets the value of a field at p from the value on top. */
static void read_value(lua_State *L, const ProtobufCFieldDescriptor *f, void *p, int depth) {
  ProtobufCBinaryData *bytes = p;
  if (f->type == PROTOBUF_C_TYPE_MESSAGE) {
    *(ProtobufCMessage **)p = read_message(L, f->descriptor, depth + 1);
  } else if (f->type == PROTOBUF_C_TYPE_STRING) {
    *(const char **)p = lm_need_text(L, lua_gettop(L), "export", f->name);
  } else if (f->type == PROTOBUF_C_TYPE_BYTES && lua_type(L, -1) == LUA_TSTRING) {
    bytes->data = (uint8_t *)lua_tolstring(L, -1, &bytes->len);
  } else if (f->type == PROTOBUF_C_TYPE_BYTES) {
    const lm_tensor *t = lm_need_tensor(L, lua_gettop(L), "export", f->name);
    if (LM_DEVICE_KIND(t->device) != LM_CPU || !lm_is_contiguous(t))
      lm_raise(L, lm_fail(LM_E_ARG, "export: %s must be contiguous and on cpu", f->name));
    *bytes = (ProtobufCBinaryData){lm_nbytes(t), (uint8_t *)t->data};
  } else {
    const double number = lm_need_number(L, lua_gettop(L), "export", f->name);
    if (f->type == PROTOBUF_C_TYPE_FLOAT) {
      *(float *)p = (float)number;
    } else if (f->type == PROTOBUF_C_TYPE_INT32) {
      *(int32_t *)p = (int32_t)number;
    } else {
      *(int64_t *)p = (int64_t)number;
    }
  }
}

/* Returns the message of the table on top, whose strings and tensors it borrows. */
static ProtobufCMessage *read_message(lua_State *L, const ProtobufCMessageDescriptor *d, int depth) {
  const int table = lua_gettop(L);
  luaL_checkstack(L, 8, "ONNX messages");
  lm_need_table(L, table, "export", d->short_name);
  if (depth > MAX_DEPTH) lm_raise(L, lm_fail(LM_E_ARG, "export: its messages are nested too deeply"));
  ProtobufCMessage *m = keep_block(L, d->sizeof_message);
  d->message_init(m);
  for (unsigned i = 0; i < d->n_fields; i++) {
    const ProtobufCFieldDescriptor *f = &d->fields[i];
    char *p = (char *)m + f->offset, *quantifier = (char *)m + f->quantifier_offset;
    lua_getfield(L, table, f->name);
    if (lua_isnil(L, -1)) {
      lua_pop(L, 1);
      continue;
    }
    if (f->label == PROTOBUF_C_LABEL_REPEATED) {
      const size_t n = lua_objlen(L, -1);
      char *list = keep_block(L, n * sizeof(ProtobufCBinaryData)); /* the largest kind of value */
      *(void **)p = list;
      *(size_t *)quantifier = n;
      for (size_t k = 0; k < n; k++) {
        lua_rawgeti(L, table + 1, (int)k + 1);
        read_value(L, f, list + k * size_of_value(f), depth);
        lua_pop(L, 1);
      }
    } else {
      read_value(L, f, p, depth);
      if (f->type != PROTOBUF_C_TYPE_MESSAGE && f->type != PROTOBUF_C_TYPE_STRING) {
        *(protobuf_c_boolean *)quantifier = 1;
      }
    }
    lua_pop(L, 1);
  }
  return m;
}

typedef struct writer {
  lm_new_file file;
  lm_status status;
  size_t used; /* bytes in `piece`, of small pieces that are written as one */
  uint8_t piece[PIECE];
} writer;

static void flush(writer *w) {
  if (w->status == LM_OK && w->used > 0) w->status = lm_new_file_write(&w->file, w->piece, w->used);
  w->used = 0;
}

static void append(void *ctx, const uint8_t *bytes, size_t n) {
  writer *w = ctx;
  if (w->used + n > PIECE) flush(w);
  if (n <= PIECE - w->used) {
    if (n > 0) memcpy(w->piece + w->used, bytes, n);
    w->used += n;
  } else if (w->status == LM_OK) {
    w->status = lm_new_file_write(&w->file, bytes, n);
  }
}

static lm_status write_model(const char *path, const ProtobufCMessage *model) {
  writer w = {.file = {.fd = -1}};
  w.status = lm_new_file_open(path, "", &w.file);
  if (w.status == LM_OK) messages.pack(model, append, &w);
  flush(&w);
  if (w.status == LM_OK) w.status = lm_new_file_commit(&w.file);
  lm_new_file_abandon(&w.file);
  return w.status;
}

LM_FUNCTION_AS(onnx_write, "export", (text, path), (any, model_table)) {
  need_messages(L);
  lua_newtable(L);
  lua_pushvalue(L, 2);
  const ProtobufCMessage *model = read_message(L, messages.model, 1);
  return lm_return(L, write_model(path, model), 0);
}
#else
LM_FUNCTION(onnx_write) {
  return lm_raise(L, lm_fail(LM_E_MISSING, "this build lacks protobuf-c; install its headers and build again"));
}
LM_FUNCTION(onnx_read) {
  return lm_raise(L, lm_fail(LM_E_MISSING, "this build lacks protobuf-c; install its headers and build again"));
}
#endif
