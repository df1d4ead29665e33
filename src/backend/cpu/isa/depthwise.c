#include "backend/cpu/isa/depthwise.h"

#include "backend/cpu/isa/float_pack.h"

/* Results that are in registers at a time: pixels by vectors of channels, and in gradients of weights taps by these. */
enum { PIXELS = 4, VECTORS = 2, TAPS = 4 };

typedef lm_float_pack vec;

LM_INLINE vec load(const float *from) {
  vec v;
  memcpy(&v, from, sizeof v);
  return v;
}

LM_INLINE void store(float *to, vec v) { memcpy(to, &v, sizeof v); }

LM_INLINE void put(const int pixels, const int vectors, const lm_depthwise_pixels *p, const float *from, float *to,
                   int64_t c) {
  vec sum[PIXELS][VECTORS];
  LM_UNROLL for (int i = 0; i < pixels; i++)
    LM_UNROLL for (int v = 0; v < vectors; v++) sum[i][v] = p->bias ? load(p->bias + c + v * LM_PACK) : (vec){0};
  const int64_t step = p->from_step;
  for (int64_t t = 0; t < p->taps; t++) {
    const float *x = from + p->offset[t] + c, *w = p->weight[t] + c;
    vec y[VECTORS];
    LM_UNROLL for (int v = 0; v < vectors; v++) y[v] = load(w + v * LM_PACK);
    LM_UNROLL for (int i = 0; i < pixels; i++)
      LM_UNROLL for (int v = 0; v < vectors; v++) sum[i][v] += load(x + i * step + v * LM_PACK) * y[v];
  }
  LM_UNROLL for (int i = 0; i < pixels; i++)
    LM_UNROLL for (int v = 0; v < vectors; v++) store(to + i * p->to_step + c + v * LM_PACK, sum[i][v]);
}

LM_INLINE void put_pixels(const int pixels, const lm_depthwise_pixels *p, const float *from, float *to) {
  int64_t c = 0;
  for (; c + VECTORS * LM_PACK <= p->channels; c += VECTORS * LM_PACK) put(pixels, VECTORS, p, from, to, c);
  for (; c + LM_PACK <= p->channels; c += LM_PACK) put(pixels, 1, p, from, to, c);
  for (; c < p->channels; c++)
    for (int i = 0; i < pixels; i++) {
      float sum = p->bias ? p->bias[c] : 0;
      for (int64_t t = 0; t < p->taps; t++)
        sum = fmaf(from[i * p->from_step + p->offset[t] + c], p->weight[t][c], sum);
      to[i * p->to_step + c] = sum;
    }
}

static void forward(const lm_depthwise_pixels *p) {
  const float *from = p->from;
  float *to = p->to;
  int64_t i = 0;
  for (; i + PIXELS <= p->pixels; i += PIXELS, from += PIXELS * p->from_step, to += PIXELS * p->to_step)
    put_pixels(PIXELS, p, from, to);
  for (; i < p->pixels; i++, from += p->from_step, to += p->to_step) put_pixels(1, p, from, to);
}

LM_INLINE void add(const int taps, const int vectors, const lm_depthwise_pixels *p, int64_t tap, int64_t c) {
  vec sum[TAPS][VECTORS];
  const float *x[TAPS], *y = p->to + c;
  LM_UNROLL for (int t = 0; t < taps; t++) {
    x[t] = p->from + p->offset[tap + t] + c;
    LM_UNROLL for (int v = 0; v < vectors; v++) sum[t][v] = load(p->weight[tap + t] + c + v * LM_PACK);
  }
  for (int64_t i = 0, at = 0; i < p->pixels; i++, at += p->from_step, y += p->to_step) {
    vec g[VECTORS];
    LM_UNROLL for (int v = 0; v < vectors; v++) g[v] = load(y + v * LM_PACK);
    LM_UNROLL for (int t = 0; t < taps; t++)
      LM_UNROLL for (int v = 0; v < vectors; v++) sum[t][v] += load(x[t] + at + v * LM_PACK) * g[v];
  }
  LM_UNROLL for (int t = 0; t < taps; t++)
    LM_UNROLL for (int v = 0; v < vectors; v++) store((float *)p->weight[tap + t] + c + v * LM_PACK, sum[t][v]);
}

LM_INLINE void add_channels(const int vectors, const lm_depthwise_pixels *p, int64_t c) {
  int64_t tap = 0;
  for (; tap + TAPS <= p->taps; tap += TAPS) add(TAPS, vectors, p, tap, c);
  switch (p->taps - tap) {
    case 3: add(3, vectors, p, tap, c); break;
    case 2: add(2, vectors, p, tap, c); break;
    case 1: add(1, vectors, p, tap, c); break;
  }
}

static void weight(const lm_depthwise_pixels *p) {
  int64_t c = 0;
  for (; c + VECTORS * LM_PACK <= p->channels; c += VECTORS * LM_PACK) add_channels(VECTORS, p, c);
  for (; c + LM_PACK <= p->channels; c += LM_PACK) add_channels(1, p, c);
  for (; c < p->channels; c++)
    for (int64_t t = 0; t < p->taps; t++) {
      float sum = p->weight[t][c];
      for (int64_t i = 0; i < p->pixels; i++)
        sum = fmaf(p->from[i * p->from_step + p->offset[t] + c], p->to[i * p->to_step + c], sum);
      ((float *)p->weight[t])[c] = sum;
    }
}

const struct lm_depthwise_loops LM_ISA_NAME(lm_depthwise_loops) = {.forward = forward, .weight = weight};
