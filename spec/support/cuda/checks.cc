/* Finds what a kernel's body may not do on a device but may on a host: accesses that are not aligned as their type
 * says, floats that their integer type does not hold, and races between the blocks of a launch. Bodies that are checked
 * are compiled with -fsanitize=thread,alignment,float-cast-overflow (CMakeLists.txt); the calls that this puts into
 * them end here, not in the sanitizers' libraries. */
#include <stdio.h>
#include <sys/mman.h>

#include "counts.h"

/* Records which block of which launch used a byte of device memory. Blocks are counted from 1. */
typedef struct shadow {
  uint32_t launch;
  uint32_t writer : 31, by_atomic : 1; /* the last write */
  uint32_t reader;                     /* the last one, or SEVERAL */
} shadow;

enum : uint32_t { SEVERAL = UINT32_MAX };

static shadow *shadows;
static char *base;
static size_t bytes_covered;
static uint32_t launch, block;

void lm_fake_check_launch() {
  launch++;
  if (lm_fake_is_counting()) return;
  if (shadows) return;
  base = lm_fake_ranges(&bytes_covered);
  if (bytes_covered == 0) return;
  void *p = mmap(NULL, bytes_covered * sizeof(shadow), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p != MAP_FAILED) shadows = (shadow *)p;
}

void lm_fake_check_block(uint32_t number) { block = number + 1; }

static bool is_watched(const void *p) {
  return shadows && (const char *)p >= base && (size_t)((const char *)p - base) < bytes_covered &&
         lm_fake_is_in_kernel();
}

static void report_race(const void *p, bool write, uint32_t other) {
  char text[160], who[40];
  snprintf(who, sizeof who, "block %u", other - 1);
  snprintf(text, sizeof text, "%s %p, which %s of the same launch touched: blocks run in any order",
           write ? "writes" : "reads", p, other == SEVERAL ? "others" : who);
  lm_fake_kernel_fault(cudaErrorLaunchFailure, text);
}

static void touch(shadow *s, bool write, bool atomic, const void *p) {
  if (s->launch != launch) *s = {launch, 0, 0, 0};
  if (s->writer != 0 && s->writer != block && !(atomic && s->by_atomic)) return report_race(p, write, s->writer);
  if (write && s->reader != 0 && s->reader != block) return report_race(p, write, s->reader);
  if (write) {
    s->writer = block & 0x7fffffffu, s->by_atomic = atomic;
  } else {
    s->reader = s->reader == 0 || s->reader == block ? block : SEVERAL;
  }
}

static void access(const void *p, size_t bytes, bool write, bool atomic) {
  if (lm_fake_is_counting()) {
    if (lm_fake_is_in_kernel()) lm_fake_count_access(p, bytes, !write || atomic, write);
    return;
  }
  if (!is_watched(p)) return;
  size_t at = (size_t)((const char *)p - base);
  for (size_t i = at; i < at + bytes; i++) touch(&shadows[i], write, atomic, p);
}

/* ---- what compilers call ---- */

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* sanitizers have their own hooks */
#undef lm_fake_check_atomic                                         /* for bodies without checks */
#ifdef LM_FAKE_CHECKED /* kernels that are written at run time (nvrtc.cc) are libraries of their own */
#define HOOK extern "C" __attribute__((visibility("default"), used)) void
#else
#define HOOK extern "C" __attribute__((visibility("hidden"), used)) void
#endif

HOOK lm_fake_check_atomic(const void *p, size_t bytes) { access(p, bytes, true, true); }

HOOK __tsan_init(void) {}
HOOK __tsan_func_entry(void *) {}
HOOK __tsan_func_exit(void) {}
HOOK __tsan_vptr_update(void **, void *) {}
#define ACCESS(bytes)                                                                  \
  HOOK __tsan_read##bytes(const void *p) { access(p, bytes, false, false); }           \
  HOOK __tsan_write##bytes(const void *p) { access(p, bytes, true, false); }           \
  HOOK __tsan_unaligned_read##bytes(const void *p) { access(p, bytes, false, false); } \
  HOOK __tsan_unaligned_write##bytes(const void *p) { access(p, bytes, true, false); } \
  HOOK __tsan_volatile_read##bytes(const void *p) { access(p, bytes, false, true); }   \
  HOOK __tsan_volatile_write##bytes(const void *p) { access(p, bytes, true, true); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
HOOK __tsan_read_range(const void *p, size_t bytes) { access(p, bytes, false, false); }
HOOK __tsan_write_range(const void *p, size_t bytes) { access(p, bytes, true, false); }

namespace {
struct place { /* position of a check in the source */
  const char *file;
  uint32_t line, column;
};
struct mismatch {
  place at;
  const void *type;
  unsigned char log_alignment, kind;
};
}  // namespace

HOOK __ubsan_handle_type_mismatch_v1(mismatch *data, uintptr_t p) {
  if (!lm_fake_is_in_kernel()) return;
  char text[300];
  snprintf(text, sizeof text, "%s:%u: %p is no multiple of %u bytes", data->at.file, data->at.line, (void *)p,
           1u << data->log_alignment);
  lm_fake_kernel_fault(cudaErrorMisalignedAddress, text);
}

HOOK __ubsan_handle_float_cast_overflow(place *data, uintptr_t) {
  if (!lm_fake_is_in_kernel()) return;
  char text[300];
  snprintf(text, sizeof text, "%s:%u: a float becomes an integer that does not hold it", data->file, data->line);
  lm_fake_kernel_fault(cudaErrorLaunchFailure, text);
}
#endif
