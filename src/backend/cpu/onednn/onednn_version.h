/* What differs between oneDNN's versions: how things are described. onednn_v2.c and onednn_v3.c both bring it, and the
 * build takes the one of the installed version; all else is onednn.c's, for either. */
#pragma once

#include <dnnl.h>

#include "backend/cpu/conv/conv.h"

/* Fails with oneDNN's status and `what` in words. */
lm_status lm_dnn_failed(dnnl_status_t status, const char *what);
#define DNN(call) TRY(lm_dnn_failed(call, #call))

/* How a tensor lies in memory, by its address. */
#if DNNL_VERSION_MAJOR == 2
typedef const dnnl_memory_desc_t *lm_md;
#else
typedef const_dnnl_memory_desc_t lm_md;
#endif

lm_status lm_md_strided(lm_md *out, int ndim, const int64_t *size, dnnl_data_type_t type, const int64_t *stride);
lm_status lm_md_tagged(lm_md *out, int ndim, const int64_t *size, dnnl_data_type_t type, dnnl_format_tag_t tag);
void lm_md_free(lm_md md);

/* c = alpha a b + beta c for the matrices md = {a, b, c}. `attr` is plain and is changed. *out is NULL where there is
 * no implementation. */
lm_status lm_dnn_matmul_desc(const lm_md *md, float alpha, float beta, dnnl_engine_t engine, dnnl_primitive_attr_t attr,
                             dnnl_primitive_desc_t *out);

/* What a convolution is between: images, weights in whatever order oneDNN likes, and as we have them. */
typedef struct lm_conv_mds {
  lm_md x, y, w;
  lm_md w_forward; /* as forward takes them: backward asks for its implementation */
  lm_md plain;
  lm_md bias; /* or NULL */
  dnnl_dims_t stride, padding, padding_end, dilation;
} lm_conv_mds;

/* What implements it, as "jit:avx2". */
const char *lm_dnn_name(const_dnnl_primitive_desc_t pd);

/* Direct convolution by the first of oneDNN's implementations whose name begins with `kind` ("": the first). *out is
 * NULL where there is none. */
lm_status lm_dnn_conv_desc(lm_conv_pass pass, const lm_conv_mds *d, const char *kind, dnnl_engine_t engine,
                           const_dnnl_primitive_attr_t attr, dnnl_primitive_desc_t *out);
