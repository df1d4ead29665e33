/* Declares descriptions, in which oneDNN's versions differ. onednn_v2.c and onednn_v3.c both implement them, and the
 * build takes the one of the installed version; onednn.c is the same for either. */
#pragma once

#include <dnnl.h>

#include "backend/cpu/conv/conv.h"
#include "base/message.h"

/* Returns LM_OK, or fails with oneDNN's status and `what`, the call, in words. */
static inline lm_status lm_dnn_failed(dnnl_status_t status, const char *what) {
  if (status == dnnl_success) return LM_OK;
  if (status == dnnl_out_of_memory) return lm_fail_memory("memory for oneDNN's %s", what);
  return lm_fail_call(LM_E_STATE, NULL, what, (int)status, NULL, "in oneDNN");
}
#define DNN(call) NEED(lm_dnn_failed(call, #call))

/* Declare a primitive's description, or other operations; each is NULL, or destroyed at the end of its block. */
static inline void lm_dnn_desc_drop(dnnl_primitive_desc_t *pd) {
  if (*pd) dnnl_primitive_desc_destroy(*pd);
}
#define LM_DNN_DESC __attribute__((cleanup(lm_dnn_desc_drop))) dnnl_primitive_desc_t
static inline void lm_dnn_post_ops_drop(dnnl_post_ops_t *post) {
  if (*post) dnnl_post_ops_destroy(*post);
}
#define LM_DNN_POST_OPS __attribute__((cleanup(lm_dnn_post_ops_drop))) dnnl_post_ops_t

/* A description of a tensor's layout in memory, by its address. */
#if DNNL_VERSION_MAJOR == 2
typedef const dnnl_memory_desc_t *lm_md;
#else
typedef const_dnnl_memory_desc_t lm_md;
#endif

/* Describes a tensor by its strides, or, if these are NULL, in whatever layout oneDNN prefers. *out is to be freed,
 * even after a failure. */
lm_status lm_md_new(lm_md *out, int ndim, const int64_t *size, dnnl_data_type_t type, const int64_t *stride);
void lm_md_free(lm_md md);

/* Describes c = alpha a b + beta c for the matrices md = {a, b, c}. `attr` is plain and is changed. *out is NULL if
 * there is no implementation. */
lm_status lm_dnn_matmul_desc(const lm_md *md, float alpha, float beta, dnnl_engine_t engine, dnnl_primitive_attr_t attr,
                             dnnl_primitive_desc_t *out);

/* Descriptions of a convolution's images, of weights in whatever order oneDNN prefers, and of weights in ours. */
typedef struct lm_conv_mds {
  lm_md x, y, w;
  lm_md w_forward; /* weights as forward takes them: backward asks for its implementation */
  lm_md plain;
  lm_md bias; /* or NULL */
  dnnl_dims_t stride, padding, padding_end, dilation;
} lm_conv_mds;

/* Returns the name of an implementation, as "jit:avx2". */
static inline const char *lm_dnn_name(const_dnnl_primitive_desc_t pd) {
  const char *name = "";
  dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name);
  return name;
}

/* Describes direct convolution by the first of oneDNN's implementations whose name begins with `kind` ("": the first).
 * *out is NULL if there is none. */
lm_status lm_dnn_conv_desc(lm_conv_pass pass, const lm_conv_mds *d, const char *kind, dnnl_engine_t engine,
                           const_dnnl_primitive_attr_t attr, dnnl_primitive_desc_t *out);
