#ifndef COPPICE_LAUNCH_FAIL_H
#define COPPICE_LAUNCH_FAIL_H

/* Tells the step, its subject ("" for none) and the text of errno on stderr, and exits 125. */
_Noreturn void fail(const char *step, const char *subject);

#endif
