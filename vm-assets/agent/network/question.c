#include "question.h"

#include <assert.h>

#define LABEL_BYTES_MAX 63
#define CLASS_INTERNET 1
/* Flags in the third and fourth byte of a message. */
#define FLAG_RESPONSE 0x80
#define FLAGS_OPERATION 0x78
#define FLAG_AUTHORITATIVE 0x04
#define FLAG_RECURSION_DESIRED 0x01
#define FLAG_RECURSION_AVAILABLE 0x80
#define RECORD_TTL_S 60
#define RECORD_HEAD_BYTES 12
/* A pointer to the name of the question. */
#define POINTER_QUESTION 0xc00c
#define REVERSE_IPV4 ".in-addr.arpa"
#define REVERSE_IPV6 ".ip6.arpa"

/* The characters of names that the host accepts. Other names cannot exist. */
static bool is_plain(char byte)
{
	return (byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9') || byte == '-' || byte == '_';
}

static char lower(uint8_t byte)
{
	return (char)(byte >= 'A' && byte <= 'Z' ? byte + ('a' - 'A') : byte);
}

/* Reads the name of the question, and returns the offset after it; 0 when it is malformed. `plain`: it could exist. */
static size_t read_name(const uint8_t *message, size_t size, struct question *question, bool *plain)
{
	size_t at = MESSAGE_HEADER_BYTES;
	size_t length = 0;
	*plain = true;
	for (;;) {
		if (at >= size)
			return 0;
		size_t label = message[at++];
		if (label == 0)
			break;
		size_t dot = length > 0 ? 1 : 0;
		if (label > LABEL_BYTES_MAX || label > size - at || length + dot + label > NAME_BYTES_MAX)
			return 0;
		if (dot > 0)
			question->name[length++] = '.';
		for (size_t end = at + label; at < end; at++) {
			question->name[length] = lower(message[at]);
			*plain &= is_plain(question->name[length++]);
		}
	}
	question->name[length] = '\0';
	question->name_bytes = (uint8_t)length;
	return at;
}

enum reading question_read(const uint8_t *message, size_t size, struct question *question, enum response_code *response)
{
	bool plain;
	if (size < MESSAGE_HEADER_BYTES || (message[2] & FLAG_RESPONSE) != 0)
		return READING_NOTHING;
	*question = (struct question){.message_bytes = MESSAGE_HEADER_BYTES};
	/* Until the question is known to be well-formed, an answer has only the header. */
	memcpy(question->message, message, MESSAGE_HEADER_BYTES);
	*response = RESPONSE_NOT_IMPLEMENTED;
	if ((message[2] & FLAGS_OPERATION) != 0)
		return READING_BAD;
	*response = RESPONSE_FORMAT;
	size_t end = get_net16(message + 4) == 1 ? read_name(message, size, question, &plain) : 0;
	if (end == 0 || size - end < 4)
		return READING_BAD;
	question->message_bytes = (uint16_t)(end + 4);
	memcpy(question->message, message, end + 4);
	question->type = get_net16(message + end);
	*response = RESPONSE_REFUSED;
	if (get_net16(message + end + 2) != CLASS_INTERNET)
		return READING_BAD;
	*response = RESPONSE_NO_NAME;
	return plain ? READING_QUESTION : READING_BAD;
}

/* Writes a name of dotted text, and returns its length on the wire. */
static size_t write_name(const char *name, size_t size, uint8_t *at)
{
	uint8_t *length = at;
	size_t used = 1;
	*length = 0;
	for (size_t i = 0; i < size; i++) {
		if (name[i] == '.') {
			length = at + used++;
			*length = 0;
		} else {
			at[used++] = (uint8_t)name[i];
			*length += 1;
		}
	}
	at[used++] = 0;
	return used;
}

size_t question_answer(const struct question *question, const struct answer *answer, uint8_t *message)
{
	size_t size = question->message_bytes;
	memcpy(message, question->message, size);
	message[2] = (uint8_t)(FLAG_RESPONSE | FLAG_AUTHORITATIVE | (message[2] & (FLAGS_OPERATION | FLAG_RECURSION_DESIRED)));
	message[3] = (uint8_t)(FLAG_RECURSION_AVAILABLE | answer->response);
	memset(message + 4, 0, 8);
	message[5] = size > MESSAGE_HEADER_BYTES ? 1 : 0;
	if (answer->type == 0)
		return size;
	uint8_t *record = message + size;
	put_net16(record, POINTER_QUESTION);
	put_net16(record + 2, answer->type);
	put_net16(record + 4, CLASS_INTERNET);
	put_net32(record + 6, RECORD_TTL_S);
	size_t data = answer->size;
	if (answer->type == TYPE_PTR)
		data = write_name(answer->data, answer->size, record + RECORD_HEAD_BYTES);
	else
		memcpy(record + RECORD_HEAD_BYTES, answer->data, data);
	put_net16(record + 10, (uint16_t)data);
	message[7] = 1;
	assert(size + RECORD_HEAD_BYTES + data <= ANSWER_BYTES_MAX);
	return size + RECORD_HEAD_BYTES + data;
}

static bool ends_with(const struct question *question, const char *end, size_t *rest)
{
	size_t length = strlen(end);
	if (question->name_bytes < length || memcmp(question->name + question->name_bytes - length, end, length) != 0)
		return false;
	*rest = question->name_bytes - length;
	return true;
}

/* Reads d.c.b.a of the name of a.b.c.d. */
static bool reverse_ipv4(const char *text, size_t size, uint8_t address[ADDRESS_BYTES])
{
	uint8_t bytes[4];
	size_t at = 0;
	for (int i = 3; i >= 0; i--) {
		unsigned value = 0;
		size_t first = at;
		for (; at < size && text[at] >= '0' && text[at] <= '9' && at - first < 3; at++)
			value = value * 10 + (unsigned)(text[at] - '0');
		if (at == first || value > 255 || (i > 0 && (at >= size || text[at++] != '.')))
			return false;
		bytes[i] = (uint8_t)value;
	}
	address_of_ipv4(address, bytes);
	return at == size;
}

static int hexadecimal(char digit)
{
	if (digit >= '0' && digit <= '9')
		return digit - '0';
	return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/* Reads 32 digits, the last one of the address first. */
static bool reverse_ipv6(const char *text, size_t size, uint8_t address[ADDRESS_BYTES])
{
	if (size != 4 * ADDRESS_BYTES - 1)
		return false;
	for (size_t i = 0; i < ADDRESS_BYTES; i++) {
		const char *at = text + 4 * (ADDRESS_BYTES - 1 - i);
		int low = hexadecimal(at[0]);
		int high = hexadecimal(at[2]);
		if (low < 0 || high < 0 || at[1] != '.' || (i > 0 && at[3] != '.'))
			return false;
		address[i] = (uint8_t)(high << 4 | low);
	}
	return true;
}

bool question_reverse(const struct question *question, uint8_t address[ADDRESS_BYTES])
{
	size_t rest;
	if (ends_with(question, REVERSE_IPV4, &rest))
		return reverse_ipv4(question->name, rest, address);
	return ends_with(question, REVERSE_IPV6, &rest) && reverse_ipv6(question->name, rest, address);
}
