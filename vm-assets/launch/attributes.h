#ifndef COPPICE_LAUNCH_ATTRIBUTES_H
#define COPPICE_LAUNCH_ATTRIBUTES_H

#include <stdint.h>
#include <sys/types.h>

/*
 * An image may have attributes such as security.ima and trusted.note. Setting and removing them takes CAP_SYS_ADMIN, which
 * would allow a program much more. So the launcher, which the program cannot reach, does only that for it: the filter
 * suspends the program at such a call, notifies the launcher, and returns the launcher's answer.
 */

/* Makes a socket pair between the parent and the child. The child's end closes when it executes the program. */
void make_channel(int channel[2]);
/* In the child: sends the filter's descriptor, and the root directory in which the program's paths are resolved. */
void send_listener(int channel, int listener);
/*
 * Capabilities that the parent keeps: the program's and CAP_SYS_ADMIN. It needs the program's ones, because a process
 * cannot read the memory of another with more capabilities.
 */
uint64_t server_capabilities(uint64_t of_program);
/* In the parent: serves calls until `child` has ended. After that, waiting for it does not block. */
void serve_attributes(int channel, pid_t child);

#endif
