/* Streams: queues whose work is done when somebody waits, and events between them. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <thread>

#include "counts.h"

/* An event between processes, in a memory file: how often it was recorded, which of those is reached, and which
 * somebody waits for; and whose stream has yet to pass such a wait, a process and its descriptor of the file. */
struct shared_words {
  std::atomic<uint64_t> recorded, reached, wanted, waiter;
};
struct shared_event {
  int fd;
  std::string file; /* the file is there while the owner lives */
  shared_words *words;
  ~shared_event() { munmap(words, sizeof *words), close(fd); }
};
typedef std::shared_ptr<shared_event> shared_event_ref;

struct CUevent_st {
  unsigned flags;
  int device;
  lm_fake_stream stream; /* the latest record's; NULL before it */
  uint64_t upto;
  std::shared_ptr<double> seconds; /* when that one was reached */
  lm_fake_capture_ref capture;     /* recorded in it, after these nodes */
  std::vector<int> nodes;
  int asked;               /* queries in a row that found it not ready */
  shared_event_ref shared; /* NULL: of this process alone */
  bool foreign;            /* another process's */
};

enum { PATIENCE = 64 }; /* after that many queries of an event the device gets on with it, as a real one does */

namespace {
struct streams {
  std::map<CUstream_st *, lm_fake_stream> live;   /* streams by handle */
  std::vector<lm_fake_stream> order;              /* oldest first; destroyed ones until their work is done */
  lm_fake_stream legacy[LM_FAKE_MAX_DEVICES];     /* NULL, cudaStreamLegacy */
  lm_fake_stream per_thread[LM_FAKE_MAX_DEVICES]; /* cudaStreamPerThread; one for all threads here */
  std::map<CUevent_st *, bool> events;
  uint64_t next_id = 1;
  std::vector<std::pair<lm_fake_gate_ref, std::pair<shared_event_ref, uint64_t>>> awaited; /* events of others */
  bool serves = false;
  bool eager = lm_fake_setting("LM_FAKE_CUDA_EAGER", 0) != 0;
};
}  // namespace

static streams &get() {
  static streams *s = new streams;
  return *s;
}

/* Held by the thread that does queued work, but while it waits for a gate or for work that another thread is at. */
static std::recursive_mutex turn;
static int turn_depth; /* number of times that its holder took it */
/* A stream has, or a gate was passed; with the state lock. Never destroyed: threads may wait to the end. */
static std::condition_variable_any &moved = *new std::condition_variable_any;

namespace {
struct turn_guard {
  turn_guard() { turn.lock(), turn_depth++; }
  ~turn_guard() {
    if (--turn_depth == 0) lm_fake_open(0);
    turn.unlock();
  }
};
}  // namespace

/* Lets others have the turn until something has moved. `lock` is the state's. */
static void let_others(std::unique_lock<std::recursive_mutex> &lock) {
  int depth = turn_depth;
  lm_fake_open(0);
  turn_depth = 0;
  for (int i = 0; i < depth; i++) turn.unlock();
  moved.wait(lock);
  lock.unlock();
  for (int i = 0; i < depth; i++) turn.lock();
  turn_depth = depth;
  lock.lock();
}

static lm_fake_stream make(int device, unsigned flags, int priority, bool legacy) {
  lm_fake_stream s = std::make_shared<CUstream_st>();
  s->id = get().next_id++;
  s->device = device, s->flags = flags, s->priority = priority, s->legacy = legacy;
  s->queued = s->done = 0, s->busy = false, s->launches = 0;
  get().order.push_back(s);
  return s;
}

lm_fake_stream lm_fake_find_stream(cudaStream_t handle) {
  int device = lm_fake_current();
  if (lm_fake_devices() == 0) return NULL;
  if (handle == NULL || handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
    bool legacy = handle != cudaStreamPerThread;
    lm_fake_stream &s = (legacy ? get().legacy : get().per_thread)[device];
    if (!s) s = make(device, cudaStreamDefault, 0, legacy);
    return s;
  }
  auto found = get().live.find(handle);
  return found == get().live.end() ? NULL : found->second;
}

