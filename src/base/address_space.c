#include "base/address_space.h"

#include <sys/mman.h>

bool lm_address_space_has(int blocks, size_t bytes) {
  if (blocks <= 0) return true;
  void *probe = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (probe == MAP_FAILED) return false;
  bool others = lm_address_space_has(blocks - 1, bytes);
  munmap(probe, bytes);
  return others;
}
