/* Streams, memory, pinned blocks and graphs of one device, used by many threads at once, over a driver whose streams
 * are threads: what does not wait for what it has to is a data race. Meant for ThreadSanitizer; see tsan/run.
 *
 * Between a stream's thread and the rest of the program nothing is ordered but what CUDA orders: work comes after the
 * call that gave it, and an event's waiters after what was given before it. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/alloc.h"
#include "device/driver.h"
#include "device/graph.h"
#include "device/stream.h"

enum { STREAMS_MOST = 16, ROOM = 1 << 18, CARD_BYTES = 3 << 19 };
enum { WORKERS = 4, CAPTURERS = 2, SHARED = 4, SLOTS = 8, ROUNDS = 1500, GRAPHS = 30 };

static _Atomic int wrong;

#define EXPECT(what)                                                       \
  do {                                                                     \
    if (!(what)) {                                                         \
      fprintf(stderr, "tsan_streams: line %d: not %s\n", __LINE__, #what); \
      wrong++;                                                             \
    }                                                                      \
  } while (0)

static unsigned draw(unsigned *seed, unsigned below) { return (unsigned)rand_r(seed) % below; }

static void nap(unsigned microseconds) { nanosleep(&(struct timespec){.tv_nsec = 1000l * microseconds}, NULL); }

/* ---- the driver */

typedef struct queue queue;

typedef struct work {
  enum { FILL, CHECK, COPY, WAIT } kind;
  uint64_t *to, value; /* WAIT: until that much of `on` is done */
  const uint64_t *from;
  size_t n;
  queue *on;
} work;

typedef struct recording { /* a graph, in the order of the calls, which is one that is allowed */
  pthread_t thread;
  queue *stream[STREAMS_MOST];
  int nstreams, n;
  work item[64];
} recording;

struct queue {
  pthread_mutex_t giving; /* over what is given; the stream's own thread never takes it */
  work *item;             /* [ROOM] */
  _Atomic uint64_t given, done;
  _Atomic(recording *) capture;
};

typedef struct event {
  queue *stream;
  uint64_t upto;
  recording *capture;
} event;

static queue *queues[STREAMS_MOST];
static _Atomic int nqueues;
static _Atomic long held; /* bytes */

static void run(const work *w) {
  for (size_t i = 0; w->kind == FILL && i < w->n; i++) w->to[i] = w->value;
  for (size_t i = 0; w->kind == COPY && i < w->n; i++) w->to[i] = w->from[i];
  for (size_t i = 0; w->kind == CHECK && i < w->n; i++) {
    if (w->from[i] == w->value) continue;
    fprintf(stderr, "tsan_streams: %llu for %llu\n", (unsigned long long)w->from[i], (unsigned long long)w->value);
    wrong++;
    return;
  }
  while (w->kind == WAIT && atomic_load_explicit(&w->on->done, memory_order_acquire) < w->value) nap(20);
}

static void *be_stream(void *arg) {
  queue *q = arg;
  unsigned seed = (unsigned)(uintptr_t)q;
  for (uint64_t next = 0;; next++) {
    while (atomic_load_explicit(&q->given, memory_order_acquire) == next) nap(50);
    if (draw(&seed, 4) == 0) nap(draw(&seed, 200)); /* late, as a card may be */
    run(&q->item[next]);
    atomic_store_explicit(&q->done, next + 1, memory_order_release);
  }
  return NULL;
}

/* Appends work; the queue must be locked. */
static lm_status append(queue *q, const work *w) {
  uint64_t at = atomic_load_explicit(&q->given, memory_order_relaxed);
  if (at == ROOM) return lm_fail(LM_E_STATE, "a stream was given too much");
  q->item[at] = *w;
  atomic_store_explicit(&q->given, at + 1, memory_order_release);
  return LM_OK;
}

static lm_status give(queue *q, const work *w) {
  recording *r = atomic_load(&q->capture);
  if (r) {
    EXPECT(pthread_equal(r->thread, pthread_self()));
    r->item[r->n++] = *w;
    return LM_OK;
  }
  pthread_mutex_lock(&q->giving);
  lm_status status = append(q, w);
  pthread_mutex_unlock(&q->giving);
  return status;
}

