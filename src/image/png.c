#include "image/png.h"

#include <stdio.h>

#include "base/mem.h"

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
  if (side->out_of_memory) return lm_fail(LM_E_OOM, "out of memory: the PNG %s", name);
  return lm_fail(LM_E_IO, "%s is corrupt (PNG): %s", name, side->text);
}
