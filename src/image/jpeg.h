/* Handles errors for reading and writing by libjpeg: they leave its functions by longjmp, to a setjmp in our calling
 * function. None of our functions is in between. */
#pragma once

#include <setjmp.h>
#include <stdio.h>

#include <jpeglib.h> /* needs stdio.h before it */

#include <jerror.h> /* knows more codes once the library's options are known */

#ifndef LIBJPEG_TURBO_VERSION
#error "libjpeg-turbo is needed (on Debian: libjpeg62-turbo-dev); this is another libjpeg"
#endif

#include "image/codec.h"

typedef struct lm_jpeg_errors {
  struct jpeg_error_mgr manager; /* first: libjpeg passes its address back */
  jmp_buf back;
  bool allow_corrupt;
  const char *own; /* reason for our own jump, or NULL */
} lm_jpeg_errors;

void lm_jpeg_catch(lm_jpeg_errors *e, struct jpeg_common_struct *jpeg, bool allow_corrupt);
/* Jumps; `why` is a string literal for lm_jpeg_problem. */
void lm_jpeg_give_up(struct jpeg_common_struct *jpeg, const char *why);
/* Returns the error that libjpeg reported before it jumped. */
lm_status lm_jpeg_problem(struct jpeg_common_struct *jpeg, const char *name);
