/* The kinds of device that this library brings plug-ins for. */
#ifndef LM_KNOWN_DEVICE_KINDS_H
#define LM_KNOWN_DEVICE_KINDS_H

enum { LM_CUDA = 1 }; /* its place in lm_known_kinds */

#endif
