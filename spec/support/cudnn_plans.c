/* Prints for which convolutions cuDNN has plans on a card known only by its properties: needs no GPU and no driver. And
 * for which attentions it proposes some, which takes a driver's library that may do nothing, as the toolkit's stub is.
 *
 *   cudnn_plans PROPERTIES.json < convolutions      one line each: name, dtype, tf32 (0 or 1), bias (0 or 1), then the
 *                                                   sizes n c h w of x, k c/groups kh kw of the weight, stride,
 *                                                   padding, dilation (two numbers each), groups
 *   cudnn_plans PROPERTIES.json attention < list    one line each: name, dtype, then samples, heads, heads of keys,
 *                                                   queries, keys, numbers in a query and in a value, causal (0 or 1),
 *                                                   1 where a query's heads lie side by side, the probability of
 *                                                   dropout, and "none" or which of a mask's dims are not 1: "nhqk"
 *   cudnn_plans --dump                              the properties of this machine's first card, as such a JSON
 *
 * For each it prints "name dtype tf32 pass layout plans workspace mode" for the three passes in both layouts, and for
 * the forward pass with a bias in its graph: how many of the first PLANS that the library proposes it also makes, the
 * bytes that the first of them needs, and which list of the heuristics that one is from (1: the good ones, 2: the
 * fallback). For attention it prints "name pass proposals" for both passes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/libraries/cudnn_attention.h"
#include "backend/cuda/libraries/cudnn_conv.h"
#include "op/operand_checks.h"

enum { PLANS = 3, JSON_MAX = 1 << 16 };

static void die(const char *what) {
  fprintf(stderr, "%s: %s\n", what, lm_error());
  exit(1);
}

static cudnnBackendDescriptor_t properties_from(const char *path) {
  static char json[JSON_MAX];
  FILE *file = fopen(path, "r");
  if (!file) {
    perror(path);
    exit(1);
  }
  size_t bytes = fread(json, 1, sizeof json - 1, file);
  fclose(file);
  cudnnBackendDescriptor_t d = NULL;
  if (CUDNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &d)) != LM_OK ||
      CUDNN(cudnnBackendSetAttribute(d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)bytes + 1,
                                     json)) != LM_OK ||
      CUDNN(cudnnBackendFinalize(d)) != LM_OK)
    die(path);
  return d;
}

static void dump(void) {
  static char json[JSON_MAX];
  cudnnBackendDescriptor_t d = NULL;
  int32_t device = 0;
  int64_t bytes = 0;
  if (CUDNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &d)) != LM_OK ||
      CUDNN(cudnnBackendSetAttribute(d, CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, 1, &device)) != LM_OK ||
      CUDNN(cudnnBackendFinalize(d)) != LM_OK ||
      CUDNN(cudnnBackendGetAttribute(d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, JSON_MAX, &bytes,
                                     json)) != LM_OK)
    die("--dump");
  puts(json);
}

/* Returns how many of the first plans are made; *workspace and *mode are the first one's. */
static int count_plans(cudnnBackendDescriptor_t properties, const lm_cudnn_key *key, int64_t *workspace, int *mode) {
  lm_cudnn_target target = {.properties = properties};
  lm_cudnn_search search;
  int made = 0;
  lm_status status = lm_cudnn_conv_search(&target, key, &search);
  while (status == LM_OK && made < PLANS) {
    lm_cudnn_plan plan = {0};
    status = lm_cudnn_search_next(&search, &plan);
    if (!plan.plan) break;
    if (made++ == 0) {
      *workspace = plan.workspace;
      *mode = search.mode;
    }
    lm_cudnn_plan_free(&plan);
  }
  lm_cudnn_search_end(&search);
  if (status != LM_OK && status != LM_E_MISSING) fprintf(stderr, "# %s\n", lm_error());
  return made;
}

static int count_proposals(cudnnBackendDescriptor_t properties, const lm_cudnn_attention_key *key) {
  lm_cudnn_target target = {.properties = properties};
  lm_cudnn_search search;
  lm_status status = lm_cudnn_attention_search(&target, key, &search);
  if (status == LM_OK) status = lm_cudnn_search_ask(&search, CUDNN_HEUR_MODE_A);
  int found = search.configs;
  lm_cudnn_search_end(&search);
  if (status != LM_OK) fprintf(stderr, "# %s\n", lm_error());
  return found;
}

