/* Declares what the plug-in luminary_file_onnx.so exports: the messages of ONNX files, read by protobuf-c. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct lm_onnx_messages {
  /* Reads a model of n bytes as a protobuf-c message. Its memory is lm_malloc's, so that bytes may be taken out of it;
   * LM_E_IO if it is malformed, nested too deeply or larger than the file explains. */
  lm_status (*unpack)(const uint8_t *bytes, size_t n, void **message);
  void (*release)(void *message); /* NULL is fine */
} lm_onnx_messages;
