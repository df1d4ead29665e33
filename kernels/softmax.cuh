/* Shares code between softmax and cross entropy: sums of exponentials, and rows that several threads read. */
#pragma once

#include "reduce.cuh"

/* The threads of a line: lanes of a warp, or the whole block. */
struct lm_softmax_row_team {
  int lanes;
  void *shared; /* room for a warp of totals */
  template <class T, class Op>
  LM_DEVICE T operator()(T value, Op op) const {
    return lanes <= LM_WARP ? lm_lanes_reduce(value, op, lanes) : lm_block_reduce(value, op, (T *)shared);
  }
};

/* A line that is longer than its threads can hold. If its sides have equal alignment it is packs, of which each thread
 * loads FAR at a time, and single elements before the first whole pack and behind the last. */
template <class L, bool BACKWARD>
struct lm_softmax_long {
  typedef typename L::stored stored;
  enum { V = 16 / (int)sizeof(stored), FAR = 4 };
  const stored *xs, *ys;
  int64_t x_step, y_step, length, head, packs; /* head: elements before the first pack */

  LM_DEVICE lm_softmax_long(const stored *xs, const stored *ys, const stored *out, int64_t x_step, int64_t y_step,
                            int64_t out_step, int64_t length)
      : xs(xs), ys(ys), x_step(x_step), y_step(y_step), length(length), head(length), packs(0) {
    uintptr_t apart = (uintptr_t)xs ^ (uintptr_t)out;
    bool dense = x_step == 1 && out_step == 1;
    if (BACKWARD) {
      apart |= (uintptr_t)xs ^ (uintptr_t)ys;
      dense = dense && y_step == 1;
    }
    if (!dense || apart % 16 != 0) return;
    head = (int64_t)(-(uintptr_t)xs % 16 / sizeof(stored));
    packs = (length - head) / V;
  }

  /* Calls f(element's index, a pack of x, a pack of y), with V elements in a pack or one. */
  template <class F>
  LM_DEVICE void each(int lane, int lanes, F f) const {
    int step = lanes * V;
    int64_t left = packs - lane;
    for (int64_t at = head + lane * V; left > 0; at += FAR * step, left -= FAR * lanes) {
      lm_words<stored, V> wx[FAR], wy[BACKWARD ? FAR : 1];
      LM_UNROLL
      for (int k = 0; k < FAR; k++) {
        if (k * lanes < left) wx[k] = lm_load_words<V>(xs + at + k * step);
        if constexpr (BACKWARD) {
          if (k * lanes < left) wy[k] = lm_load_words<V>(ys + at + k * step);
        }
      }
      LM_UNROLL
      for (int k = 0; k < FAR; k++) {
        if (k * lanes >= left) break;
        lm_pack<stored, V> px = lm_unpack(wx[k]);
        if constexpr (BACKWARD) {
          f(at + k * step, px, lm_unpack(wy[k]));
        } else {
          f(at + k * step, px, px);
        }
      }
    }
    for (int64_t i = lane; i < length - packs * V; i += lanes) {
      int64_t at = i < head ? i : i + packs * V;
      lm_pack<stored, 1> px = lm_load<1>(xs + at * x_step), py = {};
      if (BACKWARD) py = lm_load<1>(ys + at * y_step);
      f(at, px, py);
    }
  }
};
