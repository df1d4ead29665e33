/* Defines the part of a product in registers, and so the width of packed panels: the same wherever panels are read. */
#pragma once

/* Bytes of a vector, two of which are a panel's row; number of a product's rows that are in registers at a time. */
#if defined(__AVX512F__)
enum { VECTOR = 64 };
#elif defined(__AVX2__)
enum { VECTOR = 32 };
#else
enum { VECTOR = 16 };
#endif
#if defined(__AVX512F__) || defined(__aarch64__) /* which have 32 registers */
enum { TILE = 8 };
#define EACH_ROWS(X, ...) EACH_6(X, __VA_ARGS__) X(7, __VA_ARGS__) X(8, __VA_ARGS__)
#else
enum { TILE = 6 };
#define EACH_ROWS EACH_6
#endif
#define EACH_6(X, ...) \
  X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__) X(5, __VA_ARGS__) X(6, __VA_ARGS__)
