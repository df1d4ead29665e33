--- The exit code of a rank that saved its state after a SIGTERM and ended, which `luminary run` counts as no failure.
--- It is sysexits.h's EX_TEMPFAIL: "try again later".
return 75
