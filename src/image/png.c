#include "image/png.h"

#include <stdio.h>

#include "base/mem.h"
#include "base/message.h"

void lm_png_fail(png_structp png, png_const_charp text) {
  lm_png_side *side = png_get_error_ptr(png);
  snprintf(side->text, sizeof side->text, "%s", text);
  longjmp(side->back, 1);
}

void lm_png_warn(png_structp png, png_const_charp text) { (void)png, (void)text; }

void *lm_png_malloc(png_structp png, png_alloc_size_t bytes) {
  void *p = lm_malloc(bytes);
  lm_png_side *side = png_get_error_ptr(png);
  if (!p && side) side->out_of_memory = true;
  return p;
}

void lm_png_free(png_structp png, void *p) {
  (void)png;
  lm_free(p);
}

void lm_png_out_of_memory(lm_png_side *side) {
  side->out_of_memory = true;
  longjmp(side->back, 1);
}

lm_status lm_png_problem(lm_png_side *side, const char *name) {
  if (side->out_of_memory) return lm_fail_in_file(LM_E_OOM, name, "out of memory");
  return lm_fail_malformed(name, "PNG", LM_NO_OFFSET, "%s", lm_ellipsize(side->text, 200));
}
