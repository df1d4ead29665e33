#include "io/onnx_message.h"

#include <stdbool.h>

#include "base/c_stack.h"
#include "base/mem.h"
#include "onnx.pb-c.h"

/* Bounds of an unpacked message. In protobuf-c a message in a message takes 1.5 KB of C stack, and an empty one of two
 * bytes up to 150 of memory: hence a multiple of the file's size and an allowance for graphs without weights, which is
 * less for a small file. A block counts with what malloc adds to it, and twice, since Lua values are made of it. */
enum { MAX_STACK = 128 << 10, SPARE_STACK = 12 << 10, MAX_RATIO = 4, BLOCK = 192 };
static const size_t ALLOWANCE = 64 << 20, SMALL_ALLOWANCE = 2 << 20, SMALL_RATIO = 128;

typedef struct budget {
  size_t left; /* bytes that may still be allocated */
  const char *start;
  size_t stack;         /* bytes of the C stack that the messages may take */
  const char *exceeded; /* the bound that the file exceeds; NULL: none */
  bool failed;          /* true once memory ran out */
} budget;

static void *allocate(void *data, size_t n) {
  budget *b = data;
  const char *here = __builtin_frame_address(0);
  const size_t counted = 2 * n + BLOCK;
  if ((size_t)(b->start - here) > b->stack) {
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
  const size_t small = SMALL_ALLOWANCE + n * SMALL_RATIO, left = lm_stack_left();
  budget b = {.left = n * MAX_RATIO + (small < ALLOWANCE ? small : ALLOWANCE), .start = __builtin_frame_address(0)};
  ProtobufCAllocator allocator = {allocate, release_block, &b};
  b.stack = left > MAX_STACK + SPARE_STACK ? MAX_STACK : left > SPARE_STACK ? left - SPARE_STACK : 0;
  *message = protobuf_c_message_unpack(&onnx__model__descriptor, &allocator, n, bytes);
  if (*message) return LM_OK;
  if (b.exceeded && b.stack < MAX_STACK) {
    return lm_fail(LM_E_MISSING, "%s, or the stack of this thread, of %zu KB, is too small", b.exceeded,
                   lm_stack_size() >> 10);
  }
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

static void pack_onnx(const void *message, void (*append)(void *ctx, const uint8_t *bytes, size_t n), void *ctx) {
  sink s = {{append_to_sink}, append, ctx};
  protobuf_c_message_pack_to_buffer(message, &s.base);
}

LM_API void lm_onnx_messages_of(lm_onnx_messages *out);
void lm_onnx_messages_of(lm_onnx_messages *out) {
  *out = (lm_onnx_messages){unpack, release, pack_onnx, &onnx__model__descriptor};
}
