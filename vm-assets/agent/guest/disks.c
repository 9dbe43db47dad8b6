/*
 * Identifies disks by the serial numbers that the host gave them. Names such as sda follow the order in which the kernel
 * probed the disks, which may differ from the order of attachment.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/netlink.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../log.h"
#include "../clock.h"
#include "../protocol.h"
#include "guest.h"

/* Header of the SCSI "unit serial number" page; its fourth byte is the length. */
#define VPD_HEADER_BYTES 4
/* Interval of scans without an event, because events can be lost. */
#define RESCAN_MS 50
/* Longest serial number, including trailing blanks. */
#define SERIAL_BYTES_MAX 36
#define DISK_NAME_BYTES 16

static int events = -1;

void disks_open(void)
{
	struct sockaddr_nl address = {.nl_family = AF_NETLINK, .nl_groups = 1};
	events = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_KOBJECT_UEVENT);
	if (events < 0 || bind(events, (struct sockaddr *)&address, sizeof address) != 0)
		log_fatal("uevents: %s", strerror(errno));
}

/* Identified disks. Each disk is identified only once. */
static struct {
	char name[DISK_NAME_BYTES];
	char serial[SERIAL_BYTES_MAX + 1];
} known[LAYERS_COUNT_MAX + 1];
static unsigned known_count;

static bool is_known(const char *name)
{
	for (unsigned i = 0; i < known_count; i++)
		if (strcmp(known[i].name, name) == 0)
			return true;
	return false;
}

/* The file with the serial of a disk, and the length of the header before it; NULL for other block devices. */
static const char *serial_file(const char *name, int *header_bytes)
{
	bool scsi = strncmp(name, "sd", 2) == 0;
	*header_bytes = scsi ? VPD_HEADER_BYTES : 0;
	if (scsi)
		return "device/vpd_pg80";
	return strncmp(name, "vd", 2) == 0 ? "serial" : NULL;
}

static bool read_serial(const char *name, char serial[SERIAL_BYTES_MAX + 1])
{
	char path[320];
	char page[256];
	int header;
	const char *file = serial_file(name, &header);
	if (file == NULL)
		return false;
	snprintf(path, sizeof path, "/sys/block/%s/%s", name, file);
	int size = read_file(path, page, sizeof page);
	if (size <= header || size - header > SERIAL_BYTES_MAX)
		return false;
	size_t length = (size_t)(size - header);
	memcpy(serial, page + header, length);
	serial[length] = '\0';
	serial[strcspn(serial, " \n")] = '\0';
	return true;
}

/*
 * Attaching a disk makes the controller interrupt commands to earlier ones. The kernel asks a new disk for its size only
 * three times, and treats it as empty if it was interrupted each time. Then a rescan makes it ask again.
 */
static bool has_size(int fd, const char *name)
{
	char path[320];
	uint64_t size_bytes = 0;
	if (ioctl(fd, (int)BLKGETSIZE64, &size_bytes) == 0 && size_bytes > 0)
		return true;
	snprintf(path, sizeof path, "/sys/block/%s/device/rescan", name);
	if (strncmp(name, "sd", 2) == 0)
		write_file(path, "1");
	return ioctl(fd, (int)BLKGETSIZE64, &size_bytes) == 0 && size_bytes > 0;
}

static void identify(const char *name)
{
	char device[300];
	if (strlen(name) >= DISK_NAME_BYTES || is_known(name))
		return;
	if (known_count == sizeof known / sizeof known[0] || !read_serial(name, known[known_count].serial))
		return;
	snprintf(device, sizeof device, "/dev/%s", name);
	/* The device node appears shortly before the disk can be opened. */
	int fd = open(device, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	bool ready = has_size(fd, name);
	close(fd);
	if (ready)
		strcpy(known[known_count++].name, name);
}

static void scan(void)
{
	DIR *blocks = opendir("/sys/block");
	if (blocks == NULL)
		return;
	for (struct dirent *entry; (entry = readdir(blocks)) != NULL;)
		identify(entry->d_name);
	closedir(blocks);
}

static bool look_up(const char *serial, char *device, size_t size)
{
	for (unsigned i = 0; i < known_count; i++) {
		if (strcmp(known[i].serial, serial) != 0)
			continue;
		snprintf(device, size, "/dev/%s", known[i].name);
		return true;
	}
	return false;
}

bool disks_find(const char *serial, uint64_t deadline_ns, char *device, size_t size, struct problem *problem)
{
	char event[4096];
	if (look_up(serial, device, size))
		return true;
	for (;;) {
		/* Drained before the scan, so that a disk that appears after the scan wakes the poll. */
		while (recv(events, event, sizeof event, 0) > 0)
			continue;
		scan();
		if (look_up(serial, device, size))
			return true;
		if (clock_now() >= deadline_ns)
			return problem_set(problem, ENODEV, "disk %s did not appear", serial);
		struct pollfd wait = {.fd = events, .events = POLLIN};
		poll(&wait, 1, RESCAN_MS);
	}
}

bool disks_forget(struct problem *problem)
{
	char path[64];
	for (unsigned i = 0; i < known_count; i++) {
		snprintf(path, sizeof path, "/sys/block/%s/device/delete", known[i].name);
		/* Only SCSI disks can be deleted. */
		if (strncmp(known[i].name, "sd", 2) != 0 || !write_file(path, "1"))
			return problem_set(problem, ENOTSUP, "removal of disk %s", known[i].serial);
	}
	known_count = 0;
	return true;
}
