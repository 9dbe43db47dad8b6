/* The only program of the image in the release's data. Usage: tool write PATH TEXT | tool print TEXT ERROR CODE */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int put(int fd, const char *text)
{
	return write(fd, text, strlen(text)) == (ssize_t)strlen(text) ? 0 : 1;
}

int main(int argc, char **argv)
{
	if (argc == 4 && strcmp(argv[1], "write") == 0) {
		int fd = open(argv[2], O_WRONLY | O_CREAT | O_TRUNC, 0640);
		return fd < 0 ? 1 : put(fd, argv[3]);
	}
	if (argc == 5 && strcmp(argv[1], "print") == 0) {
		if (put(1, argv[2]) != 0 || put(2, argv[3]) != 0)
			return 1;
		return atoi(argv[4]);
	}
	return 64;
}
