#include "host.h"

#include <errno.h>
#include <string.h>
#include <sys/utsname.h>

#include "bytes.h"
#include "network/network.h"
#include "protocol.h"
#include "session.h"
#include "steps.h"

#define RESUMED_FIXED_BYTES 16
_Static_assert(2 * FRAME_HEADER_BYTES + RESUMED_FIXED_BYTES + PROCESSES_COUNT_MAX * SESSION_BYTES + FRAME_TEXT_BYTES_MAX <=
		       FRAME_RESERVE_BYTES,
	"RESUMED and a log line fit");

static bool awaited;
static struct {
	bool asked;
	uint32_t session;
	uint64_t nonce;
} resume;

static void set_awaited(bool await)
{
	awaited = await;
	frame_mute(await);
}

bool host_awaited(void)
{
	return awaited;
}

bool host_resumes(void)
{
	return resume.asked;
}

/* Ends what only this host could complete. The frames of these ends are not sent. */
static void let_go(void)
{
	set_awaited(true);
	resume.asked = false;
	steps_end_hold();
	session_lose_host();
	network_lose_host();
}

void host_lose(void)
{
	frame_reset();
	let_go();
}

void host_meet(void)
{
	struct utsname name;
	uint8_t payload[8 + sizeof name.release];
	uname(&name);
	put_u32(payload, PROTOCOL_VERSION);
	put_u32(payload + 4, 0);
	size_t length = strlen(name.release);
	memcpy(payload + 8, name.release, length);
	set_awaited(false);
	frame_send(AGENT_HELLO, 0, payload, 8 + length);
	if (session_any())
		set_awaited(true);
	else
		network_reset();
}

bool host_resume(const struct frame *frame)
{
	uint32_t version = get_u32(frame->payload);
	if (version != PROTOCOL_VERSION) {
		bool muted = awaited;
		set_awaited(false);
		steps_refuse_version(frame, version);
		set_awaited(muted);
		return true;
	}
	let_go();
	resume.asked = true;
	resume.session = frame->session;
	resume.nonce = get_u64(frame->payload + 8);
	return true;
}

bool host_pump(void)
{
	if (!resume.asked || !session_all_lasting() || !frame_can_answer())
		return false;
	set_awaited(false);
	resume.asked = false;
	uint8_t *payload = frame_payload();
	unsigned count = session_resume(payload + RESUMED_FIXED_BYTES);
	put_u64(payload, resume.nonce);
	put_u32(payload + 8, steps_disks());
	put_u32(payload + 12, count);
	frame_commit(AGENT_RESUMED, resume.session, RESUMED_FIXED_BYTES + (size_t)count * SESSION_BYTES);
	return true;
}

bool host_leave(const struct frame *frame)
{
	frame_send_done(frame->session, 0);
	let_go();
	return true;
}

bool host_receipt(const struct frame *frame)
{
	/* Frames are handled in their order, and what they brought stays with the agent when the host is lost. */
	frame_send_done(frame->session, 0);
	return true;
}
