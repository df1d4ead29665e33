/* Records the kernels, copies and fills that this process runs on a GPU, by CUPTI, for kernel_times.lua.
 *   cc -D_GNU_SOURCE -shared -fPIC -O1 -I/usr/local/cuda/include -o kernel_times.so kernel_times.c -ldl */
#include <cupti.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUFFER_BYTES = 1 << 22, BUFFER_ALIGN = 8, SPARE_BYTES = 256 };

static __typeof__(&cuptiActivityRegisterCallbacks) register_callbacks;
static __typeof__(&cuptiActivityEnable) enable;
static __typeof__(&cuptiActivityFlushAll) flush;
static __typeof__(&cuptiActivityGetNextRecord) next_record;
static char *(*demangle)(const char *, char *, size_t *, int *); /* libstdc++'s; may be NULL */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *lines; /* "start\tnanoseconds\tname\n" of each record so far */
static size_t length, capacity;
static long lost; /* records without memory for them */

static void add(uint64_t start, uint64_t end, const char *name) {
  char *readable = demangle && strncmp(name, "_Z", 2) == 0 ? demangle(name, NULL, NULL, NULL) : NULL;
  const char *text = readable ? readable : name;
  size_t need = length + strlen(text) + SPARE_BYTES;
  if (need > capacity) {
    char *more = realloc(lines, 2 * need);
    if (more) lines = more, capacity = 2 * need;
  }
  if (need <= capacity) {
    length += (size_t)sprintf(lines + length, "%" PRIu64 "\t%" PRIu64 "\t%s\n", start, end - start, text);
  } else {
    lost++;
  }
  free(readable);
}

static void CUPTIAPI request(uint8_t **buffer, size_t *size, size_t *most_records) {
  *buffer = aligned_alloc(BUFFER_ALIGN, BUFFER_BYTES);
  *size = *buffer ? BUFFER_BYTES : 0;
  *most_records = 0;
}

/* Reads a buffer, in a thread of CUPTI's or the one that flushes. */
static void CUPTIAPI complete(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t used) {
  (void)context, (void)stream, (void)size;
  CUpti_Activity *record = NULL;
  pthread_mutex_lock(&lock);
  while (used > 0 && next_record(buffer, used, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_KERNEL || record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const CUpti_ActivityKernel9 *k = (const CUpti_ActivityKernel9 *)record; /* later ones begin alike */
      add(k->start, k->end, k->name ? k->name : "a kernel without a name");
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      add(((const CUpti_ActivityMemcpy5 *)record)->start, ((const CUpti_ActivityMemcpy5 *)record)->end, "cudaMemcpy");
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      add(((const CUpti_ActivityMemset4 *)record)->start, ((const CUpti_ActivityMemset4 *)record)->end, "cudaMemset");
    }
  }
  pthread_mutex_unlock(&lock);
  free(buffer);
}

static void *find(const char *name) {
  static void *library;
  void *here = dlsym(RTLD_DEFAULT, name);
  if (here) return here;
  static const char *const names[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so",
                                      "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so"};
  for (size_t i = 0; !library && i < sizeof names / sizeof *names; i++) library = dlopen(names[i], RTLD_NOW);
  return library ? dlsym(library, name) : NULL;
}

/* Starts recording; call it before the first call of CUDA. Returns 0, CUPTI's error, or -1 without CUPTI. */
int kernel_times_start(void) {
  *(void **)&register_callbacks = find("cuptiActivityRegisterCallbacks");
  *(void **)&enable = find("cuptiActivityEnable");
  *(void **)&flush = find("cuptiActivityFlushAll");
  *(void **)&next_record = find("cuptiActivityGetNextRecord");
  if (!register_callbacks || !enable || !flush || !next_record) return -1;
  void *cxx = dlopen("libstdc++.so.6", RTLD_NOW);
  *(void **)&demangle = cxx ? dlsym(cxx, "__cxa_demangle") : NULL;
  CUptiResult code = register_callbacks(request, complete);
  if (code == 0) code = enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  if (code == 0) code = enable(CUPTI_ACTIVITY_KIND_MEMCPY);
  if (code == 0) code = enable(CUPTI_ACTIVITY_KIND_MEMSET);
  return (int)code;
}

/* Returns the lines of the work since the last call, which has ended, not always in order; NULL if some are lost. The
 * text is valid until the next call. */
const char *kernel_times_read(void) {
  static char *text;
  if (flush(1) != CUPTI_SUCCESS) return NULL;
  pthread_mutex_lock(&lock);
  char *kept = lines;
  long missing = lost;
  lines = NULL, length = capacity = 0, lost = 0;
  pthread_mutex_unlock(&lock);
  free(text);
  text = kept;
  return missing > 0 ? NULL : text ? text : "";
}
