/* Frames over the transport: a decoder that never trusts a length, and an output buffer of fixed size. */
#ifndef COPPICE_FRAME_H
#define COPPICE_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "problem.h"
#include "transport.h"

/* Room kept for answers, so that a request is taken only when its answer fits. */
#define FRAME_RESERVE_BYTES 4096
/* Longest text of an ERROR or LOG frame. */
#define FRAME_TEXT_BYTES_MAX 1024

struct frame {
	uint32_t session;
	uint16_t type;
	uint32_t length;
	const uint8_t *payload;
};

enum frame_status { FRAME_NONE, FRAME_READY, FRAME_BAD };
enum frame_fill { FILL_SOME, FILL_NOTHING, FILL_CLOSED };

void frame_open(const struct transport *transport);
/* Forgets what was under way on a stream that ended: the next one starts at a frame's first byte. */
void frame_reset(void);

/* Reads what the transport has and the buffer holds. */
enum frame_fill frame_fill(void);
/* The next whole frame; it is valid until frame_done. BAD: a header that no host may send. */
enum frame_status frame_next(struct frame *frame);
void frame_done(const struct frame *frame);

/* Largest payload that can be sent now without touching the reserve; 0 when none. */
size_t frame_room(void);
/* True when the reserve is whole. */
bool frame_can_answer(void);
/* Where the payload of the next frame goes, for payloads that are read in place; then frame_commit. */
uint8_t *frame_payload(void);
void frame_commit(uint16_t type, uint32_t session, size_t length);
/* Sends a small frame from the reserve. */
void frame_send(uint16_t type, uint32_t session, const void *payload, size_t length);
void frame_send_done(uint32_t session, uint64_t value);
/* ERROR: the error number and a text that names the step. */
void frame_send_error(uint32_t session, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));
void frame_send_problem(uint32_t session, const struct problem *problem);

/* Writes what the transport takes. False: the stream is closed. */
bool frame_flush(void);
bool frame_pending(void);

#endif
