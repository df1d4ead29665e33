#include "distributed/gloo/gloo_collectives.h"

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoallv.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/context.h>
#include <gloo/gather.h>
#include <gloo/reduce.h>
#include <gloo/scatter.h>
#include <gloo/transport/address.h>
#include <gloo/transport/buffer.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <vector>

extern "C" {
#include "base/message.h"
}

namespace {

using std::chrono::milliseconds;

/* Carries a status of the engine's, whose message is recorded already, through gloo's frames. */
struct Failure : std::exception {
  explicit Failure(lm_status status) : status(status) {}
  const char *what() const noexcept override { return "the engine failed"; }
  const lm_status status;
};

void check(lm_status status) {
  if (status != LM_OK) throw Failure(status);
}

/* gloo only asks whether there is a pair; all goes through buffers. */
struct Pair : gloo::transport::Pair {
  const gloo::transport::Address &address() const override { throw Failure(unused()); }
  void connect(const std::vector<char> &) override { throw Failure(unused()); }
  void close() override {}
  void setSync(bool, bool) override {}
  bool isConnected() { return true; } /* newer versions have it */
  std::unique_ptr<gloo::transport::Buffer> createSendBuffer(int, void *, size_t) override { throw Failure(unused()); }
  std::unique_ptr<gloo::transport::Buffer> createRecvBuffer(int, void *, size_t) override { throw Failure(unused()); }
  void send(gloo::transport::UnboundBuffer *, uint64_t, size_t, size_t) override { throw Failure(unused()); }
  void recv(gloo::transport::UnboundBuffer *, uint64_t, size_t, size_t) override { throw Failure(unused()); }
  static lm_status unused() { return lm_fail_missing("gloo", "algorithms over pairs"); }
};

/* Requests under way, waited for in the order in which they were posted. */
class Requests {
 public:
  explicit Requests(lm_transport *message_transport) : message_transport_(message_transport) {}
  Requests(const Requests &) = delete;
  ~Requests() {
    for (; first_ < all_.size(); first_++) lm_transport_forget(message_transport_, all_[first_]);
  }
  void add(lm_request *r) {
    try {
      all_.push_back(r);
    } catch (...) {
      lm_transport_forget(message_transport_, r);
      throw;
    }
  }
  void wait() {
    if (first_ == all_.size())
      throw Failure(lm_fail(LM_E_STATE, "gloo: internal error: wait for a message that was never posted"));
    check(lm_transport_wait(message_transport_, all_[first_]));
    lm_transport_forget(message_transport_, all_[first_++]);
    if (first_ == all_.size()) {
      all_.clear();
      first_ = 0;
    }
  }

 private:
  lm_transport *message_transport_;
  std::vector<lm_request *> all_;
  size_t first_ = 0;
};

/* A buffer of gloo's: one piece of memory, or several that look like one. */
class Buffer : public gloo::transport::UnboundBuffer {
 public:
  Buffer(lm_transport *message_transport, void *data, size_t bytes)
      : UnboundBuffer(data, bytes),
        message_transport_(message_transport),
        sends_(message_transport),
        recvs_(message_transport) {}

  /* Parts end to end, part r starting at offset starts[r]. Where gloo's algorithms copy this rank's own part
   * themselves they do so at ptr + starts[rank]: ptr is chosen such that this is where the part lies. */
  Buffer(lm_transport *message_transport, int rank, std::vector<char *> parts, std::vector<size_t> starts, size_t bytes)
      : UnboundBuffer(reinterpret_cast<void *>(reinterpret_cast<uintptr_t>(parts[rank]) - starts[rank]), bytes),
        message_transport_(message_transport),
        parts_(std::move(parts)),
        starts_(std::move(starts)),
        sends_(message_transport),
        recvs_(message_transport) {}

  void send(int peer, uint64_t slot, size_t offset, size_t n) override {
    lm_request *r = nullptr;
    n = length(offset, n);
    check(lm_transport_send(message_transport_, peer, slot, at(offset), n, &r));
    sends_.add(r);
  }
  void recv(int peer, uint64_t slot, size_t offset, size_t n) override {
    lm_request *r = nullptr;
    n = length(offset, n);
    check(lm_transport_recv(message_transport_, peer, slot, at(offset), n, &r));
    recvs_.add(r);
  }
  void recv(std::vector<int>, uint64_t, size_t, size_t) override { throw Failure(Pair::unused()); }

