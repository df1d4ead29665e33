/* Device memory: an address range a device, out of reach of the host but while work runs, each allocation between pages
 * that nobody may touch and filled with 0xff (NaN). Pinned memory is the host's. What other processes may open is moved
 * to a memory file when its handle is made; they open that by way of /proc. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "counts.h"

enum {
  PAGE = 4096,
  HUGE = 2 << 20,
  ALIGN = 256,
  PINNED_ALIGN = 4096,
  COMPUTED = 1 << 20 /* bytes: larger copies and fills are counted alone, under LM_FAKE_CUDA_COUNT */
};

namespace {
struct allocation {
  char *pages; /* first page that it lies in */
  size_t span, bytes;
  int fd;      /* the memory file's, or -1 */
  int opened;  /* number of openings, if it is another process's; else 0 */
  ino_t inode; /* the file's */
};
struct arena {
  char *base = NULL;
  size_t size = 0, used = 0;
  char *cursor = NULL;
  std::map<char *, allocation> live; /* allocations by address */
};
struct pinned_range {
  size_t bytes;
  bool registered; /* the caller's memory */
};
struct memory {
  arena device[LM_FAKE_MAX_DEVICES];
  std::map<char *, pinned_range> pinned;
  unsigned open = 0; /* devices whose memory is accessible now */
};
}  // namespace

/* For the fault handler, which may take no lock. */
static char *ranges_base;
static size_t ranges_each;

size_t lm_fake_memory_total() {
  static const long total = lm_fake_setting("LM_FAKE_CUDA_MEMORY", 1l << 30);
  return (size_t)total;
}

