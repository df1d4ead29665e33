/* Reads ONNX files: onnx_read(bytes)   the message of a model, uint8 [n], as nested tables: fields by name, as in
 * io/onnx.proto, without those that the file leaves out; elements of tensors are tensors [n] (raw_data: uint8), which
 * own the memory that the message was read into. */
#include "base/mapping_guard.h"
#include "base/mem.h"
#include "base/plugin.h"
#include "bind/bind.h"
#include "io/onnx_message.h"

#ifdef LM_ONNX
#include <protobuf-c/protobuf-c.h>

enum { MAX_DEPTH = 100 }; /* messages in one another; each takes slots of Lua's stack */

static lm_onnx_messages messages;

static lm_status load(void *arg) {
  static const lm_plugin_family family = {"file", LM_VAR_BACKEND_PATH, "lm_onnx_messages_of", "file format"};
  void (*messages_of)(lm_onnx_messages *) = NULL;
  (void)arg;
  NEED(lm_plugin_need(&family, "onnx", (void **)&messages_of));
  messages_of(&messages);
  return LM_OK;
}

static void release(void *message) { messages.release(message); }
LM_HELD_TYPE(message_type, void, release, "luminary.onnx_message", "a message", NULL);

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

/* Pushes a repeated field of n values at *list. */
static void push_values(lua_State *L, const ProtobufCFieldDescriptor *f, void **list, size_t n, int depth) {
  bool is_float = f->type == PROTOBUF_C_TYPE_FLOAT, is_int32 = f->type == PROTOBUF_C_TYPE_INT32;
  size_t bytes = is_float || is_int32 ? 4 : f->type == PROTOBUF_C_TYPE_BYTES ? sizeof(ProtobufCBinaryData) : 8;
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

LM_FUNCTION(onnx_read) {
  static _Atomic bool loaded;
  lua_settop(L, 1);
  lm_need(L, lm_load_once(&loaded, load, NULL));
  void **message = lm_object_new(L, &message_type);
  lm_tensor *bytes;
  lm_need(L, lm_read_plain(L, LM_STATE(L), 1, "onnx_read", "bytes", LM_U8, &bytes));
  lm_need(L, messages.unpack((uint8_t *)bytes->data, (size_t)bytes->numel, message));
  lm_need(L, lm_truncation_check());
  push_message(L, *message, 1);
  message_type.close(message);
  return 1;
}
#else
LM_FUNCTION(onnx_read) {
  return lm_raise(L, lm_fail(LM_E_MISSING, "this build lacks protobuf-c; install its headers and build again"));
}
#endif
