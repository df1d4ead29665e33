/* cuFFT's plans of lines, as far as the backend uses them, by their definition, in double. Its checks are the real
 * one's, and it does what the real one may do: it destroys the input of a transform to real numbers, lets the imaginary
 * parts that a real line's transform does not have count, writes all over its workspace, and cannot use a plan that is
 * gone. */
#if __has_include(<cufft.h>)
#include <cufft.h>
#include <math.h>

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "fake_library.h"

namespace {
struct fft_plan {
  int device;
  void *memory, *workspace;
  cudaStream_t stream;
  bool automatic, made, has_area, gone;
  int type;
  int64_t n, in_step, in_apart, out_step, out_apart, lines;
  size_t bytes;
};
typedef std::shared_ptr<fft_plan> plan_ref;
}  // namespace

static std::mutex plans_lock;
static std::map<cufftHandle, plan_ref> plans;

static plan_ref plan_of(cufftHandle handle) {
  std::lock_guard<std::mutex> hold(plans_lock);
  auto at = plans.find(handle);
  return at == plans.end() ? nullptr : at->second;
}

static bool from_real(int type) { return type == CUFFT_R2C || type == CUFFT_D2Z; }
static bool to_real(int type) { return type == CUFFT_C2R || type == CUFFT_Z2D; }
static bool is_wide(int type) { return type == CUFFT_Z2Z || type == CUFFT_D2Z || type == CUFFT_Z2D; }

template <class T>
static void transform_lines(const fft_plan &p, const T *x, T *y, double sign) {
  int64_t n = p.n, half = n / 2 + 1;
  std::vector<double> c((size_t)n), s((size_t)n), re((size_t)n), im((size_t)n);
  for (int64_t i = 0; i < n; i++) {
    c[(size_t)i] = cos(2 * M_PI * (double)i / (double)n);
    s[(size_t)i] = sign * sin(2 * M_PI * (double)i / (double)n);
  }
  for (int64_t line = 0; line < p.lines; line++) {
    double wrong = 0;
    for (int64_t i = 0; i < n; i++) {
      int64_t k = to_real(p.type) && i >= half ? n - i : i, at = line * p.in_apart + k * p.in_step;
      re[(size_t)i] = from_real(p.type) ? x[at] : x[2 * at];
      im[(size_t)i] = from_real(p.type) ? 0 : (k == i ? 1 : -1) * (double)x[2 * at + 1];
      if (to_real(p.type) && (i == 0 || 2 * i == n)) wrong += im[(size_t)i];
    }
    for (int64_t k = 0; k < (from_real(p.type) ? half : n); k++) {
      double sum_re = wrong, sum_im = 0;
      for (int64_t i = 0, at = 0; i < n; i++, at = at + k < n ? at + k : at + k - n) {
        sum_re += re[(size_t)i] * c[(size_t)at] - im[(size_t)i] * s[(size_t)at];
        sum_im += re[(size_t)i] * s[(size_t)at] + im[(size_t)i] * c[(size_t)at];
      }
      int64_t at = line * p.out_apart + k * p.out_step;
      if (to_real(p.type)) {
        y[at] = (T)sum_re;
      } else {
        y[2 * at] = (T)sum_re, y[2 * at + 1] = (T)sum_im;
      }
    }
  }
}

/* Computes each line before it is written; in place no line may write over another, so the input is copied. */
template <class T>
static void run_lines(const fft_plan &p, const void *x, void *y, double sign) {
  int64_t count = (p.lines - 1) * p.in_apart + (to_real(p.type) ? p.n / 2 : p.n - 1) * p.in_step + 1;
  const T *from = (const T *)x;
  std::vector<T> kept(from, from + count * (from_real(p.type) ? 1 : 2));
  transform_lines(p, kept.data(), (T *)y, sign);
  for (size_t i = 0; to_real(p.type) && i < kept.size(); i++) ((T *)x)[i] = (T)NAN;
}

static cufftResult execute(cufftHandle handle, int type, const void *x, void *y, int direction) {
  if (lm_fake_null) return CUFFT_SUCCESS;
  plan_ref p = plan_of(handle);
  int device = -1;
  cudaGetDevice(&device);
  if (!p || !p->made) return CUFFT_INVALID_PLAN;
  if (p->type != type || (direction != CUFFT_FORWARD && direction != CUFFT_INVERSE)) return CUFFT_INVALID_VALUE;
  if (p->device != device) return CUFFT_INVALID_DEVICE;
  int64_t align = is_wide(type) ? 16 : 8;
  if (lm_fake_device_of(x) != device || lm_fake_device_of(y) != device) return CUFFT_INVALID_VALUE;
  if (!lm_fake_aligned(x, align) || !lm_fake_aligned(y, align)) return CUFFT_EXEC_FAILED;
  if (!p->has_area) return CUFFT_EXEC_FAILED; /* required even for 0 bytes */
  if (p->bytes > 0 &&
      (lm_fake_device_of(p->workspace) != device || lm_fake_device_of((char *)p->workspace + p->bytes - 1) != device))
    return CUFFT_EXEC_FAILED;
  void *workspace = p->workspace;
  double sign = direction;
  int error = lm_fake_enqueue(p->stream, [=] {
    if (p->bytes > 0) memset(workspace, 0xee, p->bytes);
    if (p->gone) return (void)memset(y, 0xff, 8);
    is_wide(type) ? run_lines<double>(*p, x, y, sign) : run_lines<float>(*p, x, y, sign);
  });
  return error ? CUFFT_EXEC_FAILED : CUFFT_SUCCESS;
}

