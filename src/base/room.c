#include "base/room.h"

#include <sys/mman.h>

bool lm_has_room(int blocks, size_t bytes) {
  if (blocks <= 0) return true;
  void *probe = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (probe == MAP_FAILED) return false;
  bool others = lm_has_room(blocks - 1, bytes);
  munmap(probe, bytes);
  return others;
}
