#include "spec.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>

#include "budget.h"
#include "bytes.h"

/* u32 hostname, u32 user, u32 cwd, u32 argc, u32 envc */
#define SPEC_BYTES_MIN 20

struct reader {
	uint8_t *at;
	uint8_t *end;
	/* end of the previous string, which is terminated when the length after it was read */
	uint8_t *unended;
};

/* Total size of the specifications that are being received. */
static size_t received_bytes;

static void *map_bytes(size_t size)
{
	void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return map == MAP_FAILED ? NULL : map;
}

bool spec_open(struct spec *spec, size_t size, struct problem *problem)
{
	*spec = (struct spec){.size = size};
	if (size > SPECS_BYTES_MAX - received_bytes)
		return problem_set(problem, EAGAIN, "memory for a specification of %zu bytes", size);
	/* Mapped for each command and released after the fork; a static table would need the largest size. */
	spec->map = map_bytes(size + 1);
	if (spec->map == NULL)
		return problem_set(problem, errno, "memory for the specification");
	received_bytes += size;
	return true;
}

void spec_close(struct spec *spec)
{
	if (spec->map == NULL)
		return;
	munmap(spec->map, spec->size + 1);
	received_bytes -= spec->size;
	spec->map = NULL;
}

static bool read_u32(struct reader *reader, uint32_t *value)
{
	if (reader->end - reader->at < 4)
		return false;
	*value = get_u32(reader->at);
	reader->at += 4;
	if (reader->unended != NULL)
		*reader->unended = 0;
	reader->unended = NULL;
	return true;
}

static bool read_string(struct reader *reader, char **string)
{
	uint32_t length;
	if (!read_u32(reader, &length) || length > (size_t)(reader->end - reader->at))
		return false;
	if (memchr(reader->at, 0, length) != NULL)
		return false;
	*string = (char *)reader->at;
	reader->at += length;
	reader->unended = reader->at;
	return true;
}

/* Reads a count and that many strings. Their pointers go to `next`, followed by NULL. */
static char **read_list(struct reader *reader, char ***next)
{
	uint32_t count;
	char **list = *next;
	if (!read_u32(reader, &count) || count > (size_t)(reader->end - reader->at) / 4)
		return NULL;
	for (uint32_t i = 0; i < count; i++, (*next)++)
		if (!read_string(reader, *next))
			return NULL;
	**next = NULL;
	(*next)++;
	return list;
}

void spec_read_hostname(const struct spec *spec, char hostname[HOSTNAME_BYTES_MAX + 1])
{
	uint32_t length = spec->size >= SPEC_BYTES_MIN ? get_u32(spec->map) : 0;
	if (length > HOSTNAME_BYTES_MAX || length > spec->size - SPEC_BYTES_MIN)
		length = 0;
	memcpy(hostname, spec->map + sizeof length, length);
	hostname[length] = '\0';
}

bool spec_parse(struct spec *spec, struct problem *problem)
{
	struct reader reader = {.at = spec->map, .end = spec->map + spec->size};
	/* Each string takes at least 4 bytes, so there are at most size / 4 pointers and two terminators. */
	char **next = map_bytes((spec->size / 4 + 2 + SPEC_VARIABLES_COUNT) * sizeof(char *));
	if (next == NULL)
		return problem_set(problem, errno, "memory for the arguments");
	char *hostname = NULL;
	char *user = NULL;
	char *cwd = NULL;
	bool whole = spec->size >= SPEC_BYTES_MIN && read_string(&reader, &hostname) && read_string(&reader, &user) &&
		     read_string(&reader, &cwd);
	spec->argv = whole ? read_list(&reader, &next) : NULL;
	spec->envp = spec->argv != NULL ? read_list(&reader, &next) : NULL;
	if (spec->envp == NULL || reader.at != reader.end)
		return problem_set(problem, EBADMSG, "specification of the command");
	/* The mapping has one byte after the specification. */
	*reader.end = 0;
	spec->hostname = hostname;
	spec->user = user;
	spec->cwd = cwd;
	if (spec->argv[0] == NULL)
		return problem_set(problem, EINVAL, "no command");
	if (strlen(hostname) > HOSTNAME_BYTES_MAX)
		return problem_set(problem, ENAMETOOLONG, "hostname");
	/* A user that is resolved has a home. */
	if (cwd[0] != '/' && (cwd[0] != '\0' || user[0] == '\0'))
		return problem_set(problem, EINVAL, "working directory %s is not absolute", cwd);
	if (strlen(cwd) >= PATH_MAX)
		return problem_set(problem, ENAMETOOLONG, "working directory");
	for (char **variable = spec->envp; *variable != NULL; variable++, spec->envc++)
		if (strchr(*variable, '=') == NULL || (*variable)[0] == '=')
			return problem_set(problem, EINVAL, "environment variable without a name");
	return true;
}

void spec_add_variable(struct spec *spec, char *variable)
{
	size_t size = strcspn(variable, "=") + 1;
	for (char **other = spec->envp; *other != NULL; other++)
		if (strncmp(*other, variable, size) == 0)
			return;
	spec->envp[spec->envc++] = variable;
	spec->envp[spec->envc] = NULL;
}
