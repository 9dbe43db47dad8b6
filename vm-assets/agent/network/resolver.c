#include "resolver.h"

#include <string.h>

#include "../budget.h"
#include "../bytes.h"
#include "../frame.h"
#include "../protocol.h"
#include "../session.h"
#include "../spec.h"
#include "clients.h"
#include "datagrams.h"
#include "names.h"
#include "question.h"

/* Later than every program that asked. The host answers each question; this bounds what a host that does not can hold. */
#define QUESTION_NS 30000000000ULL
/* Questions that are handled before other work. */
#define BATCH_COUNT 8
#define RESPONSES_END 16
#define RESPONSE_SERVER_FAILURE 2
#define LOCALHOST "localhost"

static const uint8_t loopback_ipv4[4] = {127, 0, 0, 1};

/* Questions that the host has not answered. */
static struct query {
	uint32_t id; /* 0: free */
	uint64_t end_ns;
	struct asker asker;
	struct question question;
} queries[QUESTIONS_COUNT_MAX];

static bool enabled;
static char hostname[HOSTNAME_BYTES_MAX + 1];

static void reply(const struct asker *asker, const struct question *question, const struct answer *answer)
{
	uint8_t message[ANSWER_BYTES_MAX];
	size_t size = question_answer(question, answer, message);
	if (asker->stream)
		clients_reply(asker, message, size);
	else
		datagrams_reply(asker, message, size);
}

static void forget(struct query *query)
{
	if (query->asker.stream)
		clients_drop(&query->asker);
	query->id = 0;
}

void resolver_switch(bool on)
{
	enabled = on;
	for (unsigned i = 0; i < QUESTIONS_COUNT_MAX; i++)
		if (queries[i].id != 0)
			forget(&queries[i]);
}

static void fail(const struct query *query)
{
	const struct answer failure = {.response = RESPONSE_SERVER_FAILURE};
	reply(&query->asker, &query->question, &failure);
}

void resolver_fail(void)
{
	for (unsigned i = 0; i < QUESTIONS_COUNT_MAX; i++) {
		if (queries[i].id != 0)
			fail(&queries[i]);
		queries[i].id = 0;
	}
}

void resolver_set_hostname(const char *name)
{
	size_t length = strlen(name);
	if (length > HOSTNAME_BYTES_MAX)
		return;
	/* Questions are compared in lower case. */
	for (size_t i = 0; i <= length; i++)
		hostname[i] = (char)(name[i] >= 'A' && name[i] <= 'Z' ? name[i] + ('a' - 'A') : name[i]);
}

/* A free query, or one that the host did not answer in time. */
static struct query *find_room(uint64_t now_ns)
{
	for (unsigned i = 0; i < QUESTIONS_COUNT_MAX; i++) {
		if (queries[i].id != 0 && queries[i].end_ns <= now_ns)
			forget(&queries[i]);
		if (queries[i].id == 0)
			return &queries[i];
	}
	return NULL;
}

static bool is_local(const struct question *question)
{
	const size_t length = sizeof LOCALHOST - 1;
	size_t size = question->name_bytes;
	if (hostname[0] != '\0' && strcmp(question->name, hostname) == 0)
		return true;
	return size >= length && strcmp(question->name + size - length, LOCALHOST) == 0 &&
	       (size == length || question->name[size - length - 1] == '.');
}

/* Finds the answer to the question for an address' name. Returns false when the question is for something else. */
static bool answer_reverse(const struct question *question, struct answer *answer)
{
	uint8_t address[ADDRESS_BYTES];
	if (question->type != TYPE_PTR || !question_reverse(question, address))
		return false;
	int name = names_of_address(address);
	if (name != NAMES_NONE) {
		*answer = (struct answer){.type = TYPE_PTR};
		answer->data = names_text(name, &answer->size);
	} else if (address_is_loopback(address)) {
		*answer = (struct answer){.type = TYPE_PTR, .data = LOCALHOST, .size = sizeof LOCALHOST - 1};
	} else {
		*answer = (struct answer){.response = RESPONSE_NO_NAME};
	}
	return true;
}

