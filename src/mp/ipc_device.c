/* Encodes a device for other processes: its GPU's UUID, and its index among the devices the GPU is split into. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/driver.h"
#include "device/known.h"
#include "mp/datagram.h"
#include "mp/ipc.h"

enum { UUID_BYTES = 64, KIND_BYTES = 32 };

static void put_uuid(void *ctx, const lm_property *p) {
  if (strcmp(p->name, "uuid") == 0 && p->kind == LM_PROPERTY_TEXT) snprintf(ctx, UUID_BYTES, "%s", p->text);
}

/* Returns the GPU's UUID, which is the same in all processes: "GPU-…". */
static lm_status read_uuid(lm_device device, const char **out) {
  static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;
  static char known[LM_DEVICE_KINDS][LM_DEVICE_MAX][UUID_BYTES];
  const lm_driver *driver = lm_driver_of(device);
  int ordinal = lm_device_physical(device);
  char *text = known[LM_DEVICE_KIND(device)][ordinal];
  lm_status status = LM_OK;
  pthread_mutex_lock(&asking);
  if (!*text && driver->properties) status = driver->properties(ordinal, put_uuid, text);
  pthread_mutex_unlock(&asking);
  *out = text;
  return status;
}

/* Returns the device's index among those of its GPU. */
static int uuid_part_of(lm_device device) {
  int part = 0;
  while (part < LM_DEVICE_ORDINAL(device) &&
         lm_device_physical((lm_device)(device - part - 1)) == lm_device_physical(device)) {
    part++;
  }
  return part;
}

lm_status lm_ipc_put_device(lm_bytes *b, lm_device device) {
  const char *uuid;
  NEED(read_uuid(device, &uuid));
  lm_put_text(b, lm_device_kind_name(LM_DEVICE_KIND(device)));
  lm_put_text(b, uuid);
  lm_put_u8(b, (uint8_t)uuid_part_of(device));
  return LM_OK;
}

lm_status lm_ipc_get_device(lm_reader *r, lm_device *out) {
  char kind_name[KIND_BYTES], uuid[UUID_BYTES];
  const char *here;
  int kind;
  lm_get_text(r, kind_name, sizeof kind_name);
  lm_get_text(r, uuid, sizeof uuid);
  int part = lm_get_u8(r);
  if (r->failed) return lm_datagram_malformed();
  lm_status status = lm_device_kind(kind_name, &kind);
  if (status != LM_OK) return status;
  bool found = false;
  for (int i = 0; i < lm_device_count(kind); i++) {
    lm_device device = LM_DEVICE(kind, i);
    if ((status = read_uuid(device, &here)) != LM_OK) return status;
    if (strcmp(here, uuid) != 0 || (found && uuid_part_of(device) > part)) continue;
    *out = device;
    found = true;
  }
  if (found) return LM_OK;
  const lm_known_kind *known = lm_known_kind_of(kind);
  const char *chooser = known ? known->read_once[0] : "its driver", *visible = known ? getenv(chooser) : NULL;
  bool none = lm_device_count(kind) == 0;
  return lm_fail(LM_E_DEVICE, "a tensor is on %s, a GPU that is not visible to this process (%s%s%s); send x:cpu()",
                 uuid, none ? "" : chooser, none ? "" : ": ",
                 none      ? lm_device_why_none(kind)
                 : visible ? lm_ellipsize(visible, 80)
                           : "not set");
}
