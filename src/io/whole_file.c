#include "io/whole_file.h"

#include <unistd.h>

#include "io/atomic_write.h"
#include "io/parallel_read.h"

lm_status lm_read_whole(const char *path, lm_tensor **out) {
  lm_status status = LM_OK;
  struct stat info;
  int fd;
  lm_tensor *t = NULL;
  TRY(lm_file_open(path, 0, &fd, &info));
  int64_t n = info.st_size;
  TRY(lm_tensor_empty(LM_U8, LM_DEVICE(LM_CPU, 0), 1, &n, LM_CONTIGUOUS, &t));
  lm_piece piece = {.to = t->data, .bytes = (size_t)n};
  TRY(lm_read_pieces(path, fd, &info, 1, 1, &piece));
  *out = t;
  t = NULL;
done:
  lm_release(t);
  if (fd >= 0) close(fd);
  return status;
}

lm_status lm_write_whole(const char *path, const void *bytes, size_t n) {
  lm_new_file file;
  lm_status status = lm_new_file_open(path, &file);
  if (status == LM_OK) status = lm_new_file_write(&file, bytes, n);
  if (status == LM_OK) return lm_new_file_commit(&file);
  lm_new_file_abandon(&file);
  return status;
}
