/* Frames over the transport: a decoder that trusts no length, and an output buffer of fixed size. */
#ifndef COPPICE_FRAME_H
#define COPPICE_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "problem.h"
#include "transport.h"

/* Output space reserved for answers: a request is handled only when its answer fits. */
#define FRAME_RESERVE_BYTES 8192
/* Longest text of an ERROR or LOG frame, in bytes. */
#define FRAME_TEXT_BYTES_MAX 1024

struct frame {
	uint32_t session;
	uint16_t type;
	uint32_t length;
	const uint8_t *payload;
};

enum frame_status { FRAME_NONE, FRAME_READY, FRAME_BAD };
/* FILL_AWAY: no host is at the port. */
enum frame_fill { FILL_SOME, FILL_NOTHING, FILL_AWAY, FILL_CLOSED };

void frame_open(const struct transport *transport);
/* Discards what is pending, and half a frame of the host, when a stream ended: the next one starts with a complete frame. */
void frame_reset(void);

/* While muted, frames are dropped as if a host had received them. Those that are pending are not. */
void frame_mute(bool mute);

/* Reads from the transport as much as fits the buffer. */
enum frame_fill frame_fill(void);
/* The next complete frame, valid until frame_done. FRAME_BAD: the header is invalid. */
enum frame_status frame_next(struct frame *frame);
void frame_done(const struct frame *frame);

/* Largest payload that can be sent now without using the reserve; 0 when none. */
size_t frame_room(void);
/* True when the whole reserve is free. */
bool frame_can_answer(void);
/* Position for the payload of the next frame, for payloads that are read in place; frame_commit must follow. */
uint8_t *frame_payload(void);
void frame_commit(uint16_t type, uint32_t session, size_t length);
/* Sends a small frame, which may use the reserve. */
void frame_send(uint16_t type, uint32_t session, const void *payload, size_t length);
void frame_send_done(uint32_t session, uint64_t value);
/* Sends ERROR with an errno and a text that names the step. */
void frame_send_error(uint32_t session, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));
void frame_send_problem(uint32_t session, const struct problem *problem);

/* Writes as much as the transport accepts. Returns false when the stream is closed. */
bool frame_flush(void);
bool frame_pending(void);

#endif
