/* A unix socket from each rank to each other one: data flows one way, and byte by byte, with nothing around it. */
#ifndef LM_FAKE_MESH_H
#define LM_FAKE_MESH_H

#include <stddef.h>

#include <string>
#include <vector>

/* Facts that ranks send each other when they meet. */
struct lm_mesh_hello {
  int rank, size, color, key;
  char card[32]; /* the card's bus id */
  char host[64];
};

struct lm_mesh {
  int rank = 0, size = 0;
  std::vector<int> to, from; /* descriptors by rank; -1: none (itself) */
  int wake = -1;             /* readable once the communicator is aborted */
};

enum lm_mesh_end { LM_MESH_DONE, LM_MESH_ABORTED, LM_MESH_LOST, LM_MESH_FAILED };

struct lm_mesh_part {
  char *data;
  size_t bytes;
};
/* Parts that go to and come from one rank, in order. With `answered` the reader acknowledges each part, and a
 * sender waits for that. */
struct lm_mesh_traffic {
  std::vector<lm_mesh_part> out, in;
  bool answered;
};

/* Finds the others, who call this with the same name and size. all[r] is what rank r says of itself. */
lm_mesh_end lm_mesh_meet(lm_mesh &mesh, const std::string &name, const lm_mesh_hello &mine,
                         std::vector<lm_mesh_hello> &all);
/* Keeps the ranks of `members` alone, which are numbered in that order. */
void lm_mesh_keep(lm_mesh &mesh, const std::vector<int> &members);
/* Sends and receives until all is done; traffic[r] is rank r's. */
lm_mesh_end lm_mesh_exchange(lm_mesh &mesh, std::vector<lm_mesh_traffic> &traffic);
void lm_mesh_wait_for_abort(lm_mesh &mesh);
void lm_mesh_close(lm_mesh &mesh);

#endif
