/* Stops writes to the scratch and allows them again, while commands run. */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "../platform.h"

static bool control(unsigned long request, const char *what, struct problem *problem)
{
	int fd = open("/s", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int result = fd < 0 ? -1 : ioctl(fd, (int)request, 0);
	int error = errno;
	close(fd);
	return result == 0 ? true : problem_set(problem, error, "%s", what);
}

bool platform_quiesce(struct problem *problem)
{
	return control(FIFREEZE, "quiescing the scratch", problem);
}

bool platform_thaw(struct problem *problem)
{
	return control(FITHAW, "thawing the scratch", problem);
}
