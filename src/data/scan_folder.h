/* Lists the files in class folders as tensors: their paths in one text, and the position of each path. */
#pragma once

#include "base/bytes.h"
#include "tensor/tensor.h"

typedef struct lm_folder {
  int64_t nclasses;
  lm_bytes classes; /* names, sorted, each with a closing zero */
  lm_tensor *text;  /* uint8 [bytes]: paths relative to the root, "class/file.jpg" */
  lm_tensor *spans; /* int64 [n, 2]: offset from 0 and bytes of each path */
  lm_tensor *label; /* int64 [n]: class of each file, from 0 */
} lm_folder;

/* Lists root's sub-folders and their files, nested ones too, sorted bytewise by folder, then by name. Files end in one
 * of n suffixes (in any case; n = 0: any). Follows links to folders, but not to folders that contain them. */
LM_API lm_status lm_folder_scan(const char *root, int n, const char *const *suffix, lm_folder *out);
LM_API void lm_folder_free(lm_folder *f);