/* ---- queueing and doing ---- */

int lm_fake_push(const lm_fake_stream &stream, lm_fake_queued work) {
  if (stream->capture) return lm_fake_capture_node(stream, work.op);
  if (stream->legacy) {
    int code = lm_fake_legacy_conflict(stream->device);
    if (code != 0) return code;
  }
  for (auto &other : get().order) { /* the legacy stream and the blocking ones of its device wait for each other */
    bool ordered = other->device == stream->device && other->legacy != stream->legacy &&
                   !((other->flags | stream->flags) & cudaStreamNonBlocking);
    if (ordered && other->done < other->queued) work.waits.push_back({other, other->queued});
  }
  stream->queue.push_back(std::move(work));
  stream->queued++;
  return 0;
}

void lm_fake_settle(const lm_fake_stream &stream) {
  if (get().eager) lm_fake_drain(stream, UINT64_MAX, false);
}

static void do_one(const lm_fake_op &op) {
  {
    lm_fake_guard lock(lm_fake_state);
    if (lm_fake_sticky) return; /* the device is lost */
  }
  lm_fake_open(op.devices);
  int code = op.run();
  lm_fake_guard lock(lm_fake_state);
  if (code != 0 && lm_fake_sticky == 0) lm_fake_sticky = code;
}

bool lm_fake_drain(const lm_fake_stream &stream, uint64_t upto, bool wait) {
  turn_guard mine;
  for (;;) {
    lm_fake_queued work;
    {
      std::unique_lock<std::recursive_mutex> lock(lm_fake_state);
      if (stream->done >= upto || stream->queue.empty()) return true;
      lm_fake_queued &next = stream->queue.front();
      if (stream->busy || (next.gate && !next.gate->passed && !lm_fake_sticky)) {
        if (!wait) return false;
        let_others(lock);
        continue;
      }
      stream->busy = true;
      work = next;
    }
    bool ready = true;
    for (auto &on : work.waits) ready = ready && lm_fake_drain(on.first, on.second, wait);
    if (!ready) {
      /* Stays the next one. */
    } else if (work.graph) {
      for (auto &op : *work.graph) do_one(op);
    } else if (work.op.run) {
      do_one(work.op);
    }
    lm_fake_guard lock(lm_fake_state);
    stream->busy = false;
    if (ready) stream->queue.pop_front(), stream->done++;
    moved.notify_all();
    if (!ready) return false;
  }
}

void lm_fake_drain_device(int device) {
  turn_guard mine;
  std::vector<lm_fake_stream> order;
  {
    lm_fake_guard lock(lm_fake_state);
    order = get().order;
  }
  std::stable_partition(order.begin(), order.end(), [](const lm_fake_stream &s) { return s->legacy; });
  for (auto s = order.rbegin(); s != order.rend(); ++s) { /* newest first: a missing wait shows */
    if (device < 0 || (*s)->device == device) lm_fake_drain(*s, (*s)->queued, true);
  }
  lm_fake_guard lock(lm_fake_state);
  auto over = [](const lm_fake_stream &s) { return s.use_count() == 2 && s->queue.empty(); }; /* `order` here has one */
  auto &all = get().order;
  all.erase(std::remove_if(all.begin(), all.end(), over), all.end());
}

extern "C" long lm_fake_stream_launches(void *handle) {
  lm_fake_guard lock(lm_fake_state);
  return lm_fake_find_stream((cudaStream_t)handle)->launches;
}

extern "C" long lm_fake_stream_waits(void *handle, void *on) {
  lm_fake_guard lock(lm_fake_state);
  return lm_fake_find_stream((cudaStream_t)handle)->waits[(CUstream_st *)on];
}

extern "C" long lm_fake_pending(void) {
  lm_fake_guard lock(lm_fake_state);
  size_t count = 0;
  for (auto &s : get().order) count += s->queue.size();
  return (long)count;
}