static memory &get() {
  static memory *m = [] {
    memory *made = new memory;
    /* Four times the memory: freed addresses are not used again soon. */
    size_t each = 4 * lm_fake_memory_total() / HUGE * HUGE + HUGE, devices = (size_t)lm_fake_devices();
    void *p = mmap(NULL, each * devices + HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (devices == 0 || p == MAP_FAILED) return made;
    p = (void *)(((uintptr_t)p + HUGE - 1) / HUGE * HUGE);
    if (!lm_fake_is_counting()) madvise(p, each * devices, MADV_HUGEPAGE); /* huge pages open and close faster */
    for (size_t d = 0; d < devices; d++) {
      arena &a = made->device[d];
      a.base = a.cursor = (char *)p + d * each;
      a.size = each;
    }
    ranges_each = each;
    ranges_base = (char *)p;
    lm_fake_catch_faults();
    return made;
  }();
  return *m;
}

int lm_fake_range_of(const void *p) {
  if (!ranges_base || (char *)p < ranges_base) return -1;
  size_t d = (size_t)((char *)p - ranges_base) / ranges_each;
  return d < (size_t)lm_fake_devices() ? (int)d : -1;
}

char *lm_fake_ranges(size_t *bytes) {
  *bytes = ranges_each * (size_t)lm_fake_devices();
  return ranges_base;
}

lm_fake_place lm_fake_place_of(const void *pointer) {
  lm_fake_guard lock(lm_fake_state);
  memory &m = get();
  char *p = (char *)pointer;
  lm_fake_place place = {lm_fake_place::PAGEABLE, lm_fake_range_of(p), NULL, 0};
  if (place.device >= 0) {
    place.kind = lm_fake_place::FREED;
    auto &live = m.device[place.device].live;
    auto after = live.upper_bound(p);
    if (after == live.begin()) return place;
    auto &at = *std::prev(after);
    if (p >= at.first + at.second.bytes) return place;
    place.kind = lm_fake_place::DEVICE, place.base = at.first, place.bytes = at.second.bytes;
    return place;
  }
  auto after = m.pinned.upper_bound(p);
  if (after == m.pinned.begin()) return place;
  auto &at = *std::prev(after);
  if (p >= at.first + at.second.bytes) return place;
  place.kind = lm_fake_place::PINNED, place.base = at.first, place.bytes = at.second.bytes;
  return place;
}

extern "C" int lm_fake_device_of(const void *p) {
  lm_fake_place place = lm_fake_place_of(p);
  return place.kind == lm_fake_place::DEVICE ? place.device : -1;
}

void lm_fake_open(unsigned devices) {
  lm_fake_guard lock(lm_fake_state);
  memory &m = get();
  for (int d = 0; d < lm_fake_devices(); d++) {
    if (!((m.open ^ devices) >> d & 1)) continue;
    int access = devices >> d & 1 ? PROT_READ | PROT_WRITE : PROT_NONE;
    for (auto &at : m.device[d].live) mprotect(at.second.pages, at.second.span, access);
  }
  m.open = devices;
}

/* Returns where `span` bytes may begin, from `at` on: memory with huge pages begins with one. */
static char *begin(char *at, size_t span) {
  return span < HUGE ? at : (char *)(((uintptr_t)at + HUGE - 1) / HUGE * HUGE);
}

/* Finds room for `span` bytes and a page: behind the latest allocation, or else in the first gap. */
static char *find_room(arena &a, size_t span) {
  char *at = begin(a.cursor, span);
  if (at + span + PAGE <= a.base + a.size) return at;
  at = begin(a.base, span);
  for (auto &l : a.live) {
    if (l.second.pages >= at + span + PAGE) return at;
    at = begin(l.second.pages + l.second.span + PAGE, span);
  }
  return at + span + PAGE <= a.base + a.size ? at : NULL;
}

static size_t rounded(size_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

static int device_alloc(int device, size_t bytes, void **out) {
  memory &m = get();
  arena &a = m.device[device];
  *out = NULL;
  if (!a.base || rounded(bytes) < bytes || rounded(bytes) > lm_fake_memory_total() - a.used) {
    return cudaErrorMemoryAllocation;
  }
  /* It ends where its pages do, so that what lies behind is out of reach. */
  size_t span = (rounded(bytes) + PAGE - 1) / PAGE * PAGE;
  char *pages = find_room(a, span);
  if (!pages) return cudaErrorMemoryAllocation;
  if (mprotect(pages, span, PROT_READ | PROT_WRITE) != 0) return cudaErrorMemoryAllocation;
  if (!lm_fake_is_counting()) memset(pages, 0xff, span);
  if (!(m.open >> device & 1)) mprotect(pages, span, PROT_NONE);
  if (pages >= a.cursor) a.cursor = pages + span + PAGE;
  char *p = pages + span - rounded(bytes);
  a.live[p] = {pages, span, bytes, -1, 0, 0};
  a.used += rounded(bytes);
  lm_fake_count("memory", 1);
  lm_fake_count("bytes", (long)rounded(bytes));
  *out = p;
  return 0;
}

/* Makes an allocation's pages the process's own again. */
static void unmap(const allocation &one) {
  mmap(one.pages, one.span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  close(one.fd);
}

static int device_free(void *pointer) {
  memory &m = get();
  int device = lm_fake_range_of(pointer);
  if (device < 0) return cudaErrorInvalidValue;
  auto &live = m.device[device].live;
  auto at = live.find((char *)pointer);
  if (at == live.end() || at->second.opened) return cudaErrorInvalidValue;
  allocation one = at->second;
  live.erase(at);
  if (one.fd >= 0) { /* a process that has it open sees that it is gone */
    mprotect(one.pages, one.span, PROT_READ | PROT_WRITE);
    memset(one.pages, 0xff, one.span);
    unmap(one);
  }
  madvise(one.pages, one.span, MADV_DONTNEED);
  mprotect(one.pages, one.span, PROT_NONE);
  m.device[device].used -= rounded(one.bytes);
  lm_fake_count("memory", -1);
  lm_fake_count("bytes", -(long)rounded(one.bytes));
  return 0;
}

/* ---- other processes ---- */

namespace {
struct memory_handle {
  uint32_t magic;
  int pid, fd, physical;
  uint64_t inode, span, bytes;
};
}  // namespace
static_assert(sizeof(memory_handle) <= sizeof(cudaIpcMemHandle_t), "a handle's size");
enum { MEMORY_MAGIC = 0x6c6d6d68 };

bool lm_fake_has_ipc() { return lm_fake_setting("LM_FAKE_CUDA_IPC", 1) != 0; }

/* Moves the pages to a file; nobody may be at work with them meanwhile. */
static int make_file(allocation &a, bool open) {
  struct stat file;
  int fd = memfd_create("fake_cuda", MFD_CLOEXEC);
  if (fd < 0) return cudaErrorMapBufferObjectFailed;
  mprotect(a.pages, a.span, PROT_READ | PROT_WRITE);
  bool whole = ftruncate(fd, (off_t)a.span) == 0 && fstat(fd, &file) == 0;
  for (size_t at = 0; whole && at < a.span;) {
    /* AddressSanitizer is not asked: blocks in there may be closed to others. */
    ssize_t n = syscall(SYS_pwrite64, fd, a.pages + at, a.span - at, (off_t)at);
    whole = n > 0;
    if (whole) at += (size_t)n;
  }
  int access = open ? PROT_READ | PROT_WRITE : PROT_NONE;
  if (!whole || mmap(a.pages, a.span, access, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    close(fd);
    mprotect(a.pages, a.span, access);
    return cudaErrorMapBufferObjectFailed;
  }
  a.fd = fd, a.inode = file.st_ino;
  return 0;
}

static int get_handle(void *p, memory_handle *out) {
  memory &m = get();
  int device = lm_fake_range_of(p);
  if (device < 0) return cudaErrorInvalidValue;
  auto &live = m.device[device].live;
  auto after = live.upper_bound((char *)p);
  if (after == live.begin()) return cudaErrorInvalidValue;
  auto at = std::prev(after);
  if ((char *)p >= at->first + at->second.bytes || at->second.opened) return cudaErrorInvalidValue;
  allocation &a = at->second;
  int code = a.fd < 0 ? make_file(a, m.open >> device & 1) : 0;
  if (code != 0) return code;
  *out = {MEMORY_MAGIC, getpid(), a.fd, lm_fake_physical(device), a.inode, a.span, a.bytes};
  return 0;
}

static int open_handle(const memory_handle &h, unsigned flags, void **out) {
  memory &m = get();
  int device = lm_fake_current();
  arena &a = m.device[device];
  *out = NULL;
  if (flags != cudaIpcMemLazyEnablePeerAccess || h.magic != MEMORY_MAGIC) return cudaErrorInvalidValue;
  if (h.pid == getpid()) return cudaErrorDeviceUninitialized; /* the driver's CUDA_ERROR_INVALID_CONTEXT */
  if (h.physical != lm_fake_physical(device)) return cudaErrorInvalidDevice; /* stricter than the real one */
  for (auto &at : a.live) {
    if (at.second.opened && at.second.inode == h.inode) {
      at.second.opened++;
      *out = at.first;
      return 0;
    }
  }
  char path[64];
  struct stat file;
  snprintf(path, sizeof path, "/proc/%d/fd/%d", h.pid, h.fd);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  char *pages = fd >= 0 ? find_room(a, h.span) : NULL;
  if (!pages || fstat(fd, &file) != 0 || file.st_ino != h.inode || (size_t)file.st_size != h.span ||
      mmap(pages, h.span, m.open >> device & 1 ? PROT_READ | PROT_WRITE : PROT_NONE, MAP_SHARED | MAP_FIXED, fd, 0) ==
          MAP_FAILED) {
    if (fd >= 0) close(fd);
    return fd < 0 ? cudaErrorInvalidValue : cudaErrorMapBufferObjectFailed;
  }
  if (pages >= a.cursor) a.cursor = pages + h.span + PAGE;
  char *p = pages + h.span - rounded(h.bytes);
  a.live[p] = {pages, h.span, h.bytes, fd, 1, file.st_ino};
  lm_fake_count("opened", 1);
  *out = p;
  return 0;
}

static int close_handle(void *p) {
  int device = lm_fake_range_of(p);
  if (device < 0) return cudaErrorInvalidValue;
  auto &live = get().device[device].live;
  auto at = live.find((char *)p);
  if (at == live.end() || !at->second.opened) return cudaErrorInvalidValue;
  if (--at->second.opened > 0) return 0;
  allocation one = at->second;
  live.erase(at);
  unmap(one);
  lm_fake_count("opened", -1);
  return 0;
}

extern "C" {

LM_FAKE_API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *out, void *p) {
  LM_FAKE_CALL();
  if (!lm_fake_has_ipc()) return lm_fake_result(cudaErrorNotSupported);
  memory_handle handle;
  int code = 0;
  lm_fake_at_gate(
      0,
      [&] {
        lm_fake_guard lock(lm_fake_state);
        code = get_handle(p, &handle);
      },
      "a handle");
  memset(out, 0, sizeof *out);
  if (code == 0) memcpy(out, &handle, sizeof handle);
  return lm_fake_result(code);
}

LM_FAKE_API cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t given, unsigned flags) {
  LM_FAKE_CALL();
  if (!lm_fake_has_ipc()) return lm_fake_result(cudaErrorNotSupported);
  memory_handle handle;
  memcpy(&handle, &given, sizeof handle);
  lm_fake_guard lock(lm_fake_state);
  int code = lm_fake_devices() == 0 ? cudaErrorNoDevice : lm_fake_unsafe();
  if (code == 0) code = open_handle(handle, flags, out);
  return lm_fake_result(code);
}

LM_FAKE_API cudaError_t cudaIpcCloseMemHandle(void *p) {
  int code = lm_fake_begin(__func__);
  int device = lm_fake_range_of(p);
  if (device < 0) return lm_fake_result(cudaErrorInvalidValue);
  lm_fake_waits_for(device);
  lm_fake_drain_device(device);
  lm_fake_guard lock(lm_fake_state);
  int closed = close_handle(p);
  return lm_fake_result(code ? code : closed);
}

}  // extern "C"

/* ---- copies ---- */

static bool fits(const lm_fake_place &place, const void *p, size_t bytes) {
  if (place.kind == lm_fake_place::PAGEABLE) return true;
  return place.kind != lm_fake_place::FREED && bytes <= place.bytes - (size_t)((char *)p - place.base);
}

typedef struct copy_plan {
  lm_fake_queued work;
  bool staged, blocks, host; /* read its source at once; the call waits; it concerns host memory */
} copy_plan;

static unsigned devices_of(const lm_fake_place &place) {
  return place.kind == lm_fake_place::DEVICE ? 1u << place.device : 0;
}

enum { BUFFER = 64 << 10 }; /* bytes of pageable memory that a call copies at once; with more it waits for the stream */

/* Rows of `width` bytes; one row for a plain copy. `stage`: pageable memory is read now. */
static int plan_copy(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width, size_t height,
                     enum cudaMemcpyKind kind, bool stage, copy_plan *plan) {
  lm_fake_place to = lm_fake_place_of(dst), from = lm_fake_place_of(src);
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
  bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (kind != cudaMemcpyDefault &&
      (to_device != (to.kind >= lm_fake_place::DEVICE) || from_device != (from.kind >= lm_fake_place::DEVICE))) {
    return cudaErrorInvalidValue;
  }
  if (width > dst_pitch || width > src_pitch) return cudaErrorInvalidValue;
  if (!fits(to, dst, (height - 1) * dst_pitch + width) || !fits(from, src, (height - 1) * src_pitch + width)) {
    return cudaErrorInvalidValue;
  }
  plan->staged = stage && from.kind == lm_fake_place::PAGEABLE && !lm_fake_reaches_pageable();
  plan->blocks = to.kind == lm_fake_place::PAGEABLE || (plan->staged && width * height > BUFFER);
  plan->host = (devices_of(to) && devices_of(from)) == 0;
  std::shared_ptr<std::vector<char>> copy;
  if (plan->staged) {
    copy = std::make_shared<std::vector<char>>(width * height);
    for (size_t i = 0; i < height; i++) memcpy(copy->data() + i * width, (char *)src + i * src_pitch, width);
  }
  lm_fake_cost cost = {devices_of(to) && devices_of(from) ? "copy"
                       : devices_of(to)                   ? "upload"
                                                          : "download",
                       "cudaMemcpy",
                       0,
                       {{src, width * height, false}, {dst, width * height, true}}};
  bool counts = lm_fake_is_counting(), skips = counts && !plan->host && width * height > COMPUTED;
  auto run = [=] {
    if (counts) lm_fake_record(cost);
    for (size_t i = 0; i < height && !skips; i++) {
      memmove((char *)dst + i * dst_pitch, copy ? copy->data() + i * width : (char *)src + i * src_pitch, width);
    }
  };
  plan->work.op = {[run] { return lm_fake_run_work(run, "a copy"); }, devices_of(to) | devices_of(from)};
  return 0;
}

/* Queues a copy; `wait`: the call ends when it is done, as those without Async do (unless it stays on devices). */
static cudaError_t copy(cudaStream_t handle, bool wait, void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                        size_t width, size_t height, enum cudaMemcpyKind kind) {
  if (width == 0 || height == 0) return cudaSuccess;
  copy_plan plan = {};
  lm_fake_stream stream;
  uint64_t upto;
  {
    lm_fake_guard lock(lm_fake_state);
    stream = lm_fake_find_stream(handle);
    if (!stream) return lm_fake_result(cudaErrorInvalidResourceHandle);
    int code = plan_copy(dst, dst_pitch, src, src_pitch, width, height, kind, !wait, &plan);
    if (code == 0 && wait) code = lm_fake_unsafe();
    if (code == 0 && (plan.staged || plan.blocks)) code = lm_fake_unsafe_on(stream);
    if (code == 0) code = lm_fake_push(stream, plan.work);
    if (code != 0) return lm_fake_result(code);
    upto = stream->queued;
  }
  if ((wait && plan.host) || plan.blocks) {
    lm_fake_drain(stream, upto, true);
  } else {
    lm_fake_settle(stream);
  }
  return lm_fake_result(lm_fake_sticky);
}

/* `whole`: the call without Async, which does not wait either except which a capture has no place. */
static cudaError_t fill(cudaStream_t handle, bool whole, void *dst, int value, size_t bytes) {
  if (bytes == 0) return cudaSuccess;
  lm_fake_stream stream;
  {
    lm_fake_guard lock(lm_fake_state);
    stream = lm_fake_find_stream(handle);
    if (!stream) return lm_fake_result(cudaErrorInvalidResourceHandle);
    lm_fake_place place = lm_fake_place_of(dst);
    if (place.kind == lm_fake_place::PAGEABLE || !fits(place, dst, bytes)) return lm_fake_result(cudaErrorInvalidValue);
    lm_fake_queued work = {};
    lm_fake_cost cost = {"fill", "cudaMemset", 0, {{dst, bytes, true}}};
    bool counts = lm_fake_is_counting(), skips = counts && bytes > COMPUTED;
    auto run = [=] {
      if (counts) lm_fake_record(cost);
      if (!skips) memset(dst, value, bytes);
    };
    work.op = {[run] { return lm_fake_run_work(run, "a memset"); }, devices_of(place)};
    int code = whole ? lm_fake_unsafe() : 0;
    if (code == 0) code = lm_fake_push(stream, work);
    if (code != 0) return lm_fake_result(code);
  }
  lm_fake_settle(stream);
  return lm_fake_result(lm_fake_sticky);
}

static cudaError_t pin(void **out, size_t bytes) {
  *out = NULL;
  lm_fake_guard lock(lm_fake_state);
  int code = lm_fake_devices() == 0 ? cudaErrorNoDevice : lm_fake_unsafe();
  if (code != 0) return lm_fake_result(code);
  if (bytes == 0) return cudaSuccess;
  lm_fake_open_context(lm_fake_current());
  void *p;
  if (posix_memalign(&p, PINNED_ALIGN, bytes) != 0) return lm_fake_result(cudaErrorMemoryAllocation);
  memset(p, 0xff, bytes);
  get().pinned[(char *)p] = {bytes, false};
  lm_fake_count("pinned", 1);
  *out = p;
  return cudaSuccess;
}

extern "C" {

LM_FAKE_API cudaError_t cudaMalloc(void **out, size_t bytes) {
  LM_FAKE_CALL();
  lm_fake_guard lock(lm_fake_state);
  if (!out) return lm_fake_result(cudaErrorInvalidValue);
  *out = NULL;
  int code = lm_fake_devices() == 0 ? cudaErrorNoDevice : lm_fake_unsafe();
  if (code == 0 && bytes > 0) code = device_alloc(lm_fake_current(), bytes, out);
  return lm_fake_result(code);
}

LM_FAKE_API cudaError_t cudaFree(void *p) {
  int code = lm_fake_begin(__func__);
  {
    lm_fake_guard lock(lm_fake_state);
    int unsafe = lm_fake_unsafe();
    if (unsafe != 0) return lm_fake_result(unsafe);
  }
  int device = p ? lm_fake_range_of(p) : lm_fake_current();
  lm_fake_waits_for(device);
  lm_fake_drain_device(device);
  lm_fake_guard lock(lm_fake_state);
  int freed = p ? device_free(p) : 0;
  if (code == 0) code = freed ? freed : lm_fake_sticky;
  return lm_fake_result(code);
}

LM_FAKE_API cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
  LM_FAKE_CALL();
  lm_fake_guard lock(lm_fake_state);
  if (lm_fake_devices() == 0) return lm_fake_result(cudaErrorNoDevice);
  *total = lm_fake_memory_total();
  *available = *total - get().device[lm_fake_current()].used;
  return cudaSuccess;
}

LM_FAKE_API cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned) {
  LM_FAKE_CALL();
  return pin(out, bytes);
}

LM_FAKE_API cudaError_t cudaMallocHost(void **out, size_t bytes) {
  LM_FAKE_CALL();
  return pin(out, bytes);
}

LM_FAKE_API cudaError_t cudaFreeHost(void *p) {
  int code = lm_fake_begin(__func__);
  if (!p) return lm_fake_result(code);
  {
    lm_fake_guard lock(lm_fake_state);
    int unsafe = lm_fake_unsafe();
    if (unsafe != 0) return lm_fake_result(unsafe);
  }
  lm_fake_waits_for(-1);
  lm_fake_drain_device(-1);
  lm_fake_guard lock(lm_fake_state);
  auto at = get().pinned.find((char *)p);
  if (at == get().pinned.end() || at->second.registered) return lm_fake_result(cudaErrorInvalidValue);
  memset(p, 0xff, at->second.bytes);
  free(p);
  get().pinned.erase(at);
  lm_fake_count("pinned", -1);
  return lm_fake_result(code);
}

LM_FAKE_API cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned) {
  LM_FAKE_CALL();
  lm_fake_guard lock(lm_fake_state);
  if (!p || bytes == 0) return lm_fake_result(cudaErrorInvalidValue);
  lm_fake_place place = lm_fake_place_of(p);
  if (place.kind == lm_fake_place::PINNED) return lm_fake_result(cudaErrorHostMemoryAlreadyRegistered);
  if (place.kind != lm_fake_place::PAGEABLE) return lm_fake_result(cudaErrorInvalidValue);
  get().pinned[(char *)p] = {bytes, true};
  lm_fake_count("pinned", 1);
  return cudaSuccess;
}