#define ENTER() LM_FAKE_ENTER(cufftResult)

extern "C" {

LM_FAKE_API cufftResult cufftCreate(cufftHandle *out) {
  ENTER();
  static cufftHandle next = 1;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return CUFFT_SETUP_FAILED;
  plan_ref p = std::make_shared<fft_plan>();
  p->device = device;
  p->automatic = true;
  std::lock_guard<std::mutex> hold(plans_lock);
  *out = next++;
  plans[*out] = p;
  lm_fake_count("plan", 1);
  return CUFFT_SUCCESS;
}

LM_FAKE_API cufftResult cufftDestroy(cufftHandle handle) {
  int code = lm_fake_enter(__func__);
  plan_ref p = plan_of(handle);
  if (!p) return CUFFT_INVALID_PLAN;
  p->gone = true; /* before what is in flight was done */
  if (p->memory) cudaFree(p->memory);
  std::lock_guard<std::mutex> hold(plans_lock);
  plans.erase(handle);
  lm_fake_count("plan", -1);
  return (cufftResult)code;
}

LM_FAKE_API cufftResult cufftSetAutoAllocation(cufftHandle handle, int automatic) {
  ENTER();
  plan_ref p = plan_of(handle);
  if (!p || p->made) return CUFFT_INVALID_PLAN;
  p->automatic = automatic != 0;
  return CUFFT_SUCCESS;
}

LM_FAKE_API cufftResult cufftMakePlanMany64(cufftHandle handle, int rank, long long *n, long long *inembed,
                                            long long istride, long long idist, long long *onembed, long long ostride,
                                            long long odist, cufftType type, long long batch, size_t *bytes) {
  ENTER();
  plan_ref p = plan_of(handle);
  if (!p || p->made) return CUFFT_INVALID_PLAN;
  if (rank != 1 || n[0] < 1 || batch < 1) return CUFFT_INVALID_SIZE;
  if (!inembed || !onembed || istride < 1 || ostride < 1 || idist < 1 || odist < 1) return CUFFT_INVALID_VALUE;
  if (inembed[0] < (to_real(type) ? n[0] / 2 + 1 : n[0]) || onembed[0] < (from_real(type) ? n[0] / 2 + 1 : n[0]))
    return CUFFT_INVALID_VALUE;
  if (p->automatic) return CUFFT_NOT_SUPPORTED; /* the fake requires workspaces of ours */
  if (lm_fake_forbidden() != 0) return CUFFT_INTERNAL_ERROR;
  lm_fake_waits_for(p->device);
  if (cudaMalloc(&p->memory, 256) != cudaSuccess) return CUFFT_ALLOC_FAILED;
  p->type = type;
  p->n = n[0];
  p->in_step = istride, p->in_apart = idist, p->out_step = ostride, p->out_apart = odist;
  p->lines = batch;
  *bytes = p->bytes = n[0] > 8 ? (size_t)(n[0] * batch) * 16 : 0;
  p->made = true;
  return CUFFT_SUCCESS;
}

LM_FAKE_API cufftResult cufftSetStream(cufftHandle handle, cudaStream_t stream) {
  ENTER();
  plan_ref p = plan_of(handle);
  if (!p) return CUFFT_INVALID_PLAN;
  p->stream = stream;
  return CUFFT_SUCCESS;
}

LM_FAKE_API cufftResult cufftSetWorkArea(cufftHandle handle, void *workspace) {
  ENTER();
  plan_ref p = plan_of(handle);
  if (!p || !p->made) return CUFFT_INVALID_PLAN;
  if (p->automatic) return CUFFT_INVALID_VALUE;
  p->workspace = workspace;
  p->has_area = true;
  return CUFFT_SUCCESS;
}

#define EXECUTE_PAIRS(name, T, type)                                            \
  LM_FAKE_API cufftResult name(cufftHandle handle, T *x, T *y, int direction) { \
    ENTER();                                                                    \
    return execute(handle, type, x, y, direction);                              \
  }
#define EXECUTE_REAL(name, X, Y, type, direction)                \
  LM_FAKE_API cufftResult name(cufftHandle handle, X *x, Y *y) { \
    ENTER();                                                     \
    return execute(handle, type, x, y, direction);               \
  }
EXECUTE_PAIRS(cufftExecC2C, cufftComplex, CUFFT_C2C)
EXECUTE_PAIRS(cufftExecZ2Z, cufftDoubleComplex, CUFFT_Z2Z)
EXECUTE_REAL(cufftExecR2C, cufftReal, cufftComplex, CUFFT_R2C, CUFFT_FORWARD)
EXECUTE_REAL(cufftExecD2Z, cufftDoubleReal, cufftDoubleComplex, CUFFT_D2Z, CUFFT_FORWARD)
EXECUTE_REAL(cufftExecC2R, cufftComplex, cufftReal, CUFFT_C2R, CUFFT_INVERSE)
EXECUTE_REAL(cufftExecZ2D, cufftDoubleComplex, cufftDoubleReal, CUFFT_Z2D, CUFFT_INVERSE)

}  // extern "C"
#endif
