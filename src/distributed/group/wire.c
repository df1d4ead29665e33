#include "distributed/group/wire.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

enum { MAGIC = 0x314f474c }; /* "LGO1" */

void lm_wire_init(lm_wire *w) {
  *w = (lm_wire){.fd = -1};
  w->last = &w->first;
}

lm_status lm_wire_start(lm_wire *w, int fd) {
  w->in = lm_malloc(LM_WIRE_BUFFER);
  if (!w->in) {
    close(fd);
    return LM_E_OOM;
  }
  w->fd = fd;
  w->state = LM_WIRE_OPEN;
  return LM_OK;
}

void lm_wire_break(lm_wire *w, const char *how) {
  if (w->state == LM_WIRE_LEFT || w->state == LM_WIRE_BROKEN) return;
  w->state = LM_WIRE_BROKEN;
  if (!w->how[0]) snprintf(w->how, sizeof w->how, "%s", how);
  if (w->fd >= 0) shutdown(w->fd, SHUT_RDWR); /* lets the peer notice at once */
}

void lm_wire_close(lm_wire *w) {
  if (w->fd >= 0) close(w->fd);
  w->fd = -1;
  lm_free(w->in);
  w->in = NULL;
}

void lm_wire_queue(lm_wire *w, lm_wire_message *out) {
  out->head.magic = MAGIC;
  out->done = 0;
  out->queued = true;
  out->next = NULL;
  *w->last = out;
  w->last = &out->next;
}

static void unlink_out(lm_wire *w, lm_wire_message *out) {
  lm_wire_message **at = &w->first;
  while (*at != out) at = &(*at)->next;
  *at = out->next;
  if (!out->next) w->last = at;
  out->queued = false;
}

void lm_wire_cut(lm_wire *w, lm_wire_message *out) {
  if (!out->queued) return;
  if (out->done >= sizeof out->head || (out->done && out->bytes)) {
    lm_wire_break(w, "a message was called off halfway");
  } else if (out->done) { /* carry is empty then, since it is written first */
    w->carry_at = 0;
    w->carry_n = sizeof out->head - out->done;
    memcpy(w->carry, (const char *)&out->head + out->done, w->carry_n);
  }
  unlink_out(w, out);
}

/* Returns true if a CREDIT must be sent. Every message reports `consumed`, so this happens late and rarely: data sent
 * to a peer that has closed its TCP socket resets the connection, and the peer's unsent messages are lost. */
static bool owes_credit(const lm_wire *w) { return w->consumed - w->reported >= LM_EAGER_WINDOW / 4 * 3; }

bool lm_wire_has_more(const lm_wire *w) {
  return w->state == LM_WIRE_OPEN && !w->how[0] &&
         (w->carry_n || w->first || owes_credit(w) || (w->leaving && !w->said_goodbye));
}

static void wire_note(lm_wire *w, int error) {
  if (error == EPIPE || error == ECONNRESET)
    snprintf(w->how, sizeof w->how, "the connection was closed");
  else if (!w->how[0])
    snprintf(w->how, sizeof w->how, "%s", strerror(error));
}

/* Puts a message that is only a head into `carry`. */
static void wire_carry(lm_wire *w, lm_wire_kind kind) {
  lm_wire_head head = {.magic = MAGIC, .kind = kind, .consumed = w->consumed};
  w->reported = w->consumed;
  memcpy(w->carry, &head, sizeof head);
  w->carry_at = 0;
  w->carry_n = sizeof head;
}

/* Writes n parts to the socket and returns the number of bytes written; 0: none for now. */
static size_t wire_put(lm_wire *w, struct iovec *parts, int n) {
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)n};
  ssize_t sent;
  do sent = sendmsg(w->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  while (sent < 0 && errno == EINTR);
  if (sent > 0) {
    w->moved += (uint64_t)sent;
    return (size_t)sent;
  }
  /* The peer's last messages, perhaps a goodbye, may still be unread, so only reading ends the link. */
  if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS) wire_note(w, errno);
  return 0;
}

