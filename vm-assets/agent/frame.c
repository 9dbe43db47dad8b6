#include "frame.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "bytes.h"
#include "protocol.h"

#define INPUT_BYTES (2 * (FRAME_HEADER_BYTES + FRAME_PAYLOAD_BYTES_MAX))
#define HOST_LAST HOST_RECEIPT
#define OUTPUT_BYTES (4 * (FRAME_HEADER_BYTES + FRAME_PAYLOAD_BYTES_MAX))

_Static_assert(FRAME_HEADER_BYTES == 4 + 2 + 2 + 4, "length, type, zero, session");
_Static_assert(FRAME_RESERVE_BYTES > 2 * (FRAME_HEADER_BYTES + 8 + FRAME_TEXT_BYTES_MAX), "an answer and a log line fit");

static const struct transport nothing = {.fd = -1};
static const struct transport *line = &nothing;
static struct {
	uint8_t bytes[INPUT_BYTES];
	size_t start;
	size_t end;
} input;
static struct {
	uint8_t bytes[OUTPUT_BYTES];
	size_t start;
	size_t end;
} output;

static bool muted;

void frame_open(const struct transport *transport)
{
	line = transport;
}

void frame_reset(void)
{
	input.start = 0;
	input.end = 0;
	output.start = 0;
	output.end = 0;
}

void frame_mute(bool mute)
{
	muted = mute;
}

enum frame_fill frame_fill(void)
{
	if (input.start > 0) {
		memmove(input.bytes, input.bytes + input.start, input.end - input.start);
		input.end -= input.start;
		input.start = 0;
	}
	if (input.end == sizeof input.bytes)
		return FILL_NOTHING;
	ssize_t count = transport_read(line, input.bytes + input.end, sizeof input.bytes - input.end);
	if (count > 0) {
		input.end += (size_t)count;
		return FILL_SOME;
	}
	if (count == TRANSPORT_AWAY)
		return FILL_AWAY;
	return count == TRANSPORT_CLOSED ? FILL_CLOSED : FILL_NOTHING;
}

enum frame_status frame_next(struct frame *frame)
{
	const uint8_t *at = input.bytes + input.start;
	size_t available = input.end - input.start;
	if (available < FRAME_HEADER_BYTES)
		return FRAME_NONE;
	frame->length = get_u32(at);
	frame->type = get_u16(at + 4);
	frame->session = get_u32(at + 8);
	frame->payload = at + FRAME_HEADER_BYTES;
	if (frame->length > FRAME_PAYLOAD_BYTES_MAX || get_u16(at + 6) != 0)
		return FRAME_BAD;
	if (frame->type < HOST_SYNC || frame->type > HOST_LAST)
		return FRAME_BAD;
	return available - FRAME_HEADER_BYTES < frame->length ? FRAME_NONE : FRAME_READY;
}

void frame_done(const struct frame *frame)
{
	input.start += FRAME_HEADER_BYTES + frame->length;
	assert(input.start <= input.end);
}

/* Free bytes at the end of the output buffer, after the pending bytes were moved to its front. */
static size_t output_free(void)
{
	if (output.start == output.end) {
		output.start = 0;
		output.end = 0;
	} else if (output.start > sizeof output.bytes / 2) {
		memmove(output.bytes, output.bytes + output.start, output.end - output.start);
		output.end -= output.start;
		output.start = 0;
	}
	return sizeof output.bytes - output.end;
}

size_t frame_room(void)
{
	size_t available = output_free();
	if (available <= FRAME_RESERVE_BYTES + FRAME_HEADER_BYTES)
		return 0;
	size_t room = available - FRAME_RESERVE_BYTES - FRAME_HEADER_BYTES;
	return room < FRAME_PAYLOAD_BYTES_MAX ? room : FRAME_PAYLOAD_BYTES_MAX;
}

bool frame_can_answer(void)
{
	return output_free() >= FRAME_RESERVE_BYTES;
}

uint8_t *frame_payload(void)
{
	return output.bytes + output.end + FRAME_HEADER_BYTES;
}

void frame_commit(uint16_t type, uint32_t session, size_t length)
{
	assert(length <= FRAME_PAYLOAD_BYTES_MAX);
	assert(output.end + FRAME_HEADER_BYTES + length <= sizeof output.bytes);
	if (muted)
		return;
	uint8_t *at = output.bytes + output.end;
	put_u32(at, (uint32_t)length);
	put_u16(at + 4, type);
	put_u16(at + 6, 0);
	put_u32(at + 8, session);
	output.end += FRAME_HEADER_BYTES + length;
}

void frame_send(uint16_t type, uint32_t session, const void *payload, size_t length)
{
	/* Every caller has checked frame_can_answer. */
	size_t available = output_free();
	assert(available >= FRAME_HEADER_BYTES + length);
	if (length > 0)
		memcpy(frame_payload(), payload, length);
	frame_commit(type, session, length);
}

void frame_send_done(uint32_t session, uint64_t value)
{
	uint8_t payload[8];
	put_u64(payload, value);
	frame_send(AGENT_DONE, session, payload, sizeof payload);
}

void frame_send_error(uint32_t session, int error, const char *format, ...)
{
	uint8_t payload[8 + FRAME_TEXT_BYTES_MAX];
	va_list arguments;
	va_start(arguments, format);
	int length = vsnprintf((char *)payload + 8, FRAME_TEXT_BYTES_MAX, format, arguments);
	va_end(arguments);
	if (length < 0)
		length = 0;
	if (length >= FRAME_TEXT_BYTES_MAX)
		length = FRAME_TEXT_BYTES_MAX - 1;
	put_u32(payload, (uint32_t)error);
	put_u32(payload + 4, 0);
	frame_send(AGENT_ERROR, session, payload, 8 + (size_t)length);
}

void frame_send_problem(uint32_t session, const struct problem *problem)
{
	frame_send_error(session, problem->error, "%s", problem->text);
}

bool frame_flush(void)
{
	while (output.start < output.end) {
		ssize_t count = transport_write(line, output.bytes + output.start, output.end - output.start);
		if (count == TRANSPORT_AGAIN)
			return true;
		if (count < 0)
			return false;
		output.start += (size_t)count;
	}
	return true;
}

bool frame_pending(void)
{
	return output.start < output.end;
}
