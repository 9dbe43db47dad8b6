#include "visit.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../bytes.h"
#include "../levels.h"
#include "../platform.h"
#include "../protocol.h"
#include "../record.h"
#include "operations.h"
#include "users.h"

static bool show_user(const struct user *user)
{
	uint8_t head[FILE_USER_FIXED_BYTES];
	const char *const texts[] = {user->name, user->home, user->shell};
	size_t size = sizeof head + user->group_count * sizeof user->groups[0];
	for (int i = 0; i < 3; i++) {
		put_u16(head + 12 + 2 * i, (uint16_t)strlen(texts[i]));
		size += strlen(texts[i]);
	}
	put_u32(head, (uint32_t)size);
	put_u32(head + 4, user->uid);
	put_u32(head + 8, user->gid);
	put_u16(head + 18, (uint16_t)user->group_count);
	bool done = record_stream_put(head, sizeof head) &&
		    record_stream_put(user->groups, user->group_count * sizeof user->groups[0]);
	for (int i = 0; i < 3; i++)
		done = done && record_stream_put(texts[i], strlen(texts[i]));
	return done;
}

/* Resolves the user in the target's root. */
static bool find_user(const struct request *request, struct user *user, struct problem *problem)
{
	if (request->user[0] != '\0')
		return users_find(request->user, user, problem);
	memset(user, 0, sizeof *user);
	user->uid = request->uid;
	user->gid = request->gid;
	user->home[0] = '/';
	return true;
}

static bool run(struct request *request, const struct user *user, uint64_t *count, struct problem *problem)
{
	switch (request->op) {
	case FILE_OP_STAT:
		return entries_stat(request, count, problem);
	case FILE_OP_LIST:
		return entries_list(request, count, problem);
	case FILE_OP_READ:
		return content_read(request, count, problem);
	case FILE_OP_WRITE:
		return content_write(request, count, problem);
	case FILE_OP_DIRECTORY:
		return entries_make_directory(request, count, problem);
	case FILE_OP_REMOVE:
		return tree_remove(request, count, problem);
	case FILE_OP_MOVE:
		return tree_move(request, count, problem);
	case FILE_OP_ATTRIBUTES:
		return entries_change(request, count, problem);
	case FILE_OP_JOIN:
		return content_join(request, count, problem);
	case FILE_OP_WATCH:
		return watch_run(request, count, problem);
	default:
		return show_user(user);
	}
}

bool visit(const struct work *work, int out, uint64_t *count, struct problem *problem)
{
	static struct user user;
	uint8_t payload[FRAME_PAYLOAD_BYTES_MAX];
	struct request request;
	/* One descriptor for each level of a tree and of its copy, and some more. */
	const struct rlimit limit = {2 * LEVELS_DEPTH_MAX + 64, 2 * LEVELS_DEPTH_MAX + 64};
	memcpy(payload, work->argument, work->number);
	if (!request_parse(&request, payload, problem))
		return false;
	request.input = work->input;
	platform_become_ordinary();
	umask(022);
	setrlimit(RLIMIT_NOFILE, &limit);
	int descriptors = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (descriptors < 0)
		return problem_set(problem, errno, "descriptors of the visitor");
	if (!platform_visit(work->directory, problem) || !find_user(&request, &user, problem))
		return false;
	/* The guest's /proc has no visitors, so this is the only way to an open file by its descriptor. */
	if (fchdir(descriptors) != 0)
		return problem_set(problem, errno, "descriptors of the visitor");
	close(descriptors);
	close(work->directory);
	if (!users_become(user.uid, user.gid, user.groups, user.group_count))
		return problem_set(problem, errno, "user %u, group %u", user.uid, user.gid);
	/* After the change of user, which resets it: the memory has what the agent had. */
	prctl(PR_SET_DUMPABLE, 0);
	record_stream_start(out);
	bool done = run(&request, &user, count, problem);
	/* What was read before a failure is not withheld. */
	bool flushed = record_stream_flush();
	return done && (flushed || problem_set(problem, errno, "stream of the visitor"));
}
