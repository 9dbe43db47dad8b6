#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "guest.h"

bool write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	ssize_t count = write(fd, text, strlen(text));
	int error = errno;
	close(fd);
	errno = error;
	return count == (ssize_t)strlen(text);
}

int read_file(const char *path, char *buffer, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	ssize_t count = read(fd, buffer, size - 1);
	close(fd);
	if (count < 0)
		return -1;
	buffer[count] = '\0';
	return (int)count;
}
