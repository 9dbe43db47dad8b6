/* A clone starts with the clock and the random state of its template, so the host sends both. */
#include <errno.h>
#include <fcntl.h>
#include <linux/random.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "../platform.h"

bool platform_set_clock(uint64_t realtime_ns, struct problem *problem)
{
	struct timespec now = {
		.tv_sec = (time_t)(realtime_ns / 1000000000),
		.tv_nsec = (long)(realtime_ns % 1000000000),
	};
	if (clock_settime(CLOCK_REALTIME, &now) != 0)
		return problem_set(problem, errno, "clock");
	return true;
}

bool platform_reseed(const uint8_t *entropy, size_t size, struct problem *problem)
{
	struct {
		struct rand_pool_info info;
		uint8_t bytes[64];
	} pool;
	int fd = open("/dev/urandom", O_RDWR | O_CLOEXEC);
	if (fd < 0 || size > sizeof pool.bytes)
		return problem_set(problem, fd < 0 ? errno : E2BIG, "random device");
	pool.info.entropy_count = (int)size * 8;
	pool.info.buf_size = (int)size;
	memcpy(pool.bytes, entropy, size);
	/* The second call makes the generator use the entropy at once. */
	bool done = ioctl(fd, RNDADDENTROPY, &pool) == 0 && ioctl(fd, RNDRESEEDCRNG) == 0;
	int error = errno;
	close(fd);
	return done ? true : problem_set(problem, error, "reseed");
}
