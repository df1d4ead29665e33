/* Capturing streams into graphs, and graphs. A replay does unrelated nodes newest first: a missing join shows. */
#include <pthread.h>
#include <string.h>

#include <algorithm>

#include "runtime.h"

struct CUgraph_st {
  std::vector<lm_fake_node> nodes;
};

struct CUgraphExec_st {
  std::shared_ptr<std::vector<lm_fake_op>> ops;
};

namespace {
struct graphs {
  std::vector<lm_fake_capture_ref> captures; /* continuing */
  std::map<CUgraph_st *, bool> live;
  std::map<CUgraphExec_st *, bool> execs;
  uint64_t next_id = 1;
};
}  // namespace

static graphs &get() {
  static graphs *g = new graphs;
  return *g;
}

static thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

int lm_fake_unsafe() {
  if (thread_mode == cudaStreamCaptureModeRelaxed) return 0;
  for (auto &c : get().captures) {
    bool own = c->thread == (unsigned long)pthread_self() && c->mode != cudaStreamCaptureModeRelaxed;
    bool anyone = c->mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal;
    if (!own && !anyone) continue;
    c->invalid = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  return 0;
}

int lm_fake_unsafe_on(const lm_fake_stream &stream) {
  if (!stream->capture) return 0;
  stream->capture->invalid = true;
  return cudaErrorStreamCaptureUnsupported;
}

extern "C" int lm_fake_forbidden(void) {
  lm_fake_guard lock(lm_fake_state);
  return lm_fake_unsafe();
}

extern "C" void lm_fake_waits_for(int device) {
  lm_fake_guard lock(lm_fake_state);
  for (auto &c : get().captures) {
    if (c->thread == (unsigned long)pthread_self() || (device >= 0 && c->origin->device != device)) continue;
    c->invalid = true;
  }
}

int lm_fake_legacy_conflict(int device) {
  for (auto &c : get().captures) {
    for (auto &s : c->streams) {
      if (s->device != device || s->flags & cudaStreamNonBlocking) continue;
      c->invalid = true;
      return cudaErrorStreamCaptureImplicit;
    }
  }
  return 0;
}

int lm_fake_capture_node(const lm_fake_stream &stream, lm_fake_op op) {
  lm_fake_capture &c = *stream->capture;
  if (c.invalid) return cudaErrorStreamCaptureInvalidated;
  c.nodes.push_back({std::move(op), stream->tail});
  stream->tail.assign(1, (int)c.nodes.size() - 1);
  return 0;
}

/* Marks what the node and all before it are. */
static void mark(const std::vector<lm_fake_node> &nodes, int node, std::vector<bool> &seen) {
  std::vector<int> left = {node};
  while (!left.empty()) {
    int n = left.back();
    left.pop_back();
    if (seen[(size_t)n]) continue;
    seen[(size_t)n] = true;
    left.insert(left.end(), nodes[(size_t)n].after.begin(), nodes[(size_t)n].after.end());
  }
}

static void put_in_order(const std::vector<lm_fake_node> &nodes, int node, std::vector<bool> &placed,
                         std::vector<lm_fake_op> &out) {
  std::vector<int> left = {node};
  while (!left.empty()) {
    int n = left.back(), missing = -1;
    for (int before : nodes[(size_t)n].after) {
      if (!placed[(size_t)before]) missing = before;
    }
    if (missing >= 0) {
      left.push_back(missing);
      continue;
    }
    left.pop_back();
    if (placed[(size_t)n]) continue;
    placed[(size_t)n] = true;
    out.push_back(nodes[(size_t)n].op);
  }
}

extern "C" {

LM_FAKE_API cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
  LM_FAKE_CALL();
  std::swap(*mode, thread_mode);
  return cudaSuccess;
}

LM_FAKE_API cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode) {
  LM_FAKE_CALL();
  lm_fake_guard lock(lm_fake_state);
  lm_fake_stream stream = lm_fake_find_stream(handle);
  if (!stream) return lm_fake_result(cudaErrorInvalidResourceHandle);
  if (stream->legacy) return lm_fake_result(cudaErrorStreamCaptureUnsupported);
  if (stream->capture) return lm_fake_result(cudaErrorIllegalState);
  lm_fake_capture_ref c = std::make_shared<lm_fake_capture>();
  c->id = get().next_id++;
  c->mode = mode;
  c->thread = (unsigned long)pthread_self();
  c->origin = stream.get();
  c->streams.push_back(stream);
  stream->capture = c;
  stream->tail.clear();
  get().captures.push_back(c);
  return cudaSuccess;
}