  /* The group's timeout is watched by the engine. */
  bool waitSend(int *, milliseconds) override {
    sends_.wait();
    return true;
  }
  bool waitRecv(int *, milliseconds) override {
    recvs_.wait();
    return true;
  }
  void abortWaitSend() override {}
  void abortWaitRecv() override {}

 private:
  size_t length(size_t offset, size_t n) const { return n == kUnspecifiedByteCount ? size - offset : n; }
  char *at(size_t offset) const {
    if (parts_.empty()) return static_cast<char *>(ptr) + offset;
    size_t part = std::upper_bound(starts_.begin(), starts_.end(), offset) - starts_.begin() - 1;
    return parts_[part] + (offset - starts_[part]);
  }

  lm_transport *message_transport_;
  std::vector<char *> parts_;
  std::vector<size_t> starts_;
  Requests sends_, recvs_;
};

struct Transport : gloo::transport::Context {
  Transport(lm_transport *message_transport, int rank, int size)
      : Context(rank, size), message_transport(message_transport), pair(new Pair) {
    setTimeout(milliseconds(0));
  }
  std::unique_ptr<gloo::transport::Pair> &getPair(int) override { return pair; }
  std::unique_ptr<gloo::transport::Pair> &createPair(int) override { return pair; }
  std::unique_ptr<gloo::transport::UnboundBuffer> createUnboundBuffer(void *data, size_t bytes) override {
    return std::unique_ptr<gloo::transport::UnboundBuffer>(new Buffer(message_transport, data, bytes));
  }
  lm_transport *message_transport;
  std::unique_ptr<gloo::transport::Pair> pair;
};

struct Context : gloo::Context {
  Context(lm_transport *message_transport, int rank, int size)
      : gloo::Context(rank, size), message_transport(message_transport) {
    transportContext_ = std::make_shared<Transport>(message_transport, rank, size);
  }
  /* Parts of one size, or of these sizes. */
  std::unique_ptr<gloo::transport::UnboundBuffer> parts(char *const *data, size_t bytes) const {
    return parts(data, std::vector<size_t>(size, bytes).data());
  }
  std::unique_ptr<gloo::transport::UnboundBuffer> parts(char *const *data, const size_t *bytes) const {
    std::vector<size_t> starts(size);
    size_t total = 0;
    for (int r = 0; r < size; r++) {
      starts[r] = total;
      total += bytes[r];
    }
    return std::unique_ptr<gloo::transport::UnboundBuffer>(
        new Buffer(message_transport, rank, std::vector<char *>(data, data + size), std::move(starts), total));
  }
  lm_transport *message_transport;
};

template <class F>
lm_status guarded(F f) noexcept {
  try {
    f();
    return LM_OK;
  } catch (const Failure &failure) { return failure.status; } catch (const std::bad_alloc &) {
    return lm_fail(LM_E_OOM, "gloo: out of memory");
  } catch (const std::exception &x) { return lm_fail(LM_E_STATE, "gloo: %s", x.what()); } catch (...) {
    return lm_fail(LM_E_STATE, "gloo: unknown C++ exception");
  }
}

/* gloo takes the size of an element from a type. */
template <class F>
void with_type(size_t element, F f) {
  switch (element) {
    case 1: return f(uint8_t());
    case 2: return f(uint16_t());
    case 4: return f(uint32_t());
    default: return f(uint64_t());
  }
}

auto reduction(const lm_fold *fold) {
  return [fold](void *out, const void *a, const void *b, size_t n) { fold->into(fold, out, a, b, n); };
}

/* Up to here the number of messages counts, above it their sizes: bcube takes fewer steps, the ring overlaps sending
 * and adding. */
constexpr size_t kSmall = 256 << 10;

}  // namespace

struct lm_shim {
  std::shared_ptr<Context> context;
};

/* What f does is the group's current collective. */
template <class F>
static lm_status collective(lm_shim *s, F f) noexcept {
  lm_transport *message_transport = s->context->message_transport;
  lm_status status = lm_transport_begin(message_transport);
  if (status != LM_OK) return status;
  status = guarded(f);
  lm_transport_end(message_transport);
  return status;
}

/* In a call whose root only sends: were each rank the root for itself, all would be done without having heard of
 * another. So each also notifies the next rank of its call, and hears of that of the rank before. */
