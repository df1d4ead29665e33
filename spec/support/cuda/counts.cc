/* Counts what a step costs, without computing it (LM_FAKE_CUDA_COUNT): a line for each piece of work that was done. A
 * kernel's bytes are those that its bodies touch, where they are compiled with checks (checks.cc); a product's are
 * those of its operands. */
#include "counts.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>

#include <algorithm>

/* Records which block of the running launch used a byte of device memory. */
typedef struct mark {
  uint16_t launch;
  uint16_t block : 14, was_read : 1, was_written : 1;
} mark;

enum : unsigned { SHARED = (1u << 14) - 1, LAST_LAUNCH = UINT16_MAX, ZAP = 256u << 20, APART = 256 };

static mark *marks;
/* Works that wrote last in each APART bytes. A tensor is known by its address and the latest of these in its range:
 * what lay there before has another. */
static uint32_t *writers;
static uint32_t work;
static char *base;
static size_t bytes_covered, touched;
static unsigned launch, block;
static bool counts_bytes; /* true while a launch's accesses arrive here */

/* Bytes of one launch, each counted once: touched by one block, and by several. */
static uint64_t own_read, own_written, shared_read, shared_written;

static std::string lines, answer;

bool lm_fake_is_counting() { return lm_fake_counted_blocks() > 0; }

long lm_fake_counted_blocks() {
  static const long n = lm_fake_setting("LM_FAKE_CUDA_COUNT", 0);
  return n < (long)SHARED ? n : (long)SHARED - 1;
}

static void map_marks() {
  base = lm_fake_ranges(&bytes_covered);
  if (bytes_covered == 0) return;
  void *p = mmap(NULL, bytes_covered * sizeof(mark), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  void *w = mmap(NULL, bytes_covered / APART * sizeof *writers, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED || w == MAP_FAILED) return;
  marks = (mark *)p, writers = (uint32_t *)w;
}

static bool is_covered(const void *p) {
  if (!marks) map_marks();
  return marks && (const char *)p >= base && (size_t)((const char *)p - base) < bytes_covered;
}

static uint32_t *writer_at(const void *p) { return writers + (size_t)((const char *)p - base) / APART; }

void lm_fake_count_launch() {
  if (!marks) map_marks();
  if (marks && (launch == LAST_LAUNCH || touched > ZAP)) {
    madvise(marks, bytes_covered * sizeof(mark), MADV_DONTNEED);
    launch = 0, touched = 0;
  }
  launch++, work++;
  own_read = own_written = shared_read = shared_written = 0;
  counts_bytes = false;
}

void lm_fake_count_block(unsigned number) { block = number; }

static void touch(mark *m, bool write) {
  if (m->launch != launch) {
    *m = {(uint16_t)launch, (uint16_t)(block & SHARED), 0, 0};
    touched++;
  }
  if (m->block != block && m->block != SHARED) {
    own_read -= m->was_read, shared_read += m->was_read;
    own_written -= m->was_written, shared_written += m->was_written;
    m->block = SHARED;
  }
  /* A byte that the launch itself wrote is read from a cache. */
  if (write ? m->was_written : m->was_read || m->was_written) return;
  (m->block == SHARED ? write ? shared_written : shared_read : write ? own_written : own_read)++;
  if (write) {
    m->was_written = 1;
  } else {
    m->was_read = 1;
  }
}

void lm_fake_count_access(const void *p, size_t bytes, bool reads, bool writes) {
  counts_bytes = true;
  if (!is_covered(p)) return;
  if (writes) *writer_at(p) = work;
  mark *first = marks + ((const char *)p - base);
  for (mark *m = first; m < first + bytes; m++) {
    if (reads) touch(m, false);
    if (writes) touch(m, true);
  }
}

static void add_line(const char *what, const char *name, uint64_t blocks, uint64_t read, uint64_t written, double flops,
                     const char *operands) {
  char numbers[160];
  snprintf(numbers, sizeof numbers, "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%.0f\t", blocks, read, written, flops);
  lm_fake_guard lock(lm_fake_state);
  lines += std::string(what) + "\t" + name + numbers + operands + "\n";
}

void lm_fake_record_launch(const char *name, uint64_t blocks, uint64_t ran) {
  double share = (double)blocks / (double)ran;
  uint64_t read = (uint64_t)((double)own_read * share + 0.5) + shared_read;
  uint64_t written = (uint64_t)((double)own_written * share + 0.5) + shared_written;
  add_line(counts_bytes ? "kernel" : "unseen kernel", name, blocks, read, written, 0, "");
}

void lm_fake_record(const lm_fake_cost &cost) {
  uint64_t read = 0, written = 0;
  std::string operands;
  work++;
  for (const lm_fake_operand &o : cost.operands) {
    char text[96];
    uint32_t writer = o.written ? work : 0;
    if (!o.written && o.bytes > 0 && is_covered(o.p))
      writer = *std::max_element(writer_at(o.p), writer_at((const char *)o.p + o.bytes - 1) + 1);
    snprintf(text, sizeof text, "%s%c%" PRIxPTR ".%" PRIu32 ":%" PRIu64, operands.empty() ? "" : " ",
             o.written ? 'w' : 'r', (uintptr_t)o.p, writer, o.bytes);
    operands += text;
    (o.written ? written : read) += o.bytes;
  }
  for (const lm_fake_operand &o : cost.operands)
    if (o.written && is_covered(o.p)) *writer_at(o.p) = work;
  add_line(cost.what ? cost.what : "unseen kernel", cost.name.c_str(), 0, read, written, cost.flops, operands.c_str());
}

extern "C" const char *lm_fake_counts(void) {
  lm_fake_guard lock(lm_fake_state);
  answer.swap(lines);
  lines.clear();
  return answer.c_str();
}