int lm_fake_enqueue(void *handle, std::function<void()> work, const lm_fake_cost &cost) {
  lm_fake_stream stream;
  {
    lm_fake_guard lock(lm_fake_state);
    stream = lm_fake_find_stream((cudaStream_t)handle);
    if (!stream) return lm_fake_result(cudaErrorInvalidResourceHandle);
    lm_fake_queued queued = {};
    auto run = [work] { return lm_fake_run_work(work, "library work"); };
    auto count = [cost, run] {
      lm_fake_record(cost);
      return cost.what ? 0 : run();
    };
    queued.op = {lm_fake_is_counting() ? std::function<int()>(count) : run, lm_fake_reach(stream->device)};
    int code = lm_fake_push(stream, queued);
    if (code != 0) return lm_fake_result(code);
  }
  lm_fake_settle(stream);
  return 0;
}

/* ---- gates ---- */

int lm_fake_gate_push(const lm_fake_stream &stream, lm_fake_gate_ref *out) {
  lm_fake_guard lock(lm_fake_state);
  int code = lm_fake_unsafe_on(stream);
  if (code == 0 && lm_fake_sticky) code = lm_fake_sticky;
  if (code != 0) return code;
  lm_fake_queued queued = {};
  queued.gate = std::make_shared<lm_fake_gate>();
  queued.gate->stream = stream, queued.gate->place = stream->queued + 1, queued.gate->passed = false;
  code = lm_fake_push(stream, queued);
  if (code == 0) *out = queued.gate;
  return code;
}

int lm_fake_wait_push(const lm_fake_stream &stream, const lm_fake_stream &on, uint64_t upto) {
  lm_fake_guard lock(lm_fake_state);
  if (stream == on || stream->capture || on->done >= upto) return 0;
  lm_fake_queued queued = {};
  queued.waits.push_back({on, upto});
  return lm_fake_push(stream, queued);
}

void lm_fake_gate_reach(const lm_fake_gate_ref &gate) { lm_fake_drain(gate->stream, gate->place - 1, true); }

void lm_fake_gate_pass(const lm_fake_gate_ref &gate) {
  lm_fake_guard lock(lm_fake_state);
  gate->passed = true;
  moved.notify_all();
}

void lm_fake_gate_follow(const lm_fake_gate_ref &gate) { lm_fake_drain(gate->stream, UINT64_MAX, false); }

void lm_fake_at_gate(unsigned devices, const std::function<void()> &work, const char *name) {
  turn_guard mine;
  do_one({[&] { return lm_fake_run_work(work, name); }, devices});
}

/* ---- events between processes ---- */

static shared_event_ref share(int fd, bool fresh, const char *file) {
  if (fd < 0) return NULL;
  void *p = fresh && ftruncate(fd, sizeof(shared_words)) != 0
                ? MAP_FAILED
                : mmap(NULL, sizeof(shared_words), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) {
    close(fd);
    return NULL;
  }
  return shared_event_ref(new shared_event{fd, file, (shared_words *)p});
}

/* Does, some time later, what another process waits for, as a device does it by itself; opens gates to what others have
 * reached, or can reach no more. */
static void serve() {
  for (;;) {
    usleep(500);
    std::vector<std::pair<lm_fake_stream, uint64_t>> wanted;
    std::vector<lm_fake_gate_ref> open;
    {
      lm_fake_guard lock(lm_fake_state);
      for (auto &e : get().events) {
        if (!e.first->shared || e.first->foreign || !e.first->stream) continue;
        const shared_words &w = *e.first->shared->words;
        if (w.wanted > w.reached) wanted.push_back({e.first->stream, e.first->upto});
      }
      auto &awaited = get().awaited;
      for (size_t i = awaited.size(); i-- > 0;) {
        const shared_event &e = *awaited[i].second.first;
        if (e.words->reached < awaited[i].second.second && access(e.file.c_str(), F_OK) == 0) continue;
        open.push_back(awaited[i].first);
        awaited.erase(awaited.begin() + (long)i);
      }
    }
    for (auto &gate : open) lm_fake_gate_pass(gate);
    for (auto &w : wanted) lm_fake_drain(w.first, w.second, false);
  }
}

