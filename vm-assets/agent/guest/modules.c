/* Loads kernel modules in the order of the lists in the initramfs. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../log.h"
#include "guest.h"

#define LIST_BYTES_MAX 4096

/* /modules of the initramfs, which stays open after the agent has left the initramfs. */
static int directory = -1;

static void load(const char *name)
{
	int fd = openat(directory, name, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		log_fatal("module %s: %s", name, strerror(errno));
	if (syscall(SYS_finit_module, fd, "", 0) != 0 && errno != EEXIST)
		log_fatal("module %s: %s", name, strerror(errno));
	close(fd);
	/* The file occupies memory of the guest. */
	unlinkat(directory, name, 0);
}

void modules_open(void)
{
	directory = open("/modules", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (directory < 0)
		log_fatal("/modules: %s", strerror(errno));
}

void modules_load(const char *list)
{
	char names[LIST_BYTES_MAX];
	int fd = openat(directory, list, O_RDONLY | O_CLOEXEC);
	ssize_t size = fd < 0 ? -1 : read(fd, names, sizeof names - 1);
	if (size < 0)
		log_fatal("module list %s: %s", list, strerror(errno));
	close(fd);
	names[size] = '\0';
	for (char *rest = names, *name; (name = strsep(&rest, "\n")) != NULL;)
		if (name[0] != '\0')
			load(name);
}

void modules_forget(void)
{
	close(directory);
	directory = -1;
}
