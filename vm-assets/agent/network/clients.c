#include "clients.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../budget.h"
#include "../poller.h"
#include "question.h"
#include "source.h"

/* Before each message there is its length. */
#define LENGTH_BYTES 2
#define IDLE_NS 10000000000ULL

struct client {
	bool used;
	bool readable;
	bool ended; /* it sends no more questions */
	int fd;
	uint32_t number;
	unsigned pending; /* questions without an answer */
	uint64_t deadline_ns;
	size_t size;
	uint8_t bytes[LENGTH_BYTES + MESSAGE_BYTES_MAX];
};

static struct client clients[QUESTION_CLIENTS_COUNT_MAX];
static int listener_fd = -1;
static bool acceptable;
static uint32_t last_number;
static unsigned turn;

void clients_open(int listener)
{
	listener_fd = listener;
	acceptable = true;
	poller_add(listener, EPOLLIN | EPOLLET, network_key(SOURCE_CLIENT_LISTENER, 0));
}

void clients_accept_ready(void)
{
	acceptable = true;
}

void clients_ready(unsigned slot)
{
	/* The event may belong to an earlier client; then there is nothing to read. */
	if (slot < QUESTION_CLIENTS_COUNT_MAX)
		clients[slot].readable = true;
}

static void client_close(struct client *client)
{
	if (client->used)
		close(client->fd);
	client->used = false;
}

/* A free slot, or that of the client that was idle for longest. */
static struct client *make_room(void)
{
	struct client *oldest = &clients[0];
	for (unsigned i = 0; i < QUESTION_CLIENTS_COUNT_MAX; i++) {
		if (!clients[i].used)
			return &clients[i];
		if (clients[i].deadline_ns < oldest->deadline_ns)
			oldest = &clients[i];
	}
	client_close(oldest);
	return oldest;
}

static void accept_one(uint64_t now_ns)
{
	int fd = accept4(listener_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (fd < 0) {
		acceptable = errno != EAGAIN;
		return;
	}
	struct client *client = make_room();
	*client = (struct client){
		.used = true, .readable = true, .fd = fd, .number = ++last_number, .deadline_ns = now_ns + IDLE_NS};
	poller_add(fd, EPOLLIN | EPOLLRDHUP | EPOLLET, network_key(SOURCE_CLIENT, (unsigned)(client - clients)));
}

/* The length of the next complete message; -1: it is incomplete, or has an impossible length. */
static int complete(const struct client *client)
{
	if (client->size < LENGTH_BYTES)
		return -1;
	size_t length = get_net16(client->bytes);
	return client->size - LENGTH_BYTES >= length ? (int)length : -1;
}

/* Reads once, and closes a client that has sent nonsense, or has ended. */
static void receive(struct client *client, uint64_t now_ns)
{
	ssize_t count = 0;
	if (!client->ended)
		count = recv(client->fd, client->bytes + client->size, sizeof client->bytes - client->size, MSG_DONTWAIT);
	if (count < 0 && errno == EINTR)
		return;
	if (count < 0 && errno == EAGAIN) {
		client->readable = false;
		return;
	}
	if (count > 0) {
		client->size += (size_t)count;
		client->deadline_ns = now_ns + IDLE_NS;
		if (client->size < LENGTH_BYTES || get_net16(client->bytes) <= MESSAGE_BYTES_MAX)
			return;
	}
	client->readable = false;
	client->ended = true;
	if (count != 0 || client->pending == 0)
		client_close(client);
}

int clients_read(uint8_t *message, struct asker *asker, uint64_t now_ns)
{
	if (acceptable)
		accept_one(now_ns);
	turn++;
	for (unsigned i = 0; i < QUESTION_CLIENTS_COUNT_MAX; i++) {
		struct client *client = &clients[(turn + i) % QUESTION_CLIENTS_COUNT_MAX];
		if (client->used && client->readable && complete(client) < 0)
			receive(client, now_ns);
		int length = client->used ? complete(client) : -1;
		if (length < 0)
			continue;
		size_t taken = LENGTH_BYTES + (size_t)length;
		memcpy(message, client->bytes + LENGTH_BYTES, (size_t)length);
		memmove(client->bytes, client->bytes + taken, client->size - taken);
		client->size -= taken;
		client->pending++;
		*asker = (struct asker){
			.stream = true, .slot = (unsigned)(client - clients), .number = client->number};
		return length;
	}
	return -1;
}

static struct client *find(const struct asker *asker)
{
	struct client *client = &clients[asker->slot];
	return client->used && client->number == asker->number ? client : NULL;
}

void clients_reply(const struct asker *asker, const uint8_t *message, size_t size)
{
	struct client *client = find(asker);
	uint8_t bytes[LENGTH_BYTES + ANSWER_BYTES_MAX];
	if (client == NULL)
		return;
	put_net16(bytes, (uint16_t)size);
	memcpy(bytes + LENGTH_BYTES, message, size);
	client->pending--;
	/* A client that reads no answers is not waited for. */
	bool sent = send(client->fd, bytes, LENGTH_BYTES + size, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)(LENGTH_BYTES + size);
	if (!sent || (client->ended && client->pending == 0 && complete(client) < 0))
		client_close(client);
}

void clients_drop(const struct asker *asker)
{
	struct client *client = find(asker);
	if (client != NULL)
		client_close(client);
}

void clients_expire(uint64_t now_ns)
{
	for (unsigned i = 0; i < QUESTION_CLIENTS_COUNT_MAX; i++)
		if (clients[i].used && clients[i].deadline_ns <= now_ns)
			client_close(&clients[i]);
}

uint64_t clients_deadline(void)
{
	uint64_t earliest = UINT64_MAX;
	for (unsigned i = 0; i < QUESTION_CLIENTS_COUNT_MAX; i++)
		if (clients[i].used && clients[i].deadline_ns < earliest)
			earliest = clients[i].deadline_ns;
	return earliest;
}
