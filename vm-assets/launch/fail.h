#ifndef COPPICE_LAUNCH_FAIL_H
#define COPPICE_LAUNCH_FAIL_H

/* Writes the failed step, its subject ("" for none) and the text of errno to stderr, and exits with 125. */
_Noreturn void fail(const char *step, const char *subject);

#endif