static uint64_t given_to(queue *q) { return atomic_load_explicit(&q->given, memory_order_relaxed); }

static void wait_until(queue *q, uint64_t upto) { run(&(work){.kind = WAIT, .on = q, .value = upto}); }

static void wait_for_all(void) {
  for (int i = 0; i < nqueues; i++) wait_until(queues[i], given_to(queues[i]));
}

static int card_count(void) { return 1; }

static lm_status card_alloc(int card, size_t bytes, void **out) {
  (void)card;
  *out = NULL;
  long all = atomic_fetch_add(&held, (long)bytes) + (long)bytes;
  if (all <= CARD_BYTES && posix_memalign(out, 64, bytes) == 0) return LM_OK;
  held -= (long)bytes;
  return lm_fail(LM_E_OOM, "the card is full");
}

static void card_free(int card, void *p, size_t bytes) {
  (void)card;
  wait_for_all();
  held -= (long)bytes;
  free(p);
}

static lm_status card_copy(void *stream, lm_device to, void *dst, lm_device from, const void *src, size_t bytes,
                           bool later) {
  (void)to, (void)from;
  lm_status status = give(stream, &(work){.kind = COPY, .to = dst, .from = src, .n = bytes / sizeof(uint64_t)});
  if (status == LM_OK && !later) wait_until(stream, given_to(stream));
  return status;
}

static lm_status card_synchronize(int card) {
  (void)card;
  for (int i = 0; i < nqueues; i++)
    if (atomic_load(&queues[i]->capture)) return lm_fail(LM_E_STATE, "the whole card, during a capture");
  wait_for_all();
  return LM_OK;
}

static lm_status stream_create(int card, int priority, void **out) {
  (void)card, (void)priority;
  pthread_t id;
  queue *q = calloc(1, sizeof *q);
  if (!q || !(q->item = calloc(ROOM, sizeof *q->item)) || nqueues == STREAMS_MOST) abort();
  pthread_mutex_init(&q->giving, NULL);
  queues[nqueues] = q; /* the core's lock lets in one thread at a time */
  nqueues++;
  if (pthread_create(&id, NULL, be_stream, q) != 0) abort();
  pthread_detach(id);
  *out = q;
  return LM_OK;
}

static lm_status stream_synchronize(int card, void *stream) {
  (void)card;
  queue *q = stream;
  EXPECT(!atomic_load(&q->capture));
  wait_until(q, given_to(q));
  return LM_OK;
}

static lm_status event_create(int card, bool timing, void **out) {
  (void)card, (void)timing;
  if (!(*out = calloc(1, sizeof(event)))) abort();
  return LM_OK;
}

static void event_destroy(int card, void *e) {
  (void)card;
  free(e);
}

static lm_status event_record(int card, void *at, void *stream) {
  (void)card;
  event *e = at;
  queue *q = stream;
  recording *r = atomic_load(&q->capture);
  EXPECT(!r || pthread_equal(r->thread, pthread_self()));
  *e = (event){q, given_to(q), r};
  return LM_OK;
}

static lm_status event_wait(int card, void *at, void *stream) {
  (void)card;
  event *e = at;
  queue *q = stream;
  recording *r = atomic_load(&q->capture);
  if (e->capture && !r) {
    EXPECT(pthread_equal(e->capture->thread, pthread_self()));
    e->capture->stream[e->capture->nstreams++] = q;
    atomic_store(&q->capture, e->capture);
  }
  if (e->capture) return LM_OK; /* a graph's items keep their order */
  if (r) return lm_fail(LM_E_STATE, "a capture waits for what is outside of it");
  return give(q, &(work){.kind = WAIT, .on = e->stream, .value = e->upto});
}