/* Finds the answer that does not depend on the host. Returns false when the host has to be asked. */
static bool answer_alone(const struct question *question, struct answer *answer)
{
	*answer = (struct answer){0};
	if (is_local(question)) {
		/* Images often have no /etc/hosts. */
		if (question->type == TYPE_A)
			*answer = (struct answer){.type = TYPE_A, .data = loopback_ipv4, .size = sizeof loopback_ipv4};
		return true;
	}
	if (answer_reverse(question, answer) || question->name_bytes == 0)
		return true;
	answer->response = RESPONSE_NO_NAME;
	return !enabled;
}

static void ask(struct query *query, uint64_t now_ns)
{
	uint8_t payload[2 + NAME_BYTES_MAX];
	const struct question *question = &query->question;
	query->id = session_guest_id();
	query->end_ns = now_ns + QUESTION_NS;
	if (query->id == 0) {
		fail(query);
		return;
	}
	put_u16(payload, question->type);
	memcpy(payload + 2, question->name, question->name_bytes);
	frame_send(AGENT_RESOLVE, query->id, payload, 2 + (size_t)question->name_bytes);
}

/* Handles a message, with room for a query. */
static void take(const uint8_t *message, size_t size, struct query *query, uint64_t now_ns)
{
	struct answer answer = {0};
	switch (question_read(message, size, &query->question, &answer.response)) {
	case READING_BAD:
		reply(&query->asker, &query->question, &answer);
		return;
	case READING_QUESTION:
		if (answer_alone(&query->question, &answer))
			reply(&query->asker, &query->question, &answer);
		else
			ask(query, now_ns);
		return;
	case READING_NOTHING:
	default:
		if (query->asker.stream)
			clients_drop(&query->asker);
	}
}

bool resolver_pump(uint64_t now_ns)
{
	uint8_t message[MESSAGE_BYTES_MAX];
	bool moved = false;
	unsigned empty = 0;
	clients_expire(now_ns);
	for (unsigned i = 0; i < BATCH_COUNT && empty < 2 && frame_can_answer(); i++) {
		struct query *query = find_room(now_ns);
		/* More questions wait in the sockets. */
		if (query == NULL)
			break;
		int size = i % 2 == 0 ? datagrams_read(message, &query->asker) : clients_read(message, &query->asker, now_ns);
		empty = size < 0 ? empty + 1 : 0;
		if (size < 0)
			continue;
		take(message, (size_t)size, query, now_ns);
		moved = true;
	}
	return moved;
}

bool resolver_resolved(uint32_t id, uint32_t response)
{
	uint8_t ipv4[4];
	struct query *query = NULL;
	if (response >= RESPONSES_END)
		return false;
	for (unsigned i = 0; i < QUESTIONS_COUNT_MAX && id != 0; i++)
		if (queries[i].id == id)
			query = &queries[i];
	if (query == NULL)
		return true;
	struct answer answer = {.response = (enum response_code)response};
	/* A name has no address of IPv6: the host chooses the family when a program connects. */
	if (response == RESPONSE_OK && query->question.type == TYPE_A) {
		int name = names_take(query->question.name, query->question.name_bytes);
		if (name == NAMES_NONE) {
			answer.response = RESPONSE_SERVER_FAILURE;
		} else {
			names_address(name, ipv4);
			answer.type = TYPE_A;
			answer.data = ipv4;
			answer.size = sizeof ipv4;
		}
	}
	query->id = 0;
	reply(&query->asker, &query->question, &answer);
	return true;
}

uint64_t resolver_deadline(void)
{
	uint64_t earliest = clients_deadline();
	for (unsigned i = 0; i < QUESTIONS_COUNT_MAX; i++) {
		/* While there is room, nothing waits for the end of a question. */
		if (queries[i].id == 0)
			return clients_deadline();
		if (queries[i].end_ns < earliest)
			earliest = queries[i].end_ns;
	}
	return earliest;
}
