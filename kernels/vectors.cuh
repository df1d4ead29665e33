/* Loads and stores neighboring elements at once, 16 bytes at a time. */
#pragma once

#include "types.cuh"

template <class T, int V>
struct alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) lm_pack {
  T v[V];
};

/* Number of elements of T in 16 bytes. */
template <class T>
struct lm_full_pack {
  enum { V = 16 / sizeof(T) };
};

/* The word that a pack moves by: 16 bytes, or the pack's size if that is less. By itself the compiler would cut packs
 * of 16-bit elements in pieces. */
template <size_t BYTES>
using lm_word = std::conditional_t<
    BYTES == 1, uint8_t,
    std::conditional_t<BYTES == 2, uint16_t,
                       std::conditional_t<BYTES == 4, uint32_t, std::conditional_t<BYTES == 8, uint2, uint4>>>>;
/* A pack as stored in memory. */
template <class T, int V>
struct lm_words {
  typedef lm_word<sizeof(lm_pack<T, V>)> type;
  enum { N = sizeof(lm_pack<T, V>) / sizeof(type) };
  type of[N];
};

/* Loads a pack as words; p must be aligned to the pack. */
template <int V, class T>
LM_DEVICE lm_words<T, V> lm_load_words(const T *p) {
  lm_words<T, V> words;
  LM_UNROLL
  for (int i = 0; i < words.N; i++) words.of[i] = ((const typename lm_words<T, V>::type *)p)[i];
  return words;
}

/* Converts words to a pack, for several conditional loads, which stay words until all of them are in flight. The
 * compiler would convert packs right after their load, under the same condition, and so wait for each. */
template <class T, int V>
LM_DEVICE lm_pack<T, V> lm_unpack(const lm_words<T, V> &words) {
  lm_pack<T, V> pack;
#if !defined(LM_HOST_KERNELS)
  if constexpr (sizeof pack % 4 == 0) {
    uint32_t held[sizeof pack / 4];
    memcpy(held, &words, sizeof pack);
    LM_UNROLL
    for (int i = 0; i < (int)(sizeof pack / 4); i++) asm volatile("" : "+r"(held[i]));
    memcpy(&pack, held, sizeof pack);
    return pack;
  }
#endif
  memcpy(&pack, &words, sizeof pack);
  return pack;
}

template <int V, class T>
LM_DEVICE lm_pack<T, V> lm_load(const T *p) {
  lm_words<T, V> words = lm_load_words<V>(p);
  lm_pack<T, V> pack;
  memcpy(&pack, &words, sizeof pack);
  return pack;
}

template <int V, class T>
LM_DEVICE void lm_store(T *p, lm_pack<T, V> pack) {
  lm_words<T, V> words;
  memcpy(&words, &pack, sizeof pack);
  LM_UNROLL
  for (int i = 0; i < words.N; i++) __stcg((typename lm_words<T, V>::type *)p + i, words.of[i]);
}

/* A width known at compile time, passed as an argument. */
template <int N>
struct lm_width {
  enum { value = N };
};

/* Returns true if packs of 16 bytes may be used at p; NULL is allowed. */
static inline bool lm_is_packed(const void *p) { return (uintptr_t)p % 16 == 0; }
