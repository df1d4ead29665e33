/* Implements onednn_version.h by oneDNN 2: structs describe operations, implementations come from an iterator. */
#include <string.h>

#include "backend/cpu/onednn/onednn_version.h"
#include "base/mem.h"

#if DNNL_VERSION_MAJOR != 2
#error "onednn_v2.c is for oneDNN 2"
#endif

lm_status lm_md_new(lm_md *out, int ndim, const int64_t *size, dnnl_data_type_t type, const int64_t *stride) {
  dnnl_memory_desc_t *d = lm_calloc(1, sizeof *d);
  if (!d) return LM_E_OOM;
  *out = d;
  return lm_dnn_failed(stride ? dnnl_memory_desc_init_by_strides(d, ndim, size, type, stride)
                              : dnnl_memory_desc_init_by_tag(d, ndim, size, type, dnnl_format_tag_any),
                       "dnnl_memory_desc_init");
}

void lm_md_free(lm_md md) { lm_free((void *)md); }

lm_status lm_dnn_matmul_desc(const lm_md *md, float alpha, float beta, dnnl_engine_t engine, dnnl_primitive_attr_t attr,
                             dnnl_primitive_desc_t *out) {
  LM_DNN_POST_OPS post = NULL;
  dnnl_matmul_desc_t d;
  *out = NULL;
  DNN(dnnl_primitive_attr_set_output_scales(attr, 1, 0, &alpha));
  DNN(dnnl_post_ops_create(&post));
  if (beta != 0) DNN(dnnl_post_ops_append_sum(post, beta));
  DNN(dnnl_primitive_attr_set_post_ops(attr, post));
  DNN(dnnl_matmul_desc_init(&d, md[0], md[1], NULL, md[2]));
  dnnl_status_t code = dnnl_primitive_desc_create(out, &d, attr, engine, NULL);
  return code == dnnl_unimplemented ? LM_OK : lm_dnn_failed(code, "the description of a product");
}

static dnnl_status_t forward_desc(const lm_conv_mds *d, lm_md w, dnnl_convolution_desc_t *out) {
  return dnnl_dilated_convolution_forward_desc_init(out, dnnl_forward_training, dnnl_convolution_direct, d->x, w,
                                                    d->bias, d->y, d->stride, d->dilation, d->padding, d->padding_end);
}

static void choices_drop(dnnl_primitive_desc_iterator_t *choices) {
  if (*choices) dnnl_primitive_desc_iterator_destroy(*choices);
}

lm_status lm_dnn_conv_desc(lm_conv_pass pass, const lm_conv_mds *d, const char *kind, dnnl_engine_t engine,
                           const_dnnl_primitive_attr_t attr, dnnl_primitive_desc_t *out) {
  dnnl_convolution_desc_t desc;
  LM_DNN_DESC hint = NULL, found = NULL;
  dnnl_primitive_desc_iterator_t choices __attribute__((cleanup(choices_drop))) = NULL;
  *out = NULL;
  if (pass == LM_CONV_FORWARD) {
    DNN(forward_desc(d, d->w, &desc));
  } else {
    DNN(forward_desc(d, d->w_forward, &desc));
    dnnl_status_t code = dnnl_primitive_desc_create(&hint, &desc, attr, engine, NULL);
    if (code == dnnl_unimplemented) return LM_OK;
    DNN(code);
    if (pass == LM_CONV_INPUT)
      DNN(dnnl_dilated_convolution_backward_data_desc_init(&desc, dnnl_convolution_direct, d->x, d->w, d->y, d->stride,
                                                           d->dilation, d->padding, d->padding_end));
    else
      DNN(dnnl_dilated_convolution_backward_weights_desc_init(&desc, dnnl_convolution_direct, d->x, d->w, NULL, d->y,
                                                              d->stride, d->dilation, d->padding, d->padding_end));
  }
  dnnl_status_t code = dnnl_primitive_desc_iterator_create(&choices, &desc, attr, engine, hint);
  if (code == dnnl_unimplemented) return LM_OK;
  DNN(code);
  while ((found = dnnl_primitive_desc_iterator_fetch(choices)) &&
         strncmp(lm_dnn_name(found), kind, strlen(kind)) != 0) {
    dnnl_primitive_desc_destroy(found);
    found = NULL;
    code = dnnl_primitive_desc_iterator_next(choices);
    if (code == dnnl_iterator_ends) return LM_OK;
    DNN(code);
  }
  *out = found;
  found = NULL;
  return LM_OK;
}
