#include "io/onnx_message.h"

#include <stdbool.h>

#include "base/c_stack.h"
#include "base/mem.h"
#include "onnx.pb-c.h"

/* Bounds of an unpacked message. In protobuf-c a message in a message takes 1.5 KB of C stack, and an empty one of two
 * bytes up to 150 of memory: hence a multiple of the file's size and an allowance for small files. A block counts with
 * what malloc adds to it, and with an estimate of the Lua values that are made of it. */
enum { MAX_STACK = 128 << 10, SPARE_STACK = 32 << 10, MAX_RATIO = 4, BLOCK = 192, LUA_TABLE = 1024 };
static const size_t ALLOWANCE = 64 << 20;

typedef struct budget {
  size_t left; /* bytes that may still be allocated */
  const char *start;
  const char *exceeded; /* the bound that the file exceeds; NULL: none */
  bool failed;          /* true once memory ran out */
} budget;

static void *allocate(void *data, size_t n) {
  budget *b = data;
  const char *here = __builtin_frame_address(0);
  const size_t counted = n + BLOCK + (n < LUA_TABLE ? n : LUA_TABLE);
  if ((size_t)(b->start - here) > MAX_STACK) {
    b->exceeded = "its messages are nested too deeply";
  } else if (counted > b->left) {
    b->exceeded = "its messages take more memory than its size explains";
  }
  if (b->exceeded) return NULL;
  b->left -= counted;
  void *block = lm_malloc(n);
  b->failed |= !block;
  return block;
}

static void release_block(void *data, void *block) {
  (void)data;
  lm_free(block);
}

static void release(void *message) {
  ProtobufCAllocator allocator = {allocate, release_block, NULL};
  if (message) protobuf_c_message_free_unpacked(message, &allocator);
}

static lm_status unpack(const uint8_t *bytes, size_t n, void **message) {
  budget b = {n * MAX_RATIO + ALLOWANCE, __builtin_frame_address(0), NULL, false};
  ProtobufCAllocator allocator = {allocate, release_block, &b};
  if (lm_stack_left() < MAX_STACK + SPARE_STACK) {
    return lm_fail(LM_E_IO, "the C stack has too little room to read ONNX");
  }
  *message = protobuf_c_message_unpack(&onnx__model__descriptor, &allocator, n, bytes);
  if (*message) return LM_OK;
  if (b.exceeded) return lm_fail(LM_E_IO, "%s", b.exceeded);
  return b.failed ? LM_E_OOM : lm_fail(LM_E_IO, "it is no ONNX model, or it is damaged or cut off");
}

typedef struct sink {
  ProtobufCBuffer base;
  void (*append)(void *ctx, const uint8_t *bytes, size_t n);
  void *ctx;
} sink;

static void append_to_sink(ProtobufCBuffer *buffer, size_t n, const uint8_t *bytes) {
  const sink *s = (const sink *)(void *)buffer;
  s->append(s->ctx, bytes, n);
}

static void pack(const void *message, void (*append)(void *ctx, const uint8_t *bytes, size_t n), void *ctx) {
  sink s = {{append_to_sink}, append, ctx};
  protobuf_c_message_pack_to_buffer(message, &s.base);
}

LM_API void lm_onnx_messages_of(lm_onnx_messages *out);
void lm_onnx_messages_of(lm_onnx_messages *out) {
  *out = (lm_onnx_messages){unpack, release, pack, &onnx__model__descriptor};
}
