#ifndef COPPICE_FORK_CONFINE_H
#define COPPICE_FORK_CONFINE_H

/*
 * Gives up everything that the copying does not need: descriptors from `first_unused_fd` on, capabilities, core dumps. The
 * kernel will kill this process with its parent, and before others when memory is short.
 */
void drop_privileges(unsigned int first_unused_fd);
/* Restricts all threads of this process to the few system calls of the copying. */
void install_filter(void);

#endif
