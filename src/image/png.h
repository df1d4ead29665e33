/* Handles errors for reading and writing by libpng: they leave its functions by longjmp, as in jpeg.h. */
#pragma once

#include <png.h>
#include <setjmp.h>

#include "image/codec.h"

typedef struct lm_png_side { /* libpng's error pointer */
  jmp_buf back;
  bool out_of_memory;
  char text[128];
} lm_png_side;

void lm_png_fail(png_structp png, png_const_charp text);
void lm_png_warn(png_structp png, png_const_charp text); /* ignores it: pixels do not depend on warnings */
void *lm_png_malloc(png_structp png, png_alloc_size_t bytes);
void lm_png_free(png_structp png, void *p);
/* Jumps, as lm_png_fail does. */
void lm_png_out_of_memory(lm_png_side *side);
/* Returns the error that was recorded before the jump. */
lm_status lm_png_problem(lm_png_side *side, const char *name);
