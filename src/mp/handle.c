#include "mp/handle.h"

#include <errno.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/mem.h"
#include "base/message.h"
#include "mp/datagram.h"

static bool is_kind(lm_handle_kind kind) { return kind >= LM_CONNECTION && kind < LM_HANDLE_KINDS; }

int lm_handle_sockets(lm_handle_kind kind) { return is_kind(kind) ? lm_handle_traits[kind].sockets : 0; }

lm_status lm_handle_make(lm_handle_kind kind, const int *fds, lm_segment *words, lm_handle **out) {
  lm_status status = LM_OK;
  lm_handle *h = NULL;
  *out = NULL;
  if (!is_kind(kind) || (words ? words->bytes : 0) < lm_handle_traits[kind].words) {
    status = lm_datagram_malformed();
  } else if (!(h = lm_calloc(1, sizeof *h))) {
    status = LM_E_OOM;
  }
  if (!h) {
    lm_close_all(fds, lm_handle_sockets(kind));
    lm_segment_release(words);
    return status;
  }
  *h = (lm_handle){.kind = kind, .process = getpid(), .fd = {-1, -1}, .words = words};
  for (int i = 0; i < lm_handle_sockets(kind); i++) h->fd[i] = fds[i];
  *out = h;
  return LM_OK;
}

lm_status lm_handle_with_words(lm_handle_kind kind, const int *fds, lm_handle **out) {
  lm_segment *words = NULL;
  lm_status status = lm_segment_new(lm_handle_traits[kind].words, &words);
  if (status == LM_OK) return lm_handle_make(kind, fds, words, out);
  lm_close_all(fds, lm_handle_sockets(kind));
  return status;
}

lm_status lm_handle_copy(const lm_handle *h, lm_handle **out) {
  int fds[LM_HANDLE_SOCKETS], n = lm_handle_sockets(h->kind);
  *out = NULL;
  for (int i = 0; i < n; i++) {
    fds[i] = lm_fd_copy(h->fd[i], 0);
    if (fds[i] >= 0) continue;
    lm_close_all(fds, i);
    return lm_fail_cannot(errno == EMFILE ? LM_E_OOM : LM_E_IO, "copy a descriptor", errno);
  }
  if (h->words) lm_segment_retain(h->words);
  return lm_handle_make(h->kind, fds, h->words, out);
}

void lm_handle_free(lm_handle *h) {
  if (!h) return;
  if (lm_handle_traits[h->kind].abandon) lm_handle_traits[h->kind].abandon(h);
  lm_close_all(h->fd, LM_HANDLE_SOCKETS);
  lm_segment_release(h->words);
  lm_free(h);
}
