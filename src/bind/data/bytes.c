/* Makes tensors of bytes, and counts atomically:
 *
 *   bytes_tensor(text)       uint8 [n]
 *   count_up(t)              atomically adds one to an int64 tensor of one element
 */
#include "base/message.h"
#include "bind/bind.h"

static lm_status bytes_tensor(lua_State *L, lm_lua *s, void *arg) {
  lm_tensor **out = arg;
  size_t n;
  const char *text;
  NEED(lm_read_string(L, s, 1, "bytes_tensor", "bytes", &text, &n));
  int64_t size = (int64_t)n;
  lm_status status = lm_tensor_empty(LM_U8, LM_DEVICE(LM_CPU, 0), 1, &size, LM_CONTIGUOUS, out);
  if (status == LM_OK && n) memcpy((*out)->data, text, n);
  return status;
}

LM_FUNCTION(bytes_tensor) { return lm_return_tensor(L, 1, bytes_tensor); }

LM_FUNCTION(count_up) {
  lm_tensor *t;
  lm_need(L, lm_read_plain(L, LM_STATE(L), 1, "count_up", "t", LM_I64, &t));
  if (t->numel != 1) return lm_raise_arg(L, 1, "count_up", "t", "a tensor of one element");
  __atomic_fetch_add((int64_t *)t->data, 1, __ATOMIC_RELAXED);
  return 0;
}
