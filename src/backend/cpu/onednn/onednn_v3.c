/* Implements onednn_version.h by oneDNN 3: memory is described by handles, and a primitive descriptor moves on to the
 * next implementation itself. */
#include <string.h>

#include "backend/cpu/onednn/onednn_version.h"

#if DNNL_VERSION_MAJOR != 3
#error "onednn_v3.c is for oneDNN 3"
#endif

lm_status lm_md_new(lm_md *out, int ndim, const int64_t *size, dnnl_data_type_t type, const int64_t *stride) {
  dnnl_memory_desc_t d = NULL;
  if (stride)
    DNN(dnnl_memory_desc_create_with_strides(&d, ndim, size, type, stride));
  else
    DNN(dnnl_memory_desc_create_with_tag(&d, ndim, size, type, dnnl_format_tag_any));
  *out = d;
  return LM_OK;
}

void lm_md_free(lm_md md) {
  if (md) dnnl_memory_desc_destroy((dnnl_memory_desc_t)md);
}

lm_status lm_dnn_matmul_desc(const lm_md *md, float alpha, float beta, dnnl_engine_t engine, dnnl_primitive_attr_t attr,
                             dnnl_primitive_desc_t *out) {
  LM_DNN_POST_OPS post = NULL;
  *out = NULL;
  DNN(dnnl_post_ops_create(&post));
  if (alpha != 1) DNN(dnnl_post_ops_append_eltwise(post, dnnl_eltwise_linear, alpha, 0));
  if (beta != 0) DNN(dnnl_post_ops_append_sum(post, beta, 0, dnnl_data_type_undef));
  DNN(dnnl_primitive_attr_set_post_ops(attr, post));
  dnnl_status_t code = dnnl_matmul_primitive_desc_create(out, engine, md[0], md[1], NULL, md[2], attr);
  return code == dnnl_unimplemented ? LM_OK : lm_dnn_failed(code, "the description of a product");
}

static dnnl_status_t forward_desc(const lm_conv_mds *d, lm_md w, dnnl_engine_t engine, const_dnnl_primitive_attr_t attr,
                                  dnnl_primitive_desc_t *out) {
  return dnnl_convolution_forward_primitive_desc_create(out, engine, dnnl_forward_training, dnnl_convolution_direct,
                                                        d->x, w, d->bias, d->y, d->stride, d->dilation, d->padding,
                                                        d->padding_end, attr);
}

lm_status lm_dnn_conv_desc(lm_conv_pass pass, const lm_conv_mds *d, const char *kind, dnnl_engine_t engine,
                           const_dnnl_primitive_attr_t attr, dnnl_primitive_desc_t *out) {
  dnnl_status_t code;
  LM_DNN_DESC hint = NULL, found = NULL;
  *out = NULL;
  if (pass == LM_CONV_FORWARD) {
    code = forward_desc(d, d->w, engine, attr, &found);
  } else {
    code = forward_desc(d, d->w_forward, engine, attr, &hint);
    if (code == dnnl_unimplemented) return LM_OK;
    DNN(code);
    if (pass == LM_CONV_INPUT)
      code = dnnl_convolution_backward_data_primitive_desc_create(&found, engine, dnnl_convolution_direct, d->x, d->w,
                                                                  d->y, d->stride, d->dilation, d->padding,
                                                                  d->padding_end, hint, attr);
    else
      code = dnnl_convolution_backward_weights_primitive_desc_create(&found, engine, dnnl_convolution_direct, d->x,
                                                                     d->w, NULL, d->y, d->stride, d->dilation,
                                                                     d->padding, d->padding_end, hint, attr);
  }
  if (code == dnnl_unimplemented) return LM_OK;
  DNN(code);
  while (strncmp(lm_dnn_name(found), kind, strlen(kind)) != 0) {
    code = dnnl_primitive_desc_next_impl(found);
    if (code == dnnl_last_impl_reached) return LM_OK;
    DNN(code);
  }
  *out = found;
  found = NULL;
  return LM_OK;
}
