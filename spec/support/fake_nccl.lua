--- The stand-in for NCCL that is a part of the fake CUDA runtime (support/nccl/communicator.h), by way of the FFI: for
--- specs that check it, and for those that tell it what to do. nccl.is_there says whether it is preloaded.
local ffi = require "ffi"
ffi.cdef [[
  typedef struct { char internal[128]; } spec_nccl_id;
  typedef struct {
    size_t size; unsigned magic, version; int blocking, cgaClusterSize, minCTAs, maxCTAs; const char *netName;
    int splitShare, trafficClass; const char *commName; int collnetEnable, CTAPolicy, shrinkShare, nvlsCTAs,
    nChannelsPerNetPeer, nvlinkCentricSched;
  } spec_nccl_config;
  typedef struct spec_nccl_comm *spec_nccl;
  int lm_fake_nccl(const char *knob, long value);
  void lm_fake_fail(const char *name, long nth, int code);
  long lm_fake_call_count(const char *name);
  long lm_fake_live(const char *what);
  void lm_fake_count(const char *what, long by);
  int ncclGetVersion(int *);
  int ncclGetUniqueId(spec_nccl_id *);
  int ncclCommInitRankConfig(spec_nccl *, int size, spec_nccl_id, int rank, spec_nccl_config *);
  int ncclCommInitAll(spec_nccl *, int count, const int *devices);
  int ncclCommSplit(spec_nccl, int color, int key, spec_nccl *, spec_nccl_config *);
  int ncclCommFinalize(spec_nccl); int ncclCommDestroy(spec_nccl); int ncclCommAbort(spec_nccl);
  int ncclCommGetAsyncError(spec_nccl, int *);
  const char *ncclGetLastError(spec_nccl);
  int ncclCommCount(spec_nccl, int *); int ncclCommUserRank(spec_nccl, int *); int ncclCommCuDevice(spec_nccl, int *);
  int ncclGroupStart(void); int ncclGroupEnd(void);
  int ncclAllReduce(const void *, void *, size_t, int dtype, int op, spec_nccl, void *stream);
  int ncclBroadcast(const void *, void *, size_t, int dtype, int root, spec_nccl, void *stream);
  int ncclReduce(const void *, void *, size_t, int dtype, int op, int root, spec_nccl, void *stream);
  int ncclAllGather(const void *, void *, size_t, int dtype, spec_nccl, void *stream);
  int ncclReduceScatter(const void *, void *, size_t, int dtype, int op, spec_nccl, void *stream);
  int ncclSend(const void *, size_t, int dtype, int peer, spec_nccl, void *stream);
  int ncclRecv(void *, size_t, int dtype, int peer, spec_nccl, void *stream);
  int cudaSetDevice(int); int cudaMalloc(void **, size_t); int cudaFree(void *); int cudaDeviceSynchronize(void);
  int cudaMemcpy(void *, const void *, size_t, int kind);
  int cudaMemcpyAsync(void *, const void *, size_t, int kind, void *stream);
  int cudaStreamCreateWithFlags(void **, unsigned flags); int cudaStreamSynchronize(void *);
  int cudaEventCreateWithFlags(void **, unsigned flags); int cudaEventRecord(void *, void *stream);
  int cudaEventQuery(void *); int cudaStreamWaitEvent(void *stream, void *, unsigned flags);
  int usleep(unsigned);
]]

local nccl = { is_there = pcall(function() return ffi.C.lm_fake_nccl end) }

nccl.types = {
  int8_t = 0, uint8_t = 1, int32_t = 2, uint32_t = 3, int64_t = 4, uint64_t = 5, float = 7, double = 8,
}
nccl.ops = { sum = 0, product = 1, max = 2, min = 3, mean = 4 }

--- Raises an error with NCCL's words unless the call's code is 0, or one of those allowed.
function nccl.ok(code, ...)
  local text = ("code %d: %s"):format(code, ffi.string(ffi.C.ncclGetLastError(nil)))
  for _, allowed in ipairs { 0, ... } do
    if code == allowed then return code end
  end
  error(text, 2)
end

function nccl.config(blocking)
  local unset, none = -2 ^ 31, nil
  return ffi.new("spec_nccl_config", ffi.sizeof "spec_nccl_config", 0xcafebeef, 22809, blocking, unset, unset, unset,
    none, unset, unset, none, unset, unset, unset, unset, unset, unset)
end

--- Returns the same id on all ranks, by way of a file: the first one writes it.
function nccl.id(path, rank)
  local id = ffi.new "spec_nccl_id"
  if rank == 0 then
    nccl.ok(ffi.C.ncclGetUniqueId(id))
    local file = assert(io.open(path .. ".new", "wb"))
    file:write(ffi.string(id, 128))
    file:close()
    assert(os.rename(path .. ".new", path))
    return id
  end
  for _ = 1, 1000 do
    local file = io.open(path, "rb")
    if file then
      ffi.copy(id, file:read(128), 128)
      file:close()
      return id
    end
    ffi.C.usleep(10000)
  end
  error "no id"
end

--- Asks until a communicator is no longer in progress: the code, and how often it was.
function nccl.poll(comm)
  local state, times = ffi.new "int[1]", 0
  for _ = 1, 5000 do
    nccl.ok(ffi.C.ncclCommGetAsyncError(comm, state))
    if state[0] ~= 7 then return state[0], times end
    times = times + 1
    ffi.C.usleep(1000)
  end
  error "in progress for 5 s"
end

--- Waits until a non-blocking communicator has done what was requested, or fails.
function nccl.done(comm, code)
  nccl.ok(code, 7)
  return nccl.ok((nccl.poll(comm)))
end

function nccl.comm(path, size, rank, blocking)
  local out = ffi.new "spec_nccl[1]"
  local code = ffi.C.ncclCommInitRankConfig(out, size, nccl.id(path, rank), rank, nccl.config(blocking and 1 or 0))
  if blocking then nccl.ok(code) else nccl.done(out[0], code) end
  return out[0]
end

function nccl.stream()
  local out = ffi.new "void *[1]"
  nccl.ok(ffi.C.cudaStreamCreateWithFlags(out, 1))
  return out[0]
end

function nccl.event()
  local out = ffi.new "void *[1]"
  nccl.ok(ffi.C.cudaEventCreateWithFlags(out, 2))
  return out[0]
end

--- Returns device memory for n elements of a C type; a copy on the stream fills it if there are values.
function nccl.device(ctype, n, values, stream)
  local out = ffi.new "void *[1]"
  nccl.ok(ffi.C.cudaMalloc(out, n * ffi.sizeof(ctype)))
  if values then
    nccl.ok(ffi.C.cudaMemcpyAsync(out[0], ffi.new(ctype .. "[?]", n, values), n * ffi.sizeof(ctype), 1, stream))
  end
  return out[0]
end

--- Elements of device memory as Lua numbers, once `stream` has come to it (nil: no wait but the copy's own stream).
function nccl.values(ctype, n, p, stream)
  local host, out = ffi.new(ctype .. "[?]", n), {}
  nccl.ok(ffi.C.cudaMemcpyAsync(host, p, n * ffi.sizeof(ctype), 2, stream))
  nccl.ok(ffi.C.cudaStreamSynchronize(stream))
  for i = 1, n do out[i] = tonumber(host[i - 1]) end
  return out
end

return nccl
