/* Files in folders that are classes, as lists that tensors hold: texts one after the other, and where each lies. */
#pragma once

#include "base/bytes.h"
#include "tensor/tensor.h"

typedef struct lm_folder {
  int64_t nclasses;
  lm_bytes classes; /* their names, sorted, each with a closing zero */
  lm_tensor *text;  /* uint8 [bytes]: paths from the root on, "class/file.jpg" */
  lm_tensor *spans; /* int64 [n, 2]: each one's first byte, from 0, and how many bytes it has */
  lm_tensor *label; /* int64 [n]: its class, from 0 */
} lm_folder;

/* The sub-folders of root and the files in them, nested ones too: sorted by folder, then by name, byte by byte. Of
 * these suffixes (n of them, in any case; 0: any). Links to folders are followed, but not to one they lie in. */
LM_API lm_status lm_folder_scan(const char *root, int n, const char *const *suffix, lm_folder *out);
LM_API void lm_folder_free(lm_folder *f);
