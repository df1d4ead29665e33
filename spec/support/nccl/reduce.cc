/* Arithmetic of NCCL's dtypes. */
#include <stdint.h>

#include "communicator.h"

size_t lm_nccl_size_of(ncclDataType_t dtype) {
  switch ((int)dtype) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 0;
  }
}

bool lm_nccl_is_float(ncclDataType_t dtype) { return dtype >= ncclFloat16; }

/* The type in which a dtype is added and compared. */
template <typename T>
struct arithmetic {
  typedef float type;
};
#define ITSELF(T)        \
  template <>            \
  struct arithmetic<T> { \
    typedef T type;      \
  };
ITSELF(int8_t)
ITSELF(uint8_t)
ITSELF(int32_t)
ITSELF(uint32_t)
ITSELF(int64_t)
ITSELF(uint64_t)
ITSELF(float)
ITSELF(double)
#undef ITSELF

/* Calls work with a null pointer of the dtype's type. */
template <typename F>
static void with_dtype(ncclDataType_t dtype, F work) {
  switch ((int)dtype) {
    case ncclInt8: work((int8_t *)NULL); break;
    case ncclUint8: work((uint8_t *)NULL); break;
    case ncclInt32: work((int32_t *)NULL); break;
    case ncclUint32: work((uint32_t *)NULL); break;
    case ncclInt64: work((int64_t *)NULL); break;
    case ncclUint64: work((uint64_t *)NULL); break;
    case ncclFloat16: work((__half *)NULL); break;
    case ncclFloat32: work((float *)NULL); break;
    case ncclFloat64: work((double *)NULL); break;
    case ncclBfloat16: work((__nv_bfloat16 *)NULL); break;
    case ncclFloat8e4m3: work((__nv_fp8_e4m3 *)NULL); break;
    case ncclFloat8e5m2: work((__nv_fp8_e5m2 *)NULL); break;
    default: break;
  }
}

void lm_nccl_scale(ncclDataType_t dtype, void *x, size_t n, double scale) {
  with_dtype(dtype, [=](auto *type) {
    typedef typename std::remove_pointer<decltype(type)>::type T;
    typedef typename arithmetic<T>::type A;
    A factor = (A)(T)(A)scale;
    for (size_t i = 0; i < n; i++) ((T *)x)[i] = (T)((A)((T *)x)[i] * factor);
  });
}

template <typename A>
static A combined(ncclRedOp_t op, A a, A b) {
  switch ((int)op) {
    case ncclProd: return (A)(a * b);
    case ncclMax: return a < b ? b : a;
    case ncclMin: return b < a ? b : a;
    default: return (A)(a + b);
  }
}

void lm_nccl_combine(ncclDataType_t dtype, ncclRedOp_t op, void *into, const void *from, size_t n) {
  with_dtype(dtype, [=](auto *type) {
    typedef typename std::remove_pointer<decltype(type)>::type T;
    typedef typename arithmetic<T>::type A;
    for (size_t i = 0; i < n; i++) ((T *)into)[i] = (T)combined(op, (A)((T *)into)[i], (A)((const T *)from)[i]);
  });
}

void lm_nccl_divide(ncclDataType_t dtype, void *x, size_t n, int by) {
  with_dtype(dtype, [=](auto *type) {
    typedef typename std::remove_pointer<decltype(type)>::type T;
    typedef typename arithmetic<T>::type A;
    for (size_t i = 0; i < n; i++) ((T *)x)[i] = (T)((A)((T *)x)[i] / (A)by);
  });
}
