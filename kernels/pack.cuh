/* Neighbouring elements that are loaded and stored at once, 16 bytes at a time. */
#ifndef LM_KERNELS_PACK_CUH
#define LM_KERNELS_PACK_CUH

#include "types.cuh"

template <class T, int V>
struct alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) lm_pack {
  T v[V];
};

/* Elements of T in 16 bytes. */
template <class T>
struct lm_full_pack {
  enum { V = 16 / sizeof(T) };
};

/* p has to be aligned to the pack. Words of 16 bytes are spelled out, and stored by an intrinsic: left to itself the
 * compiler cuts those of 16-bit elements in pieces. */
LM_DEVICE void lm_store_word(uint4 *p, uint4 word) {
#if defined(LM_HOST_KERNELS)
  *p = word;
#else
  __stcg(p, word);
#endif
}
template <int V, class T>
LM_DEVICE lm_pack<T, V> lm_load(const T *p) {
  lm_pack<T, V> pack;
  if constexpr (sizeof pack % sizeof(uint4) == 0) {
    uint4 word[sizeof pack / sizeof(uint4)];
    LM_UNROLL
    for (int i = 0; i < (int)(sizeof pack / sizeof(uint4)); i++) word[i] = ((const uint4 *)p)[i];
    memcpy(&pack, word, sizeof pack);
  } else {
    pack = *(const lm_pack<T, V> *)p;
  }
  return pack;
}
/* Stands between several conditional loads and the first use of what they loaded: else the compiler converts each pack
 * right after its load, under the same condition, and so waits for one before the next is under way. */
template <class T, int V>
LM_DEVICE void lm_loaded(lm_pack<T, V> &pack) {
#if defined(LM_HOST_KERNELS)
  (void)pack;
#else
  if constexpr (sizeof pack % 4 == 0) {
    uint32_t word[sizeof pack / 4];
    memcpy(word, &pack, sizeof pack);
    LM_UNROLL
    for (int i = 0; i < (int)(sizeof pack / 4); i++) asm volatile("" : "+r"(word[i]));
    memcpy(&pack, word, sizeof pack);
  }
#endif
}

template <int V, class T>
LM_DEVICE void lm_store(T *p, lm_pack<T, V> pack) {
  if constexpr (sizeof pack % sizeof(uint4) == 0) {
    uint4 word[sizeof pack / sizeof(uint4)];
    memcpy(word, &pack, sizeof pack);
    LM_UNROLL
    for (int i = 0; i < (int)(sizeof pack / sizeof(uint4)); i++) lm_store_word((uint4 *)p + i, word[i]);
  } else {
    *(lm_pack<T, V> *)p = pack;
  }
}

/* Whether packs of 16 bytes may be used at p; NULL is fine. */
static inline bool lm_is_packed(const void *p) { return (uintptr_t)p % 16 == 0; }

#endif
