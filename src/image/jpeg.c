#include "image/jpeg.h"

#include "base/message.h"

static void jump(j_common_ptr jpeg) { longjmp(((lm_jpeg_errors *)jpeg->err)->back, 1); }

/* Returns true for warnings about damaged pixels. Others concern bytes between segments and unused numbers. */
static bool is_loss(int message) {
  switch (message) {
    case JWRN_ARITH_BAD_CODE:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_JPEG_EOF:
    case JWRN_MUST_RESYNC:
    case JWRN_NOT_SEQUENTIAL: return true;
    default: return false;
  }
}

static void note(j_common_ptr jpeg, int level) {
  if (level >= 0) return; /* trace messages */
  jpeg->err->num_warnings++;
  if (is_loss(jpeg->err->msg_code) && !((lm_jpeg_errors *)jpeg->err)->allow_corrupt) jump(jpeg);
}

static void say_nothing(j_common_ptr jpeg) { (void)jpeg; }

void lm_jpeg_catch(lm_jpeg_errors *e, j_common_ptr jpeg, bool allow_corrupt) {
  jpeg->err = jpeg_std_error(&e->manager);
  e->manager.error_exit = jump;
  e->manager.emit_message = note;
  e->manager.output_message = say_nothing;
  e->allow_corrupt = allow_corrupt;
}

void lm_jpeg_give_up(j_common_ptr jpeg, const char *why) {
  ((lm_jpeg_errors *)jpeg->err)->own = why;
  jump(jpeg);
}

lm_status lm_jpeg_problem(j_common_ptr jpeg, const char *name) {
  char text[JMSG_LENGTH_MAX];
  const char *own = ((lm_jpeg_errors *)jpeg->err)->own;
  if (own) return lm_fail_in_file(LM_E_IO, name, "%s", own);
  int code = jpeg->err->msg_code;
  if (code == JERR_OUT_OF_MEMORY) return lm_fail_in_file(LM_E_OOM, name, "out of memory");
  jpeg->err->format_message(jpeg, text);
  if (code == JWRN_JPEG_EOF || code == JERR_INPUT_EOF)
    return lm_fail_malformed(name, "JPEG", LM_NO_OFFSET, "truncated");
  return lm_fail_malformed(name, "JPEG", LM_NO_OFFSET, "%s", lm_ellipsize(text, JMSG_LENGTH_MAX));
}