LM_FAKE_API cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *out) {
  int code = lm_fake_begin(__func__);
  lm_fake_guard lock(lm_fake_state);
  lm_fake_stream stream = lm_fake_find_stream(handle);
  *out = NULL;
  if (!stream) return lm_fake_result(cudaErrorInvalidResourceHandle);
  lm_fake_capture_ref c = stream->capture;
  if (!c) return lm_fake_result(cudaErrorIllegalState);
  if (c->origin != stream.get()) {
    c->invalid = true;
    return lm_fake_result(cudaErrorStreamCaptureUnmatched);
  }
  if (c->mode != cudaStreamCaptureModeRelaxed && c->thread != (unsigned long)pthread_self()) {
    return lm_fake_result(cudaErrorStreamCaptureWrongThread);
  }
  std::vector<bool> joined(c->nodes.size(), false);
  for (int node : stream->tail) mark(c->nodes, node, joined);
  bool unjoined = std::find(joined.begin(), joined.end(), false) != joined.end();
  for (auto &s : c->streams) s->capture = NULL, s->tail.clear();
  c->ended = true;
  auto &all = get().captures;
  all.erase(std::remove(all.begin(), all.end(), c), all.end());
  if (code == 0 && c->invalid) code = cudaErrorStreamCaptureInvalidated;
  if (code == 0 && unjoined) code = cudaErrorStreamCaptureUnjoined;
  if (code != 0) return lm_fake_result(code);
  CUgraph_st *graph = new CUgraph_st{std::move(c->nodes)};
  c->nodes.clear();
  get().live[graph] = true;
  lm_fake_count("graph", 1);
  *out = graph;
  return cudaSuccess;
}

static enum cudaStreamCaptureStatus status_of(const lm_fake_stream &stream) {
  if (!stream->capture) return cudaStreamCaptureStatusNone;
  return stream->capture->invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
}

LM_FAKE_API cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *status) {
  LM_FAKE_CALL();
  lm_fake_guard lock(lm_fake_state);
  lm_fake_stream stream = lm_fake_find_stream(handle);
  if (!stream) return lm_fake_result(cudaErrorInvalidResourceHandle);
  *status = status_of(stream);
  return lm_fake_result(stream->legacy ? lm_fake_legacy_conflict(stream->device) : 0);
}

LM_FAKE_API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, enum cudaStreamCaptureStatus *status,
                                                 unsigned long long *id, cudaGraph_t *graph,
                                                 const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                                 size_t *count) {
  LM_FAKE_CALL();
  lm_fake_guard lock(lm_fake_state);
  lm_fake_stream stream = lm_fake_find_stream(handle);
  if (!stream) return lm_fake_result(cudaErrorInvalidResourceHandle);
  if (graph || nodes || edges || count)
    return lm_fake_result(cudaErrorNotSupported); /* a graph in the making has no handle */
  *status = status_of(stream);
  if (id) *id = stream->capture ? stream->capture->id : 0;
  return cudaSuccess;
}

LM_FAKE_API cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
  LM_FAKE_CALL();
  lm_fake_guard lock(lm_fake_state);
  if (!get().live.count(graph)) return lm_fake_result(cudaErrorInvalidValue);
  if (nodes) return lm_fake_result(cudaErrorNotSupported); /* nodes are only counted */
  *count = graph->nodes.size();
  return cudaSuccess;
}

LM_FAKE_API cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  int code = lm_fake_begin(__func__);
  lm_fake_guard lock(lm_fake_state);
  if (!get().live.erase(graph)) return lm_fake_result(cudaErrorInvalidValue);
  delete graph;
  lm_fake_count("graph", -1);
  return lm_fake_result(code);
}

LM_FAKE_API cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long) {
  LM_FAKE_CALL();
  lm_fake_guard lock(lm_fake_state);
  *out = NULL;
  if (!get().live.count(graph)) return lm_fake_result(cudaErrorInvalidValue);
  CUgraphExec_st *exec = new CUgraphExec_st{std::make_shared<std::vector<lm_fake_op>>()};
  std::vector<bool> placed(graph->nodes.size(), false);
  for (size_t i = graph->nodes.size(); i-- > 0;) put_in_order(graph->nodes, (int)i, placed, *exec->ops);
  get().execs[exec] = true;
  lm_fake_count("graph", 1);
  *out = exec;
  return cudaSuccess;
}

LM_FAKE_API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph,
                                                      unsigned long long flags) {
  return cudaGraphInstantiate(out, graph, flags);
}

LM_FAKE_API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  int code = lm_fake_begin(__func__);
  lm_fake_guard lock(lm_fake_state);
  if (!get().execs.erase(exec)) return lm_fake_result(cudaErrorInvalidValue);
  delete exec; /* queued launches keep the work */
  lm_fake_count("graph", -1);
  return lm_fake_result(code);
}

LM_FAKE_API cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t) {
  LM_FAKE_CALL();
  lm_fake_guard lock(lm_fake_state);
  return lm_fake_result(get().execs.count(exec) ? 0 : cudaErrorInvalidValue);
}

LM_FAKE_API cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle) {
  LM_FAKE_WORK();
  lm_fake_stream stream;
  {
    lm_fake_guard lock(lm_fake_state);
    stream = lm_fake_find_stream(handle);
    if (!stream) return lm_fake_result(cudaErrorInvalidResourceHandle);
    if (!get().execs.count(exec)) return lm_fake_result(cudaErrorInvalidValue);
    int code = lm_fake_unsafe_on(stream); /* a graph in a graph is not emulated */
    lm_fake_queued queued = {};
    queued.graph = exec->ops;
    if (code == 0) code = lm_fake_push(stream, queued);
    if (code != 0) return lm_fake_result(code);
  }
  lm_fake_settle(stream);
  return cudaSuccess;
}

}  // extern "C"