lm_wire_message *lm_wire_write(lm_wire *w) {
  while (lm_wire_has_more(w)) {
    if (!w->carry_n && !w->first) {
      w->said_goodbye = w->leaving;
      wire_carry(w, w->leaving ? LM_WIRE_GOODBYE : LM_WIRE_CREDIT);
    }
    struct iovec parts[2];
    if (w->carry_n) {
      parts[0] = (struct iovec){w->carry + w->carry_at, w->carry_n};
      size_t n = wire_put(w, parts, 1);
      if (!n) return NULL;
      w->carry_at += n;
      w->carry_n -= n;
      continue;
    }
    lm_wire_message *out = w->first;
    size_t head = sizeof out->head, body_done = out->done < head ? 0 : out->done - head;
    if (!out->done) {
      out->head.consumed = w->consumed;
      w->reported = w->consumed;
    }
    int k = 0;
    if (out->done < head) parts[k++] = (struct iovec){(char *)&out->head + out->done, head - out->done};
    if (body_done < out->bytes) parts[k++] = (struct iovec){(char *)out->body + body_done, out->bytes - body_done};
    size_t n = wire_put(w, parts, k);
    if (!n) return NULL;
    out->done += n;
    if (out->done < head + out->bytes) continue;
    unlink_out(w, out);
    return out;
  }
  return NULL;
}

/* Takes the next head from the buffer and prepares for its data; false if it is malformed. */
static bool take_head(lm_wire *w) {
  lm_wire_head *h = &w->head;
  memcpy(h, w->in + w->in_at, sizeof *h);
  w->in_at += sizeof *h;
  if (h->magic != MAGIC || h->kind == 0 || h->kind >= LM_WIRE_KINDS) return false;
  if (h->kind == LM_WIRE_EAGER && h->bytes > LM_EAGER_MAX) return false;
  if (h->consumed - w->repaid > w->spent - w->repaid) return false; /* the peer repaid more than was spent */
  w->repaid = h->consumed;
  h->ticket.what[sizeof h->ticket.what - 1] = 0;
  h->ticket.where[sizeof h->ticket.where - 1] = 0;
  w->into = NULL;
  w->left = h->kind == LM_WIRE_EAGER || h->kind == LM_WIRE_BODY ? h->bytes : 0;
  w->in_body = true;
  return true;
}

/* Reads once from the socket: the current message's data to its address, the rest into the buffer. Returns false if
 * there was no data. */
static bool wire_get(lm_wire *w) {
  if (w->in_at) {
    memmove(w->in, w->in + w->in_at, w->in_n - w->in_at);
    w->in_n -= w->in_at;
    w->in_at = 0;
  }
  size_t direct = w->in_body && w->into ? w->left : 0;
  struct iovec parts[2];
  int k = 0;
  if (direct) parts[k++] = (struct iovec){w->into, direct};
  parts[k++] = (struct iovec){w->in + w->in_n, LM_WIRE_BUFFER - w->in_n};
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)k};
  ssize_t n;
  do n = recvmsg(w->fd, &message, MSG_DONTWAIT);
  while (n < 0 && errno == EINTR);
  if (n <= 0) {
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    wire_note(w, n < 0 ? errno : EPIPE);
    lm_wire_break(w, ""); /* wire_note has set w->how */
    return false;
  }
  w->moved += (uint64_t)n;
  w->dry = (size_t)n < direct + LM_WIRE_BUFFER - w->in_n;
  size_t body = (size_t)n < direct ? (size_t)n : direct;
  if (body) w->into += body;
  w->left -= body;
  w->in_n += (size_t)n - body;
  return true;
}

lm_wire_event lm_wire_read(lm_wire *w, int *budget) {
  while (w->state == LM_WIRE_OPEN) {
    if (w->in_body) {
      size_t n = w->in_n - w->in_at < w->left ? w->in_n - w->in_at : w->left;
      if (n && w->into) {
        memcpy(w->into, w->in + w->in_at, n);
        w->into += n;
      }
      w->in_at += n;
      w->left -= n;
      if (!w->left) {
        w->in_body = false;
        if (w->head.kind == LM_WIRE_GOODBYE) {
          w->state = LM_WIRE_LEFT;
          w->left_at = lm_seconds();
        }
        return LM_WIRE_DATA_END;
      }
    } else if (w->in_n - w->in_at >= sizeof w->head) {
      if (take_head(w)) return LM_WIRE_HEAD;
      lm_wire_break(w, "something else than this library spoke");
      break;
    }
    if (w->dry || *budget <= 0) {
      w->dry = false;
      break;
    }
    --*budget;
    if (!wire_get(w)) break;
  }
  return LM_WIRE_IDLE;
}