LM_FAKE_API cudaError_t cudaHostUnregister(void *p) {
  int code = lm_fake_begin(__func__);
  lm_fake_waits_for(-1);
  lm_fake_drain_device(-1);
  lm_fake_guard lock(lm_fake_state);
  auto at = get().pinned.find((char *)p);
  if (at == get().pinned.end() || !at->second.registered) return lm_fake_result(cudaErrorHostMemoryNotRegistered);
  get().pinned.erase(at);
  lm_fake_count("pinned", -1);
  return lm_fake_result(code);
}

LM_FAKE_API cudaError_t cudaHostGetDevicePointer(void **out, void *p, unsigned) {
  LM_FAKE_CALL();
  if (lm_fake_place_of(p).kind != lm_fake_place::PINNED) return lm_fake_result(cudaErrorInvalidValue);
  *out = p;
  return cudaSuccess;
}

LM_FAKE_API cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *p) {
  LM_FAKE_CALL();
  memset(out, 0, sizeof *out);
  lm_fake_place place = lm_fake_place_of(p);
  out->device = -2; /* as the runtime says of memory it does not know */
  if (place.kind == lm_fake_place::DEVICE) {
    out->type = cudaMemoryTypeDevice, out->device = place.device, out->devicePointer = (void *)p;
  } else if (place.kind == lm_fake_place::PINNED) {
    out->type = cudaMemoryTypeHost, out->device = lm_fake_current(), out->devicePointer = out->hostPointer = (void *)p;
  } else {
    out->type = cudaMemoryTypeUnregistered, out->hostPointer = (void *)p;
  }
  return cudaSuccess;
}

