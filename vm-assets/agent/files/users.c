#include "users.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define TABLE_BYTES_MAX (1 << 20)
#define SHELL_DEFAULT "/bin/sh"

/* Fields of a line; a line of groups has its id and its members where one of users has its ids. */
enum { FIELD_NAME, FIELD_SECRET, FIELD_ID, FIELD_GROUP, FIELD_MEMBERS = FIELD_GROUP, FIELD_COMMENT, FIELD_HOME, FIELD_SHELL,
	FIELDS_COUNT };

struct text {
	const char *at;
	size_t size;
};

struct table {
	const char *path;
	bool loaded;
	char *bytes;
	size_t size;
	uid_t last_id; /* of `last` */
	char last[256];
};

static struct table users = {.path = "/etc/passwd", .last_id = (uid_t)-1};
static struct table groups = {.path = "/etc/group", .last_id = (uid_t)-1};

static void load(struct table *table)
{
	struct stat status;
	ssize_t count = 0;
	if (table->loaded)
		return;
	table->loaded = true;
	int fd = open(table->path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	void *map = MAP_FAILED;
	if (fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode))
		map = mmap(NULL, TABLE_BYTES_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	table->bytes = map == MAP_FAILED ? NULL : map;
	while (table->bytes != NULL && (count = read(fd, table->bytes + table->size, TABLE_BYTES_MAX - table->size)) > 0)
		table->size += (size_t)count;
	if (fd >= 0)
		close(fd);
	/* The last line of a longer file is cut. */
	if (table->size == TABLE_BYTES_MAX)
		while (table->size > 0 && table->bytes[table->size - 1] != '\n')
			table->size--;
}

void users_forget(void)
{
	struct table *const tables[] = {&users, &groups};
	for (int i = 0; i < 2; i++) {
		if (tables[i]->bytes != NULL)
			munmap(tables[i]->bytes, TABLE_BYTES_MAX);
		*tables[i] = (struct table){.path = tables[i]->path, .last_id = (uid_t)-1};
	}
}

/* Takes the part before the next `mark` from a text. */
static struct text take(struct text *text, char mark)
{
	const char *end = memchr(text->at, mark, text->size);
	struct text part = {text->at, end == NULL ? text->size : (size_t)(end - text->at)};
	size_t step = end == NULL ? text->size : part.size + 1;
	*text = (struct text){text->at + step, text->size - step};
	return part;
}

static bool same(struct text left, struct text right)
{
	return left.size == right.size && memcmp(left.at, right.at, left.size) == 0;
}

/* Reads a decimal number that is an id: -1 means "none" in the system calls. */
static bool read_id(struct text text, uint32_t *id)
{
	uint64_t value = 0;
	if (text.size == 0 || text.size > 10)
		return false;
	for (size_t i = 0; i < text.size; i++) {
		if (text.at[i] < '0' || text.at[i] > '9')
			return false;
		value = value * 10 + (uint64_t)(text.at[i] - '0');
	}
	*id = (uint32_t)value;
	return value < UINT32_MAX;
}

/* Splits the next line that has a name and an id. Fields that it does not have are empty. */
static bool next_line(struct text *rest, struct text fields[FIELDS_COUNT], uint32_t *id)
{
	while (rest->size > 0) {
		struct text line = take(rest, '\n');
		if (line.size > USERS_LINE_BYTES_MAX || memchr(line.at, 0, line.size) != NULL)
			continue;
		for (int i = 0; i < FIELDS_COUNT; i++)
			fields[i] = take(&line, ':');
		if (fields[FIELD_NAME].size > 0 && read_id(fields[FIELD_ID], id))
			return true;
	}
	return false;
}

/* Finds the line with a name or, if that is NULL, with an id. */
static bool find_line(struct table *table, const struct text *name, uint32_t *id, struct text fields[FIELDS_COUNT])
{
	load(table);
	struct text rest = {table->bytes, table->size};
	uint32_t line_id;
	while (next_line(&rest, fields, &line_id)) {
		if (name != NULL ? !same(*name, fields[FIELD_NAME]) : *id != line_id)
			continue;
		*id = line_id;
		return true;
	}
	return false;
}

static void copy(char *to, struct text text)
{
	memcpy(to, text.at, text.size);
	to[text.size] = '\0';
}

static bool find_user(struct text name, struct user *user)
{
	struct text fields[FIELDS_COUNT];
	bool has_line = find_line(&users, &name, &user->uid, fields);
	if (!has_line && !read_id(name, &user->uid))
		return false;
	if (!has_line && !find_line(&users, NULL, &user->uid, fields))
		return true;
	copy(user->name, fields[FIELD_NAME]);
	if (!read_id(fields[FIELD_GROUP], &user->gid))
		return false;
	if (fields[FIELD_HOME].size > 0 && fields[FIELD_HOME].at[0] == '/')
		copy(user->home, fields[FIELD_HOME]);
	if (fields[FIELD_SHELL].size > 0)
		copy(user->shell, fields[FIELD_SHELL]);
	return true;
}

/* Finds the supplementary groups of a user with a name. */
static void find_groups(struct user *user)
{
	struct text fields[FIELDS_COUNT];
	struct text name = {user->name, strlen(user->name)};
	gid_t gid;
	load(&groups);
	struct text rest = {groups.bytes, groups.size};
	while (name.size > 0 && user->group_count < USERS_GROUPS_COUNT_MAX && next_line(&rest, fields, &gid)) {
		bool is_member = false;
		for (struct text members = fields[FIELD_MEMBERS]; members.size > 0 && !is_member;)
			is_member = same(name, take(&members, ','));
		if (is_member)
			user->groups[user->group_count++] = gid;
	}
}

bool users_find(const char *text, struct user *user, struct problem *problem)
{
	struct text rest = {text, strlen(text)};
	bool has_group = memchr(text, ':', rest.size) != NULL;
	struct text name = take(&rest, ':');
	struct text fields[FIELDS_COUNT];
	memset(user, 0, sizeof *user);
	strcpy(user->home, "/");
	strcpy(user->shell, SHELL_DEFAULT);
	if (!find_user(name, user))
		return problem_set(problem, ENOENT, "user %.*s", (int)(name.size < 200 ? name.size : 200), name.at);
	if (!has_group)
		find_groups(user);
	else if (!find_line(&groups, &rest, &user->gid, fields) && !read_id(rest, &user->gid))
		return problem_set(problem, ENOENT, "group %.*s", (int)(rest.size < 200 ? rest.size : 200), rest.at);
	return true;
}

static const char *name_of(struct table *table, uint32_t id)
{
	struct text fields[FIELDS_COUNT];
	if (id == table->last_id)
		return table->last;
	table->last_id = id;
	table->last[0] = '\0';
	if (find_line(table, NULL, &id, fields) && fields[FIELD_NAME].size < sizeof table->last)
		copy(table->last, fields[FIELD_NAME]);
	return table->last;
}

const char *users_name(uid_t uid)
{
	return name_of(&users, uid);
}

const char *users_group_name(gid_t gid)
{
	return name_of(&groups, gid);
}

bool users_become(uid_t uid, gid_t gid, const gid_t *list, unsigned group_count)
{
	if (uid == 0 && gid == 0 && group_count == 0)
		return true;
	return setgroups(group_count, list) == 0 && setresgid(gid, gid, gid) == 0 && setresuid(uid, uid, uid) == 0;
}
