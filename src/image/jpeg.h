/* What reading and writing by libjpeg share: errors that leave its functions by longjmp, to a setjmp in the function of
 * ours that called them. Nothing of ours lies in between. */
#pragma once

#include <setjmp.h>
#include <stdio.h>

#include <jpeglib.h> /* needs stdio.h before it */

#include <jerror.h> /* says more of what the library was built with, if that is known */

#ifndef LIBJPEG_TURBO_VERSION
#error "libjpeg-turbo is needed (on Debian: libjpeg62-turbo-dev); this is another libjpeg"
#endif

#include "image/codec.h"

typedef struct lm_jpeg_errors {
  struct jpeg_error_mgr manager; /* first: libjpeg hands its address back */
  jmp_buf back;
  bool allow_corrupt;
  const char *own; /* why we jumped ourselves, or NULL */
} lm_jpeg_errors;

void lm_jpeg_catch(lm_jpeg_errors *e, struct jpeg_common_struct *jpeg, bool allow_corrupt);
/* Jumps. why: a literal, for lm_jpeg_problem. */
void lm_jpeg_give_up(struct jpeg_common_struct *jpeg, const char *why);
/* What libjpeg said before it jumped, as a status. */
lm_status lm_jpeg_problem(struct jpeg_common_struct *jpeg, const char *name);