/* Starts the thread that serves other processes. Needs the state lock. */
static void begin_to_serve() {
  if (get().serves) return;
  get().serves = true;
  std::thread(serve).detach();
}

/* Puts a gate into the stream until the other process has come so far. */
static cudaError_t wait_for_foreign(const lm_fake_stream &stream, const CUevent_st *event) {
  shared_event_ref shared = event->shared;
  uint64_t times = shared->words->recorded, wanted = shared->words->wanted;
  uint64_t self = (uint64_t)getpid() << 32 | (uint32_t)shared->fd;
  lm_fake_queued passed = {};
  passed.op = {[shared, self] {
                 uint64_t mine = self;
                 shared->words->waiter.compare_exchange_strong(mine, 0);
                 return 0;
               },
               0};
  if (!stream->capture) shared->words->waiter = self;
  if (shared->words->reached >= times) return lm_fake_result(lm_fake_push(stream, passed));
  while (wanted < times && !event->shared->words->wanted.compare_exchange_weak(wanted, times)) continue;
  lm_fake_gate_ref gate;
  int code = lm_fake_gate_push(stream, &gate);
  if (code != 0) return lm_fake_result(code);
  get().awaited.push_back({gate, {event->shared, times}});
  begin_to_serve();
  return lm_fake_result(lm_fake_push(stream, passed));
}

/* Returns whether a process that still exists waits for the event. */
static bool is_waited_for(const shared_event &event) {
  uint64_t waiter = event.words->waiter;
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)(waiter >> 32), (int)(uint32_t)waiter);
  return waiter != 0 && access(path, F_OK) == 0;
}

/* ---- streams ---- */

extern "C" {

LM_FAKE_API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority) {
  LM_FAKE_CALL();
  lm_fake_guard lock(lm_fake_state);
  if (lm_fake_devices() == 0) return lm_fake_result(cudaErrorNoDevice);
  if (flags & ~(unsigned)cudaStreamNonBlocking) return lm_fake_result(cudaErrorInvalidValue);
  priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
  lm_fake_stream s = make(lm_fake_current(), flags, priority, false);
  get().live[s.get()] = s;
  lm_fake_count("stream", 1);
  *out = s.get();
  return cudaSuccess;
}

LM_FAKE_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
  return cudaStreamCreateWithPriority(out, flags, 0);
}

LM_FAKE_API cudaError_t cudaStreamCreate(cudaStream_t *out) { return cudaStreamCreateWithPriority(out, 0, 0); }

LM_FAKE_API cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  int code = lm_fake_begin(__func__);
  lm_fake_guard lock(lm_fake_state);
  auto at = get().live.find(handle);
  if (at == get().live.end()) return lm_fake_result(cudaErrorInvalidResourceHandle);
  int unsafe = lm_fake_unsafe_on(at->second);
  if (unsafe != 0) return lm_fake_result(unsafe);
  get().live.erase(at); /* queued work is still done: `order` keeps it */
  lm_fake_count("stream", -1);
  return lm_fake_result(code);
}

/* Returns the stream, and how far it is queued; what a wait may not do in a capture is refused. */
static cudaError_t wait_for(cudaStream_t handle, bool query) {
  lm_fake_stream stream;
  uint64_t upto;
  {
    lm_fake_guard lock(lm_fake_state);
    stream = lm_fake_find_stream(handle);
    if (!stream) return lm_fake_result(cudaErrorInvalidResourceHandle);
    int code = lm_fake_unsafe_on(stream);
    if (code == 0 && stream->legacy) code = lm_fake_legacy_conflict(stream->device);
    if (code == 0) code = lm_fake_unsafe();
    if (code != 0) return lm_fake_result(code);
    upto = stream->queued;
    if (query) return lm_fake_result(stream->done < upto ? cudaErrorNotReady : 0);
  }
  lm_fake_drain(stream, upto, true);
  return lm_fake_result(lm_fake_sticky);
}

