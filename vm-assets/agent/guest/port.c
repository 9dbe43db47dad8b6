/* The virtio-serial port named `agent`. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../log.h"
#include "guest.h"

#define PORT_NAME "agent\n"
#define PORT_DIRECTORY "/sys/class/virtio-ports"
/* The device answers milliseconds after its driver was loaded, or a second on a slow machine. */
#define PORT_WAIT_MS 10000

static bool find_port(char *device, size_t size)
{
	char path[320];
	char name[64];
	bool found = false;
	DIR *ports = opendir(PORT_DIRECTORY);
	if (ports == NULL)
		return false;
	for (struct dirent *entry; !found && (entry = readdir(ports)) != NULL;) {
		snprintf(path, sizeof path, PORT_DIRECTORY "/%s/name", entry->d_name);
		if (entry->d_name[0] == '.' || read_file(path, name, sizeof name) <= 0 || strcmp(name, PORT_NAME) != 0)
			continue;
		snprintf(device, size, "/dev/%s", entry->d_name);
		found = true;
	}
	closedir(ports);
	return found;
}

int port_open(void)
{
	const struct timespec pause = {.tv_nsec = 1000000};
	char device[300];
	for (int waited = 0; waited < PORT_WAIT_MS; waited++) {
		if (find_port(device, sizeof device)) {
			int fd = open(device, O_RDWR | O_NONBLOCK | O_CLOEXEC);
			if (fd >= 0)
				return fd;
			if (errno != ENOENT)
				log_fatal("%s: %s", device, strerror(errno));
		}
		nanosleep(&pause, NULL);
	}
	log_fatal("no virtio port is named agent");
}
