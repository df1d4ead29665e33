/* Runs image transforms, and draws the random numbers for them. */
#include "image/transform.h"

#include "bind/bind.h"
#include "philox.h"
#include "tensor/generator.h"

/* ---- image_transform(name, x, numbers [, out]): a transform of image/transform.h, into `out` if it is given */

static const char fn[] = "image_transform";

typedef struct transforming {
  const char *name;
  int n;
  double *v;
  lm_tensor *out;
} transforming;

static lm_status run_transform(lua_State *L, lm_lua *s, void *arg) {
  transforming *t = arg;
  lm_tensor *x, *given = NULL;
  NEED(LM_READ_ARGS(L, s, 1, fn, {"name", LM_ARG_TEXT, &t->name}, {"x", LM_ARG_T, &x}, {"numbers", LM_ARG_OTHER, NULL},
                    {"out", LM_ARG_T | LM_OR_NIL, &given}));
  lm_note_read(L, s, x, t->name);
  return lm_image_transform(t->name, x, t->n, t->v, given, &t->out);
}

LM_FUNCTION(image_transform) {
  transforming t = {0};
  lua_settop(L, 4);
  t.v = lm_need_numbers(L, 3, fn, "numbers", &t.n); /* 5 */
  return lm_return_tensors(L, 5, 1, run_transform, &t, &t.out);
}

/* ---- uniform_number(): the CPU generator's next number, from 0 to less than 1 */

LM_FUNCTION(uniform_number) {
  lm_tape_note_call("a random number generator");
  lm_draw d = lm_generator_take(NULL, LM_DEVICE(LM_CPU, 0), 1);
  return lm_return_number(L, lm_uniform_f64(lm_philox_u64(lm_philox(d.seed, d.offset), 0)));
}