static lm_status event_query(int card, void *at, bool *done) {
  (void)card;
  event *e = at;
  EXPECT(!e->capture);
  *done = atomic_load_explicit(&e->stream->done, memory_order_acquire) >= e->upto;
  return LM_OK;
}

static lm_status event_synchronize(int card, void *at) {
  (void)card;
  event *e = at;
  wait_until(e->stream, e->upto);
  return LM_OK;
}

static lm_status host_alloc(size_t bytes, void **out) {
  return posix_memalign(out, 64, bytes) == 0 ? LM_OK : lm_fail(LM_E_OOM, "no memory");
}

static void host_free(void *p) {
  wait_for_all();
  free(p);
}

static lm_status capture_begin(int card, void *stream) {
  (void)card;
  recording *r = calloc(1, sizeof *r);
  if (!r) abort();
  r->thread = pthread_self();
  r->stream[r->nstreams++] = stream;
  atomic_store(&((queue *)stream)->capture, r);
  return LM_OK;
}

static lm_status capture_end(int card, void *stream, void **graph) {
  (void)card;
  recording *r = atomic_load(&((queue *)stream)->capture);
  for (int i = 0; i < r->nstreams; i++) atomic_store(&r->stream[i]->capture, NULL);
  if (graph) {
    *graph = r;
  } else {
    free(r);
  }
  return LM_OK;
}

static void graph_destroy(int card, void *graph) {
  (void)card;
  free(graph);
}

/* Enqueues all of a graph at once: another's launch does not come between. */
static lm_status graph_launch(int card, void *graph, void *stream) {
  (void)card;
  lm_status status = LM_OK;
  recording *r = graph;
  queue *q = stream;
  EXPECT(!atomic_load(&q->capture));
  pthread_mutex_lock(&q->giving);
  for (int i = 0; i < r->n && status == LM_OK; i++) status = append(q, &r->item[i]);
  pthread_mutex_unlock(&q->giving);
  return status;
}

static const lm_driver driver = {
    .abi = LM_DRIVER_ABI,
    .name = "threads",
    .rules = {.round = 64,
              .small_limit = 4096,
              .small_segment = 16384,
              .large_segment = 131072,
              .large_limit = 65536,
              .large_round = 4096},
    .count = card_count,
    .alloc = card_alloc,
    .free = card_free,
    .copy = card_copy,
    .synchronize = card_synchronize,
    .stream_create = stream_create,
    .stream_synchronize = stream_synchronize,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_query = event_query,
    .event_synchronize = event_synchronize,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .graph_launch = graph_launch,
    .graph_destroy = graph_destroy,
};

/* ---- ops, as the core has them */

static lm_device device;
static lm_stream *shared[SHARED];

typedef struct block {
  uint64_t *p, value;
  size_t n;
  lm_used used;
} block;

static lm_status op(lm_stream *s, const work *w, block *out, block *in) {
  lm_status status;
  lm_stream_set_current(s);
  TRY(lm_graph_join(s));
  if (in) TRY(lm_use_read(&in->used, s));
  if (out) TRY(lm_use_write(&out->used, s));
  status = give(s->native, w);
  lm_stream_touch(s);
done:
  return status;
}

static lm_status fill(lm_stream *s, block *b, uint64_t value) {
  b->value = value;
  return op(s, &(work){.kind = FILL, .to = b->p, .n = b->n, .value = value}, b, NULL);
}

static lm_status check(lm_stream *s, block *b) {
  return op(s, &(work){.kind = CHECK, .from = b->p, .n = b->n, .value = b->value}, NULL, b);
}

static lm_status copy(lm_stream *s, block *to, block *from) {
  to->value = from->value;
  return op(s, &(work){.kind = COPY, .to = to->p, .from = from->p, .n = to->n}, to, from);
}

static void put_back(block *b) {
  if (b->p) lm_device_free_used(device, b->p, b->n * sizeof *b->p, b->used);
  b->p = NULL;
}

