#ifndef COPPICE_LAUNCH_ATTRIBUTES_H
#define COPPICE_LAUNCH_ATTRIBUTES_H

#include <stdint.h>
#include <sys/types.h>

/*
 * An image may hold attributes such as security.ima and trusted.note. Only CAP_SYS_ADMIN may set and remove these, which
 * would let a program do much more. So the launcher, which is out of that program's reach, does this one thing for it:
 * the filter stops the program at such a call, tells the launcher, and passes the launcher's answer on.
 */

/* A pair of sockets between the parent and the child; the child's closes when it becomes the program. */
void make_channel(int channel[2]);
/* In the child: hands over the filter's descriptor, and the root that the program names files by. */
void hand_over(int channel, int listener);
/* What the parent keeps for it, beside what the program has: no process reads the memory of one that may do more. */
uint64_t server_capabilities(uint64_t of_program);
/* In the parent: serves the calls until `child` has ended; it can then be waited for without delay. */
void serve_attributes(int channel, pid_t child);

#endif