template <class F>
static lm_status collective_from_root(lm_shim *s, F f) noexcept {
  return collective(s, [=] {
    constexpr uint64_t slot = 1; /* none of gloo's */
    const Context &context = *s->context;
    Requests sends(context.message_transport), receives(context.message_transport);
    lm_request *r = nullptr;
    if (context.size > 1) {
      check(lm_transport_send(context.message_transport, (context.rank + 1) % context.size, slot, nullptr, 0, &r));
      sends.add(r);
      check(lm_transport_recv(context.message_transport, (context.rank + context.size - 1) % context.size, slot,
                              nullptr, 0, &r));
      receives.add(r);
    }
    f();
    if (context.size > 1) {
      receives.wait();
      sends.wait();
    }
  });
}

lm_status lm_shim_open(lm_transport *e, int rank, int size, lm_shim **out) {
  *out = nullptr;
  return guarded([=] { *out = new lm_shim{std::make_shared<Context>(e, rank, size)}; });
}

void lm_shim_close(lm_shim *s) { delete s; }

lm_status lm_shim_all_reduce(lm_shim *s, void *data, size_t n, const lm_fold *fold) {
  return collective(s, [=] {
    gloo::AllreduceOptions options(s->context);
    with_type(fold->element, [&](auto zero) { options.setOutput(static_cast<decltype(zero) *>(data), n); });
    options.setReduceFunction(reduction(fold));
    options.setAlgorithm(n * fold->element <= kSmall ? gloo::AllreduceOptions::Algorithm::BCUBE
                                                     : gloo::AllreduceOptions::Algorithm::RING);
    gloo::allreduce(options);
  });
}

lm_status lm_shim_reduce(lm_shim *s, const void *in, void *out, size_t n, const lm_fold *fold, int root) {
  return collective(s, [=] {
    gloo::ReduceOptions options(s->context);
    with_type(fold->element, [&](auto zero) {
      using T = decltype(zero);
      if (in != out) options.setInput(static_cast<T *>(const_cast<void *>(in)), n); /* read only */
      options.setOutput(static_cast<T *>(out), n);
    });
    options.setReduceFunction(reduction(fold));
    options.setRoot(root);
    gloo::reduce(options);
  });
}

lm_status lm_shim_broadcast(lm_shim *s, void *data, size_t bytes, int root) {
  return collective_from_root(s, [=] {
    gloo::BroadcastOptions options(s->context);
    options.setOutput(static_cast<uint8_t *>(data), bytes);
    options.setRoot(root);
    gloo::broadcast(options);
  });
}

lm_status lm_shim_all_gather(lm_shim *s, char *const *out, size_t bytes) {
  return collective(s, [=] {
    gloo::AllgatherOptions options(s->context);
    options.setOutput<uint8_t>(s->context->parts(out, bytes));
    gloo::allgather(options);
  });
}

lm_status lm_shim_gather(lm_shim *s, const void *in, char *const *out, size_t bytes, int root) {
  return collective(s, [=] {
    gloo::GatherOptions options(s->context);
    options.setInput(static_cast<uint8_t *>(const_cast<void *>(in)), bytes); /* read only */
    if (out) options.setOutput<uint8_t>(s->context->parts(out, bytes));
    options.setRoot(root);
    gloo::gather(options);
  });
}

lm_status lm_shim_scatter(lm_shim *s, void *out, char *const *in, size_t bytes, int root) {
  return collective_from_root(s, [=] {
    gloo::ScatterOptions options(s->context);
    if (in) {
      std::vector<uint8_t *> parts;
      for (int r = 0; r < s->context->size; r++) parts.push_back(reinterpret_cast<uint8_t *>(in[r]));
      options.setInputs(parts, bytes);
    }
    options.setOutput(static_cast<uint8_t *>(out), bytes);
    options.setRoot(root);
    gloo::scatter(options);
  });
}

lm_status lm_shim_all_to_all(lm_shim *s, char *const *in, const size_t *in_bytes, char *const *out,
                             const size_t *out_bytes) {
  return collective(s, [=] {
    gloo::AlltoallvOptions options(s->context);
    std::vector<int64_t> in_counts(in_bytes, in_bytes + s->context->size);
    std::vector<int64_t> out_counts(out_bytes, out_bytes + s->context->size);
    options.setInput<uint8_t>(s->context->parts(in, in_bytes), in_counts);
    options.setOutput<uint8_t>(s->context->parts(out, out_bytes), out_counts);
    gloo::alltoallv(options);
  });
}

lm_status lm_shim_barrier(lm_shim *s) {
  return collective(s, [=] {
    gloo::BarrierOptions options(s->context);
    gloo::barrier(options);
  });
}