/* Allocates a block of n numbers; leaves it out if there is no memory. */
static lm_status make(lm_stream *s, block *b, size_t n) {
  put_back(b);
  b->n = n;
  lm_stream_set_current(s);
  lm_status status = lm_device_alloc_used(device, n * sizeof *b->p, (void **)&b->p, &b->used);
  return status == LM_E_OOM ? LM_OK : status;
}

/* ---- threads that work */

static pthread_mutex_t exchange_lock = PTHREAD_MUTEX_INITIALIZER;
static block exchanged; /* goes from thread to thread */

static void exchange(block *mine) {
  pthread_mutex_lock(&exchange_lock);
  block other = {exchanged.p, exchanged.value, exchanged.n, atomic_load(&exchanged.used)};
  exchanged.p = mine->p, exchanged.value = mine->value, exchanged.n = mine->n;
  atomic_store(&exchanged.used, atomic_load(&mine->used));
  mine->p = other.p, mine->value = other.value, mine->n = other.n;
  atomic_store(&mine->used, atomic_load(&other.used));
  pthread_mutex_unlock(&exchange_lock);
}

static lm_status from_pinned(lm_stream *s, block *b, uint64_t value) {
  lm_status status;
  uint64_t *host = NULL;
  TRY(lm_pinned_alloc(b->n * sizeof *host, (void **)&host));
  for (size_t i = 0; i < b->n; i++) host[i] = value;
  b->value = value;
  TRY(op(s, &(work){.kind = COPY, .to = b->p, .from = host, .n = b->n}, b, NULL));
  lm_pinned_use(host, s);
done:
  lm_pinned_free(host);
  return status;
}

static lm_status with_scratch(lm_stream *s, size_t n) {
  void *p;
  lm_stream_set_current(s);
  lm_status status = lm_device_alloc(device, n * sizeof(uint64_t), &p);
  if (status != LM_OK) return status == LM_E_OOM ? LM_OK : status;
  status = give(s->native, &(work){.kind = FILL, .to = p, .n = n, .value = 1});
  lm_stream_touch(s);
  lm_device_free(device, p, n * sizeof(uint64_t));
  return status;
}

static lm_status by_event(lm_stream *from, lm_stream *to) {
  lm_status status;
  lm_event *e = NULL;
  bool done;
  TRY(lm_event_new(device, false, &e));
  TRY(lm_event_record(e, from));
  TRY(lm_event_wait(e, to));
  TRY(lm_event_query(e, &done));
done:
  lm_event_free(e);
  return status;
}

static lm_status round_of(unsigned *seed, block *slot) {
  block *b = &slot[draw(seed, SLOTS)], *other = &slot[draw(seed, SLOTS)];
  lm_stream *s = shared[draw(seed, SHARED)], *t = shared[draw(seed, SHARED)];
  size_t n = draw(seed, 4) == 0 ? 512 + draw(seed, 8192) : 1 + draw(seed, 300);
  lm_status status = LM_OK;
  switch (draw(seed, 14)) {
    case 0: put_back(b); break;
    case 1: exchange(b); break;
    case 2: return with_scratch(s, n);
    case 3: return by_event(s, t);
    case 4: return lm_stream_wait(s, t);
    case 5: return b->p ? from_pinned(s, b, draw(seed, 1000)) : LM_OK;
    case 6:
      if (draw(seed, 8) == 0) return lm_device_synchronize(device);
      if (draw(seed, 8) == 0) lm_memory_empty_cache(device);
      return draw(seed, 4) == 0 ? lm_stream_synchronize(s) : LM_OK;
    case 7:
    case 8: TRY(make(s, b, n)); return b->p ? fill(s, b, draw(seed, 1000)) : LM_OK;
    case 9: return b->p ? fill(s, b, draw(seed, 1000)) : LM_OK;
    case 10:
      if (!b->p || b == other) break;
      TRY(make(s, other, b->n));
      return other->p ? copy(s, other, b) : LM_OK;
    default: return b->p ? check(s, b) : LM_OK;
  }
done:
  return status;
}

