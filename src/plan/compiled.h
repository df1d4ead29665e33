/* Declares what the files of followed functions share: follow.c, match_segment.c above record_segment.c. */
#pragma once

#include "plan/follow.h"
#include "plan/segment.h"

enum { NONE = -1, UNKNOWN = -2, SHARED = -3 };
enum { NO_SCOPE, SAME_SCOPE, NEXT_SCOPE }; /* relations of autocast's outermost scope to that of the event before */

typedef enum lm_follow_mode { AT_START, AS_IS, RECORDING, MATCHING } lm_follow_mode;

typedef struct lm_noted { /* a header that the script sees, while a segment is recorded */
  int instance;
  lm_tensor *t; /* not retained; NULL once it is freed */
} lm_noted;

typedef struct lm_open_result { /* a result of a finished segment whose history backward has not freed */
  lm_segment *segment;
  lm_tensor *t; /* not retained; NULL once it is freed */
} lm_open_result;

struct lm_compiled {
  lm_follower follower;
  lm_op_recorder recorder;
  lm_tensor_watcher watcher;
  void (*collect)(void *); /* frees garbage that holds scores */
  void *collect_ctx;
  lm_segment *segments; /* the last used first */
  lm_segment *now;      /* the segment of this call's latest events, or NULL */
  lm_follow_mode mode;
  bool is_exact;
  bool is_plan;             /* true while a plan is recorded: all ops, without events */
  bool shares;              /* true if it is not known which of a plan's inputs, which share memory, a step reads */
  lm_tensor_watcher *outer; /* the receivers before a plan's, or NULL */
  lm_op_recorder *outer_ops;
  int at;                                         /* MATCHING: number of its events so far */
  int recordings, made, ran;                      /* made: segments that do not run as they are */
  int recordings_before, made_before, ran_before; /* before this call */
  int unsteady;    /* number of calls in a row of which no segment ran, or one was made */
  int rest, rests; /* calls that are not followed, since no segment ran and none may be made; how many the last time */
  int changes;     /* number of times that another number took a number's place */
  bool explains;   /* true if segments keep their steps as recorded, as text */
  double credit;
  uint32_t scope;                /* autocast's outermost scope of the segment's last event in one */
  const lm_segment_event *again; /* the event that is called again, or NULL */
  lm_address_map buffer_of;      /* buffers of storages, while a segment is recorded; UNKNOWN: made by no step; SHARED:
                                    of several inputs of a plan */
  lm_address_map instance_of;    /* indices in `noted` of headers */
  lm_address_map number_of;      /* values of numbers' headers */
  lm_address_map bound;          /* MATCHING: buffers of storages from outside */
  bool delivers;                 /* RECORDING a backward pass: its leaves have hooks */
  lm_tensor **delivered; /* gradients that hooks got and others hold, while a segment is recorded; retained so that no
                          * op writes to them */
  int ndelivered;
  size_t delivered_capacity;
  lm_noted *noted;
  int nnoted;
  size_t noted_capacity;
  lm_open_result *open;
  int nopen;
  size_t open_capacity;
  char reason[200];
  const char *line;
  char difference[200]; /* sentence: how the latest recorded call differs from a segment; "": none does */
  int unlike;           /* slot of the first tensor, unlike_tensor, with which a call was not the event; NONE: others */
  lm_tensor *unlike_tensor; /* borrowed */
};

#define LM_GRAPH_DROPPED "a graph was dropped without backward, which another call may use"

/* ---- record_segment.c */

/* Sets the functions that note ops and tensors while a segment is recorded. */
void lm_compiled_set_recorder(lm_compiled *c);
/* Begins to record a segment; false if there were too many of late. */
bool lm_compiled_record(lm_compiled *c);
/* Notes inputs, calls the op with its steps recorded, notes results. into: headers that become the results, or NULL. */
lm_status lm_compiled_record_call(lm_compiled *c, lm_op_id id, const void *args, bool in_place, lm_tensor **into,
                                  lm_tensor **out);
lm_status lm_compiled_record_backward(lm_compiled *c, const lm_backward_args *a);
/* Notes that values are needed here while the graph is still open; false if the segment has to end. */
bool lm_compiled_record_pause(lm_compiled *c);
void lm_compiled_finish_recording(lm_compiled *c);
/* Makes segments run as they are of which t (NULL: any) is a result that still has a history, now that it is used. */
void lm_compiled_refuse_open(lm_compiled *c, const lm_tensor *t);
/* Calls an op, or backward, as if nothing followed the script. */
lm_status lm_compiled_call_plain(lm_compiled *c, lm_op_id id, const void *args, bool in_place, lm_tensor **out);
lm_status lm_compiled_backward_plain(lm_compiled *c, const lm_backward_args *a);
/* Returns how autocast's outermost scope is to that of the event before: a weight is cast once in each. */
int lm_compiled_scope_here(const lm_compiled *c);
void lm_compiled_note_scope(lm_compiled *c);
/* Returns a sentence that says why a tensor from outside makes its segment run as it is; NULL if it does not.
 * any_history: only ops without a gradient read it. */
const char *lm_compiled_refuses(const lm_tensor *t, bool any_history);
/* Makes the header p, which has no values, what o is, and replaces *o by p. */
void lm_header_become(lm_tensor *p, lm_tensor **o);

/* Begins to record ops as the steps of a segment whose first instances are these inputs: headers that no other has. */
lm_status lm_compiled_record_plan(lm_compiled *c, int n, lm_tensor *const *inputs);
/* Stops to record ops, and begins again. */
void lm_compiled_watch_ops(lm_compiled *c, bool watches);
/* Returns in *v the value that t has after the steps: a constant, if no step made it. */
lm_status lm_compiled_plan_value(lm_compiled *c, lm_tensor *t, int *v);
/* Ends the recording and returns its segment. */
lm_segment *lm_compiled_take_plan(lm_compiled *c);

/* ---- match_segment.c */

/* Returns true if a call is that event of the segment c->now; then its tensors from outside are bound. */
bool lm_compiled_is_event(lm_compiled *c, const lm_segment_event *e, lm_op_id id, const void *args, bool in_place);
bool lm_compiled_is_backward_event(lm_compiled *c, const lm_segment_event *e, const lm_backward_args *a);
/* Makes the headers of an event's results, without values. */
lm_status lm_compiled_return_results(lm_compiled *c, const lm_segment_event *e, lm_tensor **out);
/* Drops what this call has of a segment that it followed. */
void lm_compiled_forget_call(lm_compiled *c, lm_segment *g);
/* Changes to another segment that begins with the same events and whose next is the call, which `is_next` compares;
 * false, and nothing was done, if there is none. */
bool lm_compiled_change_segment(lm_compiled *c, bool (*is_next)(lm_compiled *, const lm_segment_event *, const void *),
                                const void *call);

/* ---- differences.c: why a call is recorded again */

/* Notes a sentence, behind the script's line. */
void lm_compiled_note_difference(lm_compiled *c, const char *format, ...) LM_PRINTF(2, 3);
/* Notes how a call of an op, or of backward, is not that event of c->now. */
void lm_compiled_note_call(lm_compiled *c, const lm_segment_event *e, lm_op_id id, const void *args, bool in_place);
void lm_compiled_note_backward(lm_compiled *c, const lm_segment_event *e);
/* Notes how a call, with which no segment begins, differs from the begin of one. */
void lm_compiled_note_begin(lm_compiled *c, lm_op_id id, const void *args, bool in_place);
