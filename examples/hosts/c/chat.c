/* Talks with a language model through luminary.h: a GGUF file, or a folder of Hugging Face's.
 *
 *   chat MODEL [OPTIONS]
 *
 * OPTIONS is a JSON object, such as '{"system": "Be brief.", "temperature": 0.7}'. Each line of standard input is a
 * message; its answer is printed as it is generated. */
#include <luminary.h>
#include <stdio.h>
#include <string.h>

/* Prints a piece of an answer; ends the answer if that fails. */
static int print(void *user, const char *text) { return fputs(text, user) < 0 || fflush(user) != 0; }

int main(int argc, char **argv) {
  lum_session *session = NULL;
  lum_chat *chat = NULL;
  char line[4096];
  if (argc < 2 || argc > 3) {
    fprintf(stderr, "usage: chat MODEL [OPTIONS]\n");
    return 2;
  }
  lum_status status = lum_session_new(NULL, &session);
  if (status == LUM_OK) status = lum_chat_open(session, argv[1], argc > 2 ? argv[2] : NULL, &chat);
  while (status == LUM_OK && fgets(line, sizeof line, stdin)) {
    line[strcspn(line, "\n")] = 0;
    status = lum_chat_say(chat, line, print, stdout);
    printf("\n");
  }
  if (status != LUM_OK) fprintf(stderr, "%s: %s\n", lum_status_name(status), lum_message(NULL));
  lum_chat_free(chat);
  lum_session_free(session);
  return status != LUM_OK;
}
