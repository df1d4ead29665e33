/* The kinds of device that this library brings plug-ins for. */
#ifndef LM_BACKEND_KNOWN_KINDS_H
#define LM_BACKEND_KNOWN_KINDS_H

enum { LM_CUDA = 1 }; /* its place in lm_known_kinds */

#endif
