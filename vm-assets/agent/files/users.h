/*
 * The users of the guest: /etc/passwd and /etc/group of this process' root. Their bytes may be anything: only the first MiB
 * of a regular file is read, and lines that are longer than 4 KiB, have a NUL or a number beyond the ids do not count. Of
 * lines with the same name or id the first counts.
 */
#ifndef COPPICE_USERS_H
#define COPPICE_USERS_H

#include <stdbool.h>
#include <sys/types.h>

#include "../problem.h"

#define USERS_LINE_BYTES_MAX 4096
#define USERS_GROUPS_COUNT_MAX 1024

struct user {
	uid_t uid;
	gid_t gid;
	unsigned group_count;
	gid_t groups[USERS_GROUPS_COUNT_MAX]; /* supplementary */
	char name[USERS_LINE_BYTES_MAX + 1]; /* empty: the guest has no name for the user */
	char home[USERS_LINE_BYTES_MAX + 1]; /* absolute */
	char shell[USERS_LINE_BYTES_MAX + 1];
};

/*
 * Finds the user of a text: a name or a number, optionally followed by a colon and a group, which is a name or a number as well.
 * A group replaces all groups of the user. A number needs no line; the user then has group 0. Otherwise ENOENT.
 */
bool users_find(const char *text, struct user *user, struct problem *problem);
/* The name of an id, valid until the next call; an empty string when there is none. */
const char *users_name(uid_t uid);
const char *users_group_name(gid_t gid);
/* Releases what was read. */
void users_forget(void);
/* Takes on an identity, with these supplementary groups only. Of root's rights, another user keeps none. */
bool users_become(uid_t uid, gid_t gid, const gid_t *groups, unsigned group_count);

#endif
