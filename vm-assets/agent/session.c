#include "session.h"

#include <errno.h>
#include <sys/epoll.h>

#include "poller.h"
#include "protocol.h"

#define SESSIONS_COUNT \
	(PROCESSES_COUNT_MAX + TASKS_COUNT_MAX + CONNECTIONS_COUNT_MAX + FILES_COUNT_MAX + WATCHES_COUNT_MAX)
#define HASH_COUNT 512
/* Poller key of a session: this bit, its index in the table from bit 8, its watch from bit 24. */
#define KEY_SESSION 0x80U

_Static_assert((HASH_COUNT & (HASH_COUNT - 1)) == 0 && HASH_COUNT >= SESSIONS_COUNT, "ids are spread by a mask");
_Static_assert(SESSIONS_COUNT <= 1 << 16, "an index fits its bits of a key");

static struct session sessions[SESSIONS_COUNT];
static struct session *hashed[HASH_COUNT];
static const struct {
	unsigned first;
	unsigned count;
	const char *name;
} classes[] = {
	[SESSION_PROCESS] = {0, PROCESSES_COUNT_MAX, "processes"},
	[SESSION_TASK] = {PROCESSES_COUNT_MAX, TASKS_COUNT_MAX, "requests"},
	[SESSION_CONNECTION] = {PROCESSES_COUNT_MAX + TASKS_COUNT_MAX, CONNECTIONS_COUNT_MAX, "connections"},
	[SESSION_FILE] = {SESSIONS_COUNT - WATCHES_COUNT_MAX - FILES_COUNT_MAX, FILES_COUNT_MAX, "requests for files"},
	[SESSION_WATCH] = {SESSIONS_COUNT - WATCHES_COUNT_MAX, WATCHES_COUNT_MAX, "watches"},
};
#define CLASSES_COUNT (sizeof classes / sizeof classes[0])

/* Indexes of the open sessions, by class, so that free entries need not be searched. */
static struct {
	uint16_t indexes[CONNECTIONS_COUNT_MAX];
	unsigned count;
	unsigned turn;
} alive[CLASSES_COUNT];
_Static_assert(CONNECTIONS_COUNT_MAX >= SESSIONS_COUNT - CONNECTIONS_COUNT_MAX, "room for each");

static struct session **bucket(uint32_t id)
{
	return &hashed[id & (HASH_COUNT - 1)];
}

struct session *session_find(uint32_t id)
{
	struct session *session = *bucket(id);
	while (session != NULL && session->id != id)
		session = session->next;
	return session;
}

/* Returns NULL when the class is full. */
static struct session *open_slot(uint32_t id, const struct session_kind *kind)
{
	unsigned first = classes[kind->class].first;
	for (unsigned slot = 0; slot < classes[kind->class].count; slot++) {
		struct session *session = &sessions[first + slot];
		if (session->kind != NULL)
			continue;
		*session = (struct session){.kind = kind, .id = id, .slot = slot, .next = *bucket(id)};
		*bucket(id) = session;
		alive[kind->class].indexes[alive[kind->class].count++] = (uint16_t)(first + slot);
		return session;
	}
	return NULL;
}

struct session *session_open(uint32_t id, const struct session_kind *kind)
{
	if (session_find(id) != NULL) {
		frame_send_error(id, EEXIST, "session %u is alive", id);
		return NULL;
	}
	struct session *session = open_slot(id, kind);
	if (session == NULL)
		frame_send_error(id, EAGAIN, "%u %s are alive", classes[kind->class].count, classes[kind->class].name);
	return session;
}

uint32_t session_guest_id(void)
{
	static uint32_t last = SESSION_GUEST_BIT - 1;
	return last == UINT32_MAX ? 0 : ++last;
}

struct session *session_open_guest(const struct session_kind *kind)
{
	/* Full tables take no id. */
	if (session_count(kind->class) == classes[kind->class].count)
		return NULL;
	uint32_t id = session_guest_id();
	return id == 0 ? NULL : open_slot(id, kind);
}

struct session *session_at(enum session_class class, unsigned slot)
{
	return &sessions[classes[class].first + slot];
}

unsigned session_count(enum session_class class)
{
	return alive[class].count;
}

void session_close(struct session *session)
{
	enum session_class class = session->kind->class;
	unsigned index = (unsigned)(session - sessions);
	session->kind->close(session);
	struct session **link = bucket(session->id);
	while (*link != session)
		link = &(*link)->next;
	*link = session->next;
	unsigned at = 0;
	while (alive[class].indexes[at] != index)
		at++;
	alive[class].indexes[at] = alive[class].indexes[--alive[class].count];
	session->kind = NULL;
}

void session_done(struct session *session, uint64_t value)
{
	frame_send_done(session->id, value);
	session_close(session);
}

void session_fail(struct session *session, const struct problem *problem)
{
	frame_send_problem(session->id, problem);
	session_close(session);
}