LM_FAKE_API cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind) {
  LM_FAKE_CALL();
  return copy(NULL, true, dst, bytes, src, bytes, bytes, 1, kind);
}

LM_FAKE_API cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                                        cudaStream_t stream) {
  LM_FAKE_WORK();
  return copy(stream, false, dst, bytes, src, bytes, bytes, 1, kind);
}

LM_FAKE_API cudaError_t cudaMemcpy2D(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
                                     size_t height, enum cudaMemcpyKind kind) {
  LM_FAKE_CALL();
  return copy(NULL, true, dst, dst_pitch, src, src_pitch, width, height, kind);
}

LM_FAKE_API cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
                                          size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
  LM_FAKE_WORK();
  return copy(stream, false, dst, dst_pitch, src, src_pitch, width, height, kind);
}

static bool peer_copy_is_one(const void *dst, int dst_device, const void *src, int src_device) {
  return lm_fake_device_of(dst) == dst_device && lm_fake_device_of(src) == src_device;
}

LM_FAKE_API cudaError_t cudaMemcpyPeer(void *dst, int dst_device, const void *src, int src_device, size_t bytes) {
  LM_FAKE_CALL();
  if (!peer_copy_is_one(dst, dst_device, src, src_device)) return lm_fake_result(cudaErrorInvalidValue);
  return copy(NULL, true, dst, bytes, src, bytes, bytes, 1, cudaMemcpyDeviceToDevice);
}

LM_FAKE_API cudaError_t cudaMemcpyPeerAsync(void *dst, int dst_device, const void *src, int src_device, size_t bytes,
                                            cudaStream_t stream) {
  LM_FAKE_WORK();
  if (!peer_copy_is_one(dst, dst_device, src, src_device)) return lm_fake_result(cudaErrorInvalidValue);
  return copy(stream, false, dst, bytes, src, bytes, bytes, 1, cudaMemcpyDeviceToDevice);
}

LM_FAKE_API cudaError_t cudaMemset(void *dst, int value, size_t bytes) {
  LM_FAKE_CALL();
  return fill(NULL, true, dst, value, bytes);
}

LM_FAKE_API cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream) {
  LM_FAKE_WORK();
  return fill(stream, false, dst, value, bytes);
}

}  // extern "C"
