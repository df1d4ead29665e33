--- Defines the exit code of a rank that saved its state after a SIGTERM; `luminary run` does not count it as a failure.
--- It is sysexits.h's EX_TEMPFAIL: "try again later".
return 75
