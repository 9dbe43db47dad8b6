/*
 * Disks are known by the serial number that the host gave them. Names like sda follow the order in which
 * the kernel probed, which is not the order in which they were attached.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../log.h"
#include "../loop.h"
#include "guest.h"

/* Header of the SCSI "unit serial number" page: its length is the fourth byte. */
#define VPD_HEADER_BYTES 4
/* Looks again after this long even without an event: an event can be lost, a disk must not. */
#define RESCAN_MS 50

static int events = -1;

void disks_open(void)
{
	struct sockaddr_nl address = {.nl_family = AF_NETLINK, .nl_groups = 1};
	events = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_KOBJECT_UEVENT);
	if (events < 0 || bind(events, (struct sockaddr *)&address, sizeof address) != 0)
		log_fatal("uevents: %s", strerror(errno));
}

static bool has_serial(const char *name, const char *serial)
{
	char path[320];
	char page[256];
	snprintf(path, sizeof path, "/sys/block/%s/device/vpd_pg80", name);
	int size = read_file(path, page, sizeof page);
	if (size <= VPD_HEADER_BYTES)
		return false;
	size_t length = strlen(serial);
	size_t have = (size_t)size - VPD_HEADER_BYTES;
	while (have > 0 && (page[VPD_HEADER_BYTES + have - 1] == ' ' || page[VPD_HEADER_BYTES + have - 1] == '\0'))
		have--;
	return have == length && memcmp(page + VPD_HEADER_BYTES, serial, length) == 0;
}

static bool scan(const char *serial, char *device, size_t size)
{
	bool found = false;
	DIR *blocks = opendir("/sys/block");
	if (blocks == NULL)
		return false;
	for (struct dirent *entry; !found && (entry = readdir(blocks)) != NULL;) {
		if (strncmp(entry->d_name, "sd", 2) != 0 || !has_serial(entry->d_name, serial))
			continue;
		snprintf(device, size, "/dev/%s", entry->d_name);
		/* The node is there a moment before the disk behind it. */
		int fd = open(device, O_RDONLY | O_CLOEXEC);
		found = fd >= 0;
		if (found)
			close(fd);
	}
	closedir(blocks);
	return found;
}

bool disks_find(const char *serial, uint64_t deadline_ns, char *device, size_t size, struct problem *problem)
{
	char event[4096];
	for (;;) {
		/* Emptied before the look, so that what appears after the look is an event to wake up for. */
		while (recv(events, event, sizeof event, 0) > 0)
			continue;
		if (scan(serial, device, size))
			return true;
		if (loop_now() >= deadline_ns)
			return problem_set(problem, ENODEV, "disk %s did not appear", serial);
		struct pollfd wait = {.fd = events, .events = POLLIN};
		poll(&wait, 1, RESCAN_MS);
	}
}
