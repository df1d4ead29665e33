/* Declares what the plug-in luminary_file_onnx.so exports: reading and writing the messages of ONNX files. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct lm_onnx_messages {
  /* Reads a model of n bytes as a protobuf-c message. Its memory is lm_malloc's, so that bytes may be taken out of it;
   * LM_E_IO if it is malformed, nested too deeply or larger than the file explains. */
  lm_status (*unpack)(const uint8_t *bytes, size_t n, void **message);
  void (*release)(void *message); /* NULL is fine */
  /* Passes the bytes of a model to append, in pieces; those of raw_data are where the message has them. */
  void (*pack)(const void *message, void (*append)(void *ctx, const uint8_t *bytes, size_t n), void *ctx);
  const void *model; /* the ProtobufCMessageDescriptor of a model */
} lm_onnx_messages;
