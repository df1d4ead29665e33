/* Lists the kinds of handles. It is above all of them, and handle.c, which all of them use, below: the messages that a
 * queue's handle keeps contain handles of any kind. */
#include "mp/channel.h"
#include "mp/lock.h"
#include "mp/queue.h"
#include "mp/semaphore.h"

const lm_handle_trait lm_handle_traits[LM_HANDLE_KINDS] = {
    [LM_CONNECTION] = {.sockets = 1},
    [LM_THREAD_CONNECTION] = {.sockets = 1, .abandon = lm_connection_abandon},
    [LM_QUEUE] = {.sockets = 2, .words = sizeof(lm_queue_words), .abandon = lm_queue_abandon},
    [LM_LOCK] = {.words = sizeof(lm_lock_words), .abandon = lm_lock_abandon},
    [LM_SEMAPHORE] = {.words = sizeof(lm_semaphore_words), .abandon = lm_semaphore_abandon},
};