LM_FAKE_API cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  LM_FAKE_WORK();
  return wait_for(stream, false);
}

LM_FAKE_API cudaError_t cudaStreamQuery(cudaStream_t stream) {
  LM_FAKE_WORK();
  return wait_for(stream, true);
}

LM_FAKE_API cudaError_t cudaDeviceSynchronize(void) {
  LM_FAKE_WORK();
  {
    lm_fake_guard lock(lm_fake_state);
    int code = lm_fake_devices() == 0 ? cudaErrorNoDevice : lm_fake_unsafe();
    for (auto &s : get().order) {
      if (code == 0 && s->device == lm_fake_current()) code = lm_fake_unsafe_on(s);
    }
    if (code != 0) return lm_fake_result(code);
  }
  lm_fake_drain_device(lm_fake_current());
  return lm_fake_result(lm_fake_sticky);
}

#define STREAM_FIELD(name, type, field)                                 \
  LM_FAKE_API cudaError_t name(cudaStream_t handle, type *out) {        \
    LM_FAKE_CALL();                                                     \
    lm_fake_guard lock(lm_fake_state);                                  \
    lm_fake_stream stream = lm_fake_find_stream(handle);                \
    if (!stream) return lm_fake_result(cudaErrorInvalidResourceHandle); \
    *out = stream->field;                                               \
    return cudaSuccess;                                                 \
  }
STREAM_FIELD(cudaStreamGetPriority, int, priority)
STREAM_FIELD(cudaStreamGetFlags, unsigned, flags)
STREAM_FIELD(cudaStreamGetDevice, int, device)
STREAM_FIELD(cudaStreamGetId, unsigned long long, id)
#undef STREAM_FIELD

LM_FAKE_API cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void *data) {
  LM_FAKE_CALL();
  lm_fake_stream stream;
  {
    lm_fake_guard lock(lm_fake_state);
    stream = lm_fake_find_stream(handle);
    if (!stream) return lm_fake_result(cudaErrorInvalidResourceHandle);
    lm_fake_queued queued = {};
    queued.op = {[=] { return function(data), 0; }, 0};
    int code = lm_fake_push(stream, queued);
    if (code != 0) return lm_fake_result(code);
  }
  lm_fake_settle(stream);
  return cudaSuccess;
}

/* ---- events ---- */

LM_FAKE_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
  LM_FAKE_CALL();
  lm_fake_guard lock(lm_fake_state);
  if (lm_fake_devices() == 0) return lm_fake_result(cudaErrorNoDevice);
  shared_event_ref shared;
  if (flags & cudaEventInterprocess) {
    if (!(flags & cudaEventDisableTiming)) return lm_fake_result(cudaErrorInvalidValue);
    if (!lm_fake_has_ipc()) return lm_fake_result(cudaErrorNotSupported);
    /* Nvidia reports no number, but there are some 20,000. */
    static const long most = lm_fake_setting("LM_FAKE_CUDA_IPC_EVENTS", 20000);
    long n = 0;
    for (auto &e : get().events) n += e.first->shared && !e.first->foreign;
    if (n >= most) return lm_fake_result(cudaErrorMemoryAllocation);
    shared = share(memfd_create("fake_cuda_event", MFD_CLOEXEC), true, "");
    if (!shared) return lm_fake_result(cudaErrorMapBufferObjectFailed);
  }
  CUevent_st *event = new CUevent_st();
  event->flags = flags;
  event->shared = shared;
  event->device = lm_fake_current();
  get().events[event] = true;
  lm_fake_count("event", 1);
  *out = event;
  return cudaSuccess;
}

LM_FAKE_API cudaError_t cudaEventCreate(cudaEvent_t *out) { return cudaEventCreateWithFlags(out, 0); }

