/* Messages of the domain name system. The functions have no state and make no system calls. */
#ifndef COPPICE_NETWORK_QUESTION_H
#define COPPICE_NETWORK_QUESTION_H

#include <stddef.h>
#include <stdint.h>

#include "../protocol.h"
#include "address.h"

/* Longest message with a question that is accepted. Clients may add options, which are ignored. */
#define MESSAGE_BYTES_MAX 512
#define MESSAGE_HEADER_BYTES 12
/* Longest header and question: a name on the wire has at most 255 bytes. */
#define QUESTION_BYTES_MAX (MESSAGE_HEADER_BYTES + 255 + 4)
/* Longest answer: a question, and one record with a name. */
#define ANSWER_BYTES_MAX (QUESTION_BYTES_MAX + 12 + 255)

enum question_type { TYPE_A = 1, TYPE_PTR = 12, TYPE_AAAA = 28 };
enum response_code { RESPONSE_OK = 0, RESPONSE_FORMAT = 1, RESPONSE_NO_NAME = 3, RESPONSE_NOT_IMPLEMENTED = 4, RESPONSE_REFUSED = 5 };

struct question {
	uint16_t type;
	uint16_t message_bytes;
	uint8_t message[QUESTION_BYTES_MAX]; /* header and question, to be repeated in the answer */
	uint8_t name_bytes;
	char name[NAME_BYTES_MAX + 1]; /* in lower case, without a final dot */
};

enum reading {
	READING_NOTHING, /* not a question: it gets no answer */
	READING_BAD, /* to be answered with `response` */
	READING_QUESTION,
};

/* Reads a message, whose bytes may be anything. */
enum reading question_read(const uint8_t *message, size_t size, struct question *question, enum response_code *response);

/* The record of an answer. */
struct answer {
	enum response_code response;
	uint16_t type; /* 0: no record */
	const void *data; /* 4 bytes of an IPv4 address, 16 of IPv6, or a name in text */
	size_t size;
};

/* Writes the answer, of at most ANSWER_BYTES_MAX, and returns its length. */
size_t question_answer(const struct question *question, const struct answer *answer, uint8_t *message);

/* Reads the address of a reverse name. Returns false when it is not one. */
bool question_reverse(const struct question *question, uint8_t address[ADDRESS_BYTES]);

#endif