static int attentions(cudnnBackendDescriptor_t properties) {
  char name[64], dtype[16];
  while (scanf("%63s %15s", name, dtype) == 2) {
    char dims[8];
    long long v[9];
    lm_cudnn_attention_key key = {0};
    lm_dtype id;
    for (int i = 0; i < 9; i++)
      if (scanf("%lld", &v[i]) != 1) die(name);
    if (scanf("%lf %7s", &key.dropout_p, dims) != 2 || lm_dtype_parse(dtype, &id) != LM_OK) die(name);
    key.dtype = id;
    key.samples = v[0], key.heads = v[1], key.key_heads = v[2], key.queries = v[3], key.keys = v[4];
    key.width = v[5], key.value_width = v[6], key.causal = (int32_t)v[7];
    for (int side = 0; side < LM_CUDNN_SIDES; side++) {
      bool of_keys = side == LM_CUDNN_KEY || side == LM_CUDNN_VALUE || side == LM_CUDNN_DKEY || side == LM_CUDNN_DVALUE;
      bool values = side == LM_CUDNN_VALUE || side == LM_CUDNN_OUT || side == LM_CUDNN_GRAD || side == LM_CUDNN_DVALUE;
      int64_t heads = of_keys ? v[2] : v[1], rows = of_keys ? v[4] : v[3], width = values ? v[6] : v[5];
      int64_t *stride = key.stride[side];
      stride[0] = heads * rows * width;
      stride[1] = v[8] ? width : rows * width;
      stride[2] = v[8] ? heads * width : width;
    }
    int64_t stride = 1;
    for (int d = 3; d >= 0 && strcmp(dims, "none") != 0; d--) {
      const int64_t size[4] = {v[0], v[1], v[3], v[4]};
      if (!strchr(dims, "nhqk"[d])) continue;
      key.bias[d] = stride;
      stride *= size[d];
    }
    for (key.backward = 0; key.backward < 2; key.backward++)
      printf("%s %s %d\n", name, key.backward ? "backward" : "forward", count_proposals(properties, &key));
  }
  return 0;
}

int main(int argc, char **argv) {
  bool of_attention = argc == 3 && strcmp(argv[2], "attention") == 0;
  if (argc != 2 && !of_attention) {
    fprintf(stderr, "usage: cudnn_plans PROPERTIES.json [attention] < list, or cudnn_plans --dump\n");
    return 1;
  }
  if (strcmp(argv[1], "--dump") == 0) {
    dump();
    return 0;
  }
  cudnnBackendDescriptor_t properties = properties_from(argv[1]);
  if (of_attention) return attentions(properties);
  static const char *const passes[] = {"forward", "input", "weight", "forward+bias"};
  char name[64], dtype[16];
  int tf32, bias;
  while (scanf("%63s %15s %d %d", name, dtype, &tf32, &bias) == 4) {
    int64_t v[15];
    lm_cudnn_key key = {.tf32 = tf32};
    lm_dtype id;
    for (int i = 0; i < 15; i++) {
      long long number;
      if (scanf("%lld", &number) != 1) die(name);
      v[i] = number;
    }
    lm_conv_shape *s = &key.shape;
    *s = (lm_conv_shape){v[0], v[1], v[2],         v[3],           v[4],           v[6], v[7],
                         0,    0,    {v[8], v[9]}, {v[10], v[11]}, {v[12], v[13]}, v[14]};
    if (lm_dtype_parse(dtype, &id) != LM_OK ||
        lm_check_conv(LM_OP_conv2d, v, v + 4, s->stride, s->padding, s->dilation, s->groups, &s->oh, &s->ow) != LM_OK)
      die(name);
    key.dtype = id;
    for (int pass = 0; pass < 3 + (bias != 0); pass++) {
      for (int last = 1; last >= 0; last--) {
        int64_t workspace = 0;
        int mode = 0;
        key.pass = pass % 3;
        key.channels_last = last;
        key.bias = pass == 3;
        int made = count_plans(properties, &key, &workspace, &mode);
        printf("%s %s %d %s %s %d %lld %d\n", name, dtype, tf32, passes[pass], last ? "channels_last" : "contiguous",
               made, (long long)workspace, mode);
      }
    }
  }
  return 0;
}
