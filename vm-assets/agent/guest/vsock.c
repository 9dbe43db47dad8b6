/* The agent's vsock port. Hosts connect to it one after another. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include <linux/vm_sockets.h>

#include "../log.h"
#include "guest.h"

/* src/vm/cloud-hypervisor/config.ts has the same number. Lower ports are privileged. */
#define AGENT_PORT 1024

int vsock_listen(void)
{
	struct sockaddr_vm address = {.svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_ANY, .svm_port = AGENT_PORT};
	int fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 1) != 0)
		log_fatal("vsock port %u: %s", AGENT_PORT, strerror(errno));
	return fd;
}