LM_FAKE_API cudaError_t cudaEventDestroy(cudaEvent_t event) {
  int code = lm_fake_begin(__func__);
  lm_fake_guard lock(lm_fake_state);
  if (!get().events.erase(event)) return lm_fake_result(cudaErrorInvalidResourceHandle);
  if (event->shared && !event->foreign && is_waited_for(*event->shared)) {
    fputs("fake CUDA: an event is destroyed while a stream of another process has yet to wait for it\n", stderr);
    if (lm_fake_sticky == 0) lm_fake_sticky = cudaErrorIllegalAddress;
  }
  delete event;
  lm_fake_count("event", -1);
  return lm_fake_result(code);
}

static cudaError_t record_event(cudaEvent_t event, cudaStream_t handle) {
  lm_fake_stream stream;
  {
    lm_fake_guard lock(lm_fake_state);
    stream = lm_fake_find_stream(handle);
    if (!stream || !get().events.count(event) || event->device != stream->device) {
      return lm_fake_result(cudaErrorInvalidResourceHandle);
    }
    event->asked = 0;
    if (stream->capture) {
      if (stream->capture->invalid) return lm_fake_result(cudaErrorStreamCaptureInvalidated);
      event->capture = stream->capture, event->nodes = stream->tail, event->stream = NULL;
      return cudaSuccess;
    }
    if (event->foreign) return lm_fake_result(cudaErrorNotSupported);
    static const double rate = (double)lm_fake_setting("LM_FAKE_CUDA_CLOCK", 1);
    std::shared_ptr<double> seconds = std::make_shared<double>(0);
    lm_fake_queued queued = {};
    shared_event_ref shared = event->shared;
    uint64_t times = shared ? shared->words->recorded + 1 : 0;
    queued.op = {[seconds, shared, times] {
                   if (shared && shared->words->reached < times) shared->words->reached = times;
                   struct timespec now;
                   clock_gettime(CLOCK_MONOTONIC, &now);
                   *seconds = rate * ((double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
                   return 0;
                 },
                 0};
    int code = lm_fake_push(stream, queued);
    if (code != 0) return lm_fake_result(code);
    event->capture = NULL, event->stream = stream, event->upto = stream->queued, event->seconds = seconds;
    if (shared) shared->words->recorded = times;
  }
  lm_fake_settle(stream);
  return cudaSuccess;
}

LM_FAKE_API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  LM_FAKE_WORK();
  return record_event(event, stream);
}

LM_FAKE_API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  LM_FAKE_WORK();
  return record_event(event, stream);
}

LM_FAKE_API cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  LM_FAKE_WORK();
  lm_fake_guard lock(lm_fake_state);
  lm_fake_stream stream = lm_fake_find_stream(handle);
  if (!stream || !get().events.count(event)) return lm_fake_result(cudaErrorInvalidResourceHandle);
  if (event->foreign) return wait_for_foreign(stream, event);
  if (event->capture && !event->capture->ended) {
    if (stream->capture && stream->capture != event->capture) {
      stream->capture->invalid = event->capture->invalid = true;
      return lm_fake_result(cudaErrorStreamCaptureMerge);
    }
    if (stream->legacy) return lm_fake_result(lm_fake_legacy_conflict(stream->device));
    if (!stream->capture) {
      stream->capture = event->capture;
      stream->tail.clear();
      event->capture->streams.push_back(stream);
    }
    for (int node : event->nodes) {
      if (std::find(stream->tail.begin(), stream->tail.end(), node) == stream->tail.end()) stream->tail.push_back(node);
    }
    return cudaSuccess;
  }
  if (event->capture) return lm_fake_result(cudaErrorCapturedEvent);
  if (!event->stream) return cudaSuccess; /* never recorded */
  if (stream->capture) {
    stream->capture->invalid = true;
    return lm_fake_result(cudaErrorStreamCaptureIsolation);
  }
  lm_fake_queued queued = {};
  queued.waits.push_back({event->stream, event->upto});
  stream->waits[event->stream.get()]++;
  return lm_fake_result(lm_fake_push(stream, queued));
}

namespace {
struct event_handle {
  uint32_t magic;
  int pid, fd;
  uint64_t inode;
};
}  // namespace
static_assert(sizeof(event_handle) <= sizeof(cudaIpcEventHandle_t), "a handle's size");
enum { EVENT_MAGIC = 0x6c6d6568 };