static void *be_worker(void *arg) {
  unsigned seed = (unsigned)(uintptr_t)arg;
  block slot[SLOTS] = {{0}};
  for (int round = 0; round < ROUNDS && !wrong; round++) {
    if (round_of(&seed, slot) == LM_OK) continue;
    fprintf(stderr, "tsan_streams: %s\n", lm_error());
    wrong++;
  }
  for (int i = 0; i < SLOTS; i++) put_back(&slot[i]);
  return NULL;
}

/* ---- threads that capture */

/* Records a graph; LM_E_OOM if the card is full, as a capture frees nothing of others to make room. */
static lm_status record(lm_stream *s, lm_stream *beside, block *in, block *out, lm_graph **g) {
  lm_status status;
  block between = {0};
  TRY(lm_graph_begin(s, g));
  TRY(make(s, &between, in->n));
  TRY(between.p ? copy(s, &between, in) : LM_E_OOM);
  TRY(make(beside, out, in->n));
  if (!out->p) TRY(LM_E_OOM);
  TRY(fill(beside, out, 0)); /* joins the capture, though it waits for nothing of it */
  TRY(copy(beside, out, &between));
  put_back(&between);
  status = lm_graph_end(g, true);
done:
  put_back(&between);
  if (*g && status != LM_OK) lm_graph_end(g, false);
  return status;
}

static lm_status capture_one(unsigned *seed, lm_stream *s, lm_stream *beside) {
  lm_status status;
  lm_graph *g = NULL;
  block in = {0}, out = {0};
  size_t n = 1 + draw(seed, 300);
  TRY(make(s, &in, n));
  if (!in.p) return LM_OK;
  TRY(fill(shared[draw(seed, SHARED)], &in, 1));
  TRY(record(s, beside, &in, &out, &g));
  for (int i = 0; i < 4; i++) {
    TRY(fill(shared[draw(seed, SHARED)], &in, draw(seed, 1000)));
    TRY(lm_graph_launch(g, draw(seed, 2) ? s : shared[draw(seed, SHARED)]));
    out.value = in.value;
    TRY(check(shared[draw(seed, SHARED)], &out));
  }
  if (draw(seed, 2)) put_back(&out);
done:
  put_back(&in);
  lm_graph_free(g);
  if (status == LM_OK && out.p) status = check(s, &out); /* outlives its graph */
  put_back(&out);
  return status;
}

static void *be_capturer(void *arg) {
  unsigned seed = (unsigned)(uintptr_t)arg;
  lm_stream *s, *beside;
  if (lm_stream_new(device, 0, &s) != LM_OK || lm_stream_new(device, 0, &beside) != LM_OK) abort();
  for (int i = 0; i < GRAPHS && !wrong; i++) {
    lm_status status = capture_one(&seed, s, beside);
    if (status == LM_OK || status == LM_E_OOM) continue;
    fprintf(stderr, "tsan_streams: %s\n", lm_error());
    wrong++;
  }
  return NULL;
}

int main(void) {
  int kind;
  pthread_t thread[WORKERS + CAPTURERS];
  if (lm_driver_register(&driver, &kind) != LM_OK) return 1;
  device = LM_DEVICE(kind, 0);
  shared[0] = lm_stream_current(device);
  for (int i = 1; i < SHARED; i++)
    if (lm_stream_new(device, 0, &shared[i]) != LM_OK) return 1;
  for (int i = 0; i < WORKERS + CAPTURERS; i++) {
    void *seed = (void *)(uintptr_t)(i + 1);
    if (pthread_create(&thread[i], NULL, i < WORKERS ? be_worker : be_capturer, seed) != 0) return 1;
  }
  for (int i = 0; i < WORKERS + CAPTURERS; i++) pthread_join(thread[i], NULL);
  put_back(&exchanged);
  if (lm_device_synchronize(device) != LM_OK) wrong++;
  lm_memory_empty_cache(device);
  EXPECT(lm_memory_stats_of(device).allocated == 0);
  EXPECT(held == 0);
  printf("tsan_streams: %s\n", wrong ? "FAILED" : "everything in order");
  return wrong != 0;
}