bool session_any(void)
{
	for (unsigned class = 0; class < CLASSES_COUNT; class++)
		if (alive[class].count > 0)
			return true;
	return false;
}

bool session_all_settled(void)
{
	for (unsigned class = 0; class < CLASSES_COUNT; class++)
		for (unsigned i = 0; i < alive[class].count; i++) {
			const struct session *session = &sessions[alive[class].indexes[i]];
			if (session->kind->settled == NULL || !session->kind->settled(session))
				return false;
		}
	return true;
}

void session_lose_host(void)
{
	for (unsigned class = 0; class < CLASSES_COUNT; class++)
		/* From the end, because the last session takes the place of one that closes. */
		for (unsigned i = alive[class].count; i-- > 0;) {
			struct session *session = &sessions[alive[class].indexes[i]];
			if (session->kind->lost == NULL)
				session_close(session);
			else
				session->kind->lost(session);
		}
}

bool session_all_lasting(void)
{
	for (unsigned class = 0; class < CLASSES_COUNT; class++)
		if (class != SESSION_PROCESS && alive[class].count > 0)
			return false;
	return true;
}

unsigned session_resume(uint8_t *records)
{
	unsigned count = alive[SESSION_PROCESS].count;
	for (unsigned i = 0; i < count; i++) {
		struct session *session = &sessions[alive[SESSION_PROCESS].indexes[i]];
		session->kind->resume(session, records + (size_t)i * SESSION_BYTES);
	}
	return count;
}

static uint64_t key_of(const struct session *session, enum watch watch)
{
	return KEY_SESSION | (uint64_t)(session - sessions) << 8 | (uint64_t)watch << 24;
}

static uint32_t events_of(enum watch watch)
{
	uint32_t events = watch == WATCH_INPUT ? EPOLLOUT | EPOLLET : EPOLLIN | EPOLLET;
	/* After one event an output is not watched until it was read empty. */
	if (watch == WATCH_OUTPUT || watch == WATCH_ERRORS)
		events |= EPOLLONESHOT;
	return events;
}

void session_watch(const struct session *session, int fd, enum watch watch)
{
	poller_add(fd, events_of(watch), key_of(session, watch));
}

void session_watch_again(const struct session *session, int fd, enum watch watch)
{
	poller_change(fd, events_of(watch), key_of(session, watch));
}

bool session_ready(uint64_t key)
{
	if ((key & KEY_SESSION) == 0)
		return false;
	struct session *session = &sessions[key >> 8 & 0xffff];
	/* The event may be older than the end of the session. */
	if (session->kind != NULL)
		session->kind->ready(session, (enum watch)(key >> 24));
	return true;
}

void session_reaped(pid_t pid, int status, const struct rusage *usage)
{
	for (unsigned class = 0; class < CLASSES_COUNT; class++)
		for (unsigned i = 0; i < alive[class].count; i++) {
			struct session *session = &sessions[alive[class].indexes[i]];
			if (session->kind->reaped != NULL && session->kind->reaped(session, pid, status, usage))
				return;
		}
}

bool session_grant(uint32_t id, uint32_t stream, uint32_t bytes)
{
	if (stream == STREAM_STDIN || stream > STREAM_DATA)
		return false;
	struct session *session = session_find(id);
	/* The session has just ended; the host sent the credit before it received the last frame. */
	if (session == NULL)
		return true;
	return session->kind->grant != NULL && session->kind->grant(session, stream, bytes);
}

/* Pumps each session of a class once. Works on a copy of the list, because a session may end. */
static bool pump_class(unsigned class, uint64_t now_ns)
{
	uint16_t indexes[CONNECTIONS_COUNT_MAX];
	unsigned count = alive[class].count;
	bool moved = false;
	if (count == 0)
		return false;
	/* Rotate the order, because the first session finds most room in the output buffer. */
	unsigned turn = alive[class].turn++;
	for (unsigned i = 0; i < count; i++)
		indexes[i] = alive[class].indexes[(turn + i) % count];
	for (unsigned i = 0; i < count; i++) {
		struct session *session = &sessions[indexes[i]];
		if (session->kind != NULL && session->kind->pump != NULL)
			moved |= session->kind->pump(session, now_ns);
	}
	return moved;
}

bool session_pump(uint64_t now_ns)
{
	bool moved = false;
	for (unsigned class = 0; class < CLASSES_COUNT; class++)
		moved |= pump_class(class, now_ns);
	return moved;
}

uint64_t session_deadline(void)
{
	uint64_t earliest = UINT64_MAX;
	for (unsigned class = 0; class < CLASSES_COUNT; class++)
		for (unsigned i = 0; i < alive[class].count; i++) {
			const struct session *session = &sessions[alive[class].indexes[i]];
			uint64_t deadline = session->kind->deadline == NULL ? UINT64_MAX : session->kind->deadline(session);
			if (deadline < earliest)
				earliest = deadline;
		}
	return earliest;
}