LM_FAKE_API cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *out, cudaEvent_t event) {
  LM_FAKE_CALL();
  lm_fake_guard lock(lm_fake_state);
  if (!get().events.count(event) || !event->shared || event->foreign) {
    return lm_fake_result(cudaErrorInvalidResourceHandle);
  }
  struct stat file;
  fstat(event->shared->fd, &file);
  event_handle handle = {EVENT_MAGIC, getpid(), event->shared->fd, file.st_ino};
  memset(out, 0, sizeof *out);
  memcpy(out, &handle, sizeof handle);
  begin_to_serve();
  return cudaSuccess;
}

LM_FAKE_API cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *out, cudaIpcEventHandle_t given) {
  LM_FAKE_CALL();
  lm_fake_guard lock(lm_fake_state);
  event_handle handle;
  memcpy(&handle, &given, sizeof handle);
  if (lm_fake_devices() == 0) return lm_fake_result(cudaErrorNoDevice);
  if (handle.magic != EVENT_MAGIC) return lm_fake_result(cudaErrorInvalidValue);
  if (handle.pid == getpid()) return lm_fake_result(cudaErrorDeviceUninitialized);
  char path[64];
  struct stat file;
  snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.pid, handle.fd);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd >= 0 && (fstat(fd, &file) != 0 || file.st_ino != handle.inode)) {
    close(fd);
    fd = -1;
  }
  if (fd < 0) return lm_fake_result(cudaErrorInvalidResourceHandle);
  shared_event_ref shared = share(fd, false, path);
  if (!shared) return lm_fake_result(cudaErrorMapBufferObjectFailed);
  CUevent_st *event = new CUevent_st();
  event->flags = cudaEventDisableTiming | cudaEventInterprocess;
  event->device = lm_fake_current();
  event->shared = shared, event->foreign = true;
  get().events[event] = true;
  lm_fake_count("event", 1);
  *out = event;
  return cudaSuccess;
}

static cudaError_t event_wait(cudaEvent_t event, bool query) {
  lm_fake_stream stream;
  uint64_t upto;
  {
    lm_fake_guard lock(lm_fake_state);
    if (!get().events.count(event)) return lm_fake_result(cudaErrorInvalidResourceHandle);
    if (event->foreign) return lm_fake_result(cudaErrorNotSupported);
    if (event->capture) {
      event->capture->invalid = true;
      return lm_fake_result(cudaErrorCapturedEvent);
    }
    int code = lm_fake_unsafe();
    if (code != 0) return lm_fake_result(code);
    stream = event->stream, upto = event->upto;
    if (!stream || stream->done >= upto) return cudaSuccess;
    if (query && ++event->asked < PATIENCE) return lm_fake_result(cudaErrorNotReady);
    event->asked = 0;
  }
  lm_fake_drain(stream, upto, !query);
  return lm_fake_result(query ? cudaErrorNotReady : lm_fake_sticky);
}

LM_FAKE_API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  LM_FAKE_WORK();
  return event_wait(event, false);
}

LM_FAKE_API cudaError_t cudaEventQuery(cudaEvent_t event) {
  LM_FAKE_WORK();
  return event_wait(event, true);
}

LM_FAKE_API cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
  LM_FAKE_CALL();
  lm_fake_guard lock(lm_fake_state);
  for (cudaEvent_t event : {start, end}) {
    if (!get().events.count(event) || !event->stream || event->flags & cudaEventDisableTiming) {
      return lm_fake_result(cudaErrorInvalidResourceHandle);
    }
  }
  if (start->device != end->device) return lm_fake_result(cudaErrorInvalidResourceHandle);
  for (cudaEvent_t event : {start, end}) {
    if (event->stream->done < event->upto) return lm_fake_result(cudaErrorNotReady);
  }
  *milliseconds = (float)(1e3 * (*end->seconds - *start->seconds));
  return cudaSuccess;
}

}  // extern "C"
