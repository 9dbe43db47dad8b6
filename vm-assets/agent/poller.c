#include "poller.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

#include "log.h"

#define EVENTS_COUNT_MAX 32

static int set = -1;

void poller_open(void)
{
	set = epoll_create1(EPOLL_CLOEXEC);
	if (set < 0)
		log_fatal("epoll: %s", strerror(errno));
}

static void control(int operation, int fd, uint32_t events, uint64_t key)
{
	struct epoll_event event = {.events = events, .data.u64 = key};
	if (epoll_ctl(set, operation, fd, &event) != 0)
		log_fatal("epoll: %s", strerror(errno));
}

void poller_add(int fd, uint32_t events, uint64_t key)
{
	control(EPOLL_CTL_ADD, fd, events, key);
}

void poller_change(int fd, uint32_t events, uint64_t key)
{
	control(EPOLL_CTL_MOD, fd, events, key);
}

unsigned poller_wait(uint64_t *keys, unsigned keys_max, int timeout_ms)
{
	struct epoll_event events[EVENTS_COUNT_MAX];
	unsigned most = keys_max < EVENTS_COUNT_MAX ? keys_max : EVENTS_COUNT_MAX;
	int count = epoll_wait(set, events, (int)most, timeout_ms);
	for (int i = 0; i < count; i++)
		keys[i] = events[i].data.u64;
	return count > 0 ? (unsigned)count : 0;
}
