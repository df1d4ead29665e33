#include "mesh.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { RETRY_MS = 2 };

static socklen_t address_of(const std::string &name, int rank, struct sockaddr_un *address) {
  memset(address, 0, sizeof *address);
  address->sun_family = AF_UNIX;
  /* An abstract name: gone with its socket. */
  int n = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "lm-fake-nccl-%s-%d", name.c_str(), rank);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static int stream_socket() { return socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); }

static void close_one(int &fd) {
  if (fd >= 0) close(fd);
  fd = -1;
}

static int call(const std::string &name, const lm_mesh_hello &mine, int peer) {
  struct sockaddr_un address;
  socklen_t length = address_of(name, peer, &address);
  int fd = stream_socket();
  if (fd < 0) return -1;
  if (connect(fd, (struct sockaddr *)&address, length) == 0 &&
      send(fd, &mine, sizeof mine, MSG_NOSIGNAL) == (ssize_t)sizeof mine) {
    return fd;
  }
  close(fd);
  return -1;
}

lm_mesh_end lm_mesh_meet(lm_mesh &mesh, const std::string &name, const lm_mesh_hello &mine,
                         std::vector<lm_mesh_hello> &all) {
  int size = mine.size, rank = mine.rank, missing = 2 * (size - 1);
  mesh.rank = rank, mesh.size = size;
  mesh.to.assign((size_t)size, -1), mesh.from.assign((size_t)size, -1);
  all.assign((size_t)size, mine);
  struct sockaddr_un address;
  socklen_t length = address_of(name, rank, &address);
  int door = stream_socket();
  if (door < 0 || bind(door, (struct sockaddr *)&address, length) != 0 || listen(door, size) != 0) {
    close_one(door);
    return LM_MESH_FAILED;
  }
  std::vector<int> guests; /* descriptors whose ranks are unknown yet */
  lm_mesh_end end = LM_MESH_DONE;
  while (missing > 0) {
    for (int peer = 0; peer < size; peer++) {
      int &fd = mesh.to[(size_t)peer];
      if (peer != rank && fd < 0 && (fd = call(name, mine, peer)) >= 0) missing--;
    }
    for (int fd; (fd = accept4(door, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) guests.push_back(fd);
    for (int &fd : guests) {
      lm_mesh_hello theirs;
      if (fd < 0 || recv(fd, &theirs, sizeof theirs, 0) != (ssize_t)sizeof theirs) continue;
      if (theirs.size != size || theirs.rank < 0 || theirs.rank >= size || mesh.from[(size_t)theirs.rank] >= 0) {
        end = LM_MESH_FAILED;
        continue;
      }
      mesh.from[(size_t)theirs.rank] = fd;
      all[(size_t)theirs.rank] = theirs;
      missing--;
      fd = -1;
    }
    if (end != LM_MESH_DONE || missing == 0) break;
    struct pollfd waiting = {mesh.wake, POLLIN, 0};
    if (poll(&waiting, 1, RETRY_MS) > 0) {
      end = LM_MESH_ABORTED;
      break;
    }
  }
  for (int &fd : guests) close_one(fd);
  close_one(door);
  return end;
}

void lm_mesh_keep(lm_mesh &mesh, const std::vector<int> &members) {
  std::vector<int> to, from;
  int rank = -1;
  for (int member : members) {
    if (member == mesh.rank) rank = (int)to.size();
    to.push_back(mesh.to[(size_t)member]), from.push_back(mesh.from[(size_t)member]);
    mesh.to[(size_t)member] = mesh.from[(size_t)member] = -1;
  }
  for (int &fd : mesh.to) close_one(fd);
  for (int &fd : mesh.from) close_one(fd);
  mesh.to = to, mesh.from = from, mesh.rank = rank, mesh.size = (int)to.size();
}

/* ---- moving ---- */

namespace {
/* Bytes of a list of parts, one after the other. */
struct flow {
  std::vector<lm_mesh_part> parts;
  size_t at = 0, offset = 0; /* the part, and how much of it is done */
  size_t answers = 0;        /* read from, or written to, the other side */
  bool answered = false;
  bool moved_all() const { return at == parts.size(); }
  bool done() const { return moved_all() && (!answered || answers == parts.size()); }
};
}  // namespace

/* Moves a flow one step over a socket: > 0 if something moved, 0 if it would block, < 0 if the other side is gone. */
static int step(flow &f, int fd, bool sending) {
  char byte = 0;
  bool data = !f.moved_all() && (sending || f.answers == f.at || !f.answered);
  ssize_t n;
  if (data) {
    lm_mesh_part &part = f.parts[f.at];
    char *p = part.data + f.offset;
    size_t left = part.bytes - f.offset;
    n = left == 0 ? 0 : sending ? send(fd, p, left, MSG_NOSIGNAL) : recv(fd, p, left, 0);
    if (n == 0 && left > 0) return -1;
    if (n >= 0) {
      f.offset += (size_t)n;
      if (f.offset == part.bytes) f.at++, f.offset = 0;
      return 1;
    }
  } else {
    n = sending ? recv(fd, &byte, 1, 0) : send(fd, &byte, 1, MSG_NOSIGNAL);
    if (n == 0) return -1;
    if (n > 0) return f.answers++, 1;
  }
  return errno == EAGAIN || errno == EINTR ? 0 : -1;
}

/* Returns the event that a flow waits for next. */
static short events_of(const flow &f, bool sending) {
  bool data = !f.moved_all() && (sending || f.answers == f.at || !f.answered);
  return data == sending ? POLLOUT : POLLIN;
}

lm_mesh_end lm_mesh_exchange(lm_mesh &mesh, std::vector<lm_mesh_traffic> &traffic) {
  std::vector<flow> flows; /* out and in of each peer */
  std::vector<struct pollfd> fds;
  for (int peer = 0; peer < mesh.size; peer++) {
    lm_mesh_traffic &t = traffic[(size_t)peer];
    if (peer == mesh.rank) {
      for (size_t i = 0; i < t.out.size() && i < t.in.size(); i++) {
        memmove(t.in[i].data, t.out[i].data, t.in[i].bytes < t.out[i].bytes ? t.in[i].bytes : t.out[i].bytes);
      }
      continue;
    }
    for (bool sending : {true, false}) {
      flow f;
      f.parts = sending ? t.out : t.in, f.answered = t.answered;
      flows.push_back(f);
      fds.push_back({(sending ? mesh.to : mesh.from)[(size_t)peer], 0, 0});
    }
  }
  fds.push_back({mesh.wake, POLLIN, 0});
  for (;;) {
    bool done = true, moved = false;
    for (size_t i = 0; i < flows.size(); i++) {
      bool sending = i % 2 == 0;
      while (!flows[i].done()) {
        int n = step(flows[i], fds[i].fd, sending);
        if (n < 0) return LM_MESH_LOST;
        if (n == 0) break;
        moved = true;
      }
      bool over = flows[i].done();
      done = done && over;
      fds[i].events = over ? 0 : events_of(flows[i], sending);
    }
    if (done) return LM_MESH_DONE;
    if (moved) continue;
    std::vector<struct pollfd> waiting;
    for (auto &fd : fds) {
      if (fd.events) waiting.push_back(fd);
    }
    if (poll(waiting.data(), (nfds_t)waiting.size(), -1) < 0 && errno != EINTR) return LM_MESH_FAILED;
    if (waiting.back().revents) return LM_MESH_ABORTED;
  }
}

void lm_mesh_wait_for_abort(lm_mesh &mesh) {
  struct pollfd waiting = {mesh.wake, POLLIN, 0};
  while (poll(&waiting, 1, -1) < 0 && errno == EINTR) continue;
}

void lm_mesh_close(lm_mesh &mesh) {
  for (int &fd : mesh.to) close_one(fd);
  for (int &fd : mesh.from) close_one(fd);
  close_one(mesh.wake);
}
