/* Operations on the content of files. */
#include <errno.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "../protocol.h"
#include "../record.h"
#include "operations.h"
#include "place.h"

#define BUFFER_BYTES 65536
/* Smallest hole; blocks of most file systems have this size. */
#define BLOCK_BYTES 4096
#define TEMPORARY_PREFIX ".coppice-"
#define ACCESS_LIST "system.posix_acl_access"

/* A file that is being written. */
struct sink {
	int fd;
	bool appends; /* at the end, wherever that is by then */
	uint64_t at;
	uint64_t size; /* where the latest written byte ends; from there to `at` is a hole */
	size_t waiting; /* bytes in the buffer */
	int parent; /* directory of the temporary name */
	char temporary[sizeof TEMPORARY_PREFIX + 16]; /* empty: none */
};

static uint8_t buffer[BUFFER_BYTES];
static struct sink sink = {.fd = -1, .parent = -1};

/* True for files whose size says nothing: they have no content until they are read. */
static bool is_made_by_reading(int fd)
{
	/* proc, sysfs, cgroup, cgroup2, debugfs, tracefs, securityfs, bpf, configfs */
	static const uint32_t types[] = {0x9fa0, 0x62656572, 0x27e0eb, 0x63677270, 0x64626720, 0x74726163, 0x73636673,
		0xcafe4a11, 0x62656570};
	struct statfs status;
	if (fstatfs(fd, &status) != 0)
		return false;
	for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
		if ((uint32_t)status.f_type == types[i])
			return true;
	return false;
}

static ssize_t read_some(int fd, void *bytes, size_t size)
{
	ssize_t count;
	do
		count = read(fd, bytes, size);
	while (count < 0 && errno == EINTR);
	/* A file of the kernel that would wait for an event has nothing more now. */
	return count < 0 && errno == EAGAIN ? 0 : count;
}

bool content_read(struct request *request, uint64_t *count, struct problem *problem)
{
	struct place place;
	if (!place_open(request->path, (request->flags & FILE_FLAG_FOLLOW) != 0, &place, problem))
		return false;
	int fd = place_open_regular(&place, request->path, O_RDONLY, problem);
	if (fd < 0)
		return false;
	/* It may have grown since, and the record must fit the bytes. */
	bool is_made = is_made_by_reading(fd);
	if (fstat(fd, &place.status) != 0)
		return problem_set(problem, errno, "%.300s", request->path);
	uint64_t size = is_made ? UINT64_MAX : (uint64_t)place.status.st_size;
	place.status.st_size = (off_t)size;
	if (!place_send(request->path, &place, true, problem))
		return false;
	uint64_t left = size > request->offset ? size - request->offset : 0;
	left = left < request->length ? left : request->length;
	if (left > 0 && request->offset > 0 && lseek(fd, (off_t)request->offset, SEEK_SET) < 0)
		return problem_set(problem, errno, "position in %.300s", request->path);
	for (*count = 0; *count < left;) {
		size_t most = left - *count < sizeof buffer ? (size_t)(left - *count) : sizeof buffer;
		ssize_t got = read_some(fd, buffer, most);
		if (got < 0)
			return problem_set(problem, errno, "%.300s", request->path);
		if (got == 0)
			break;
		*count += (uint64_t)got;
		if (!record_stream_put(buffer, (size_t)got) || !place_progress(NULL, problem))
			return problem_set(problem, errno, "stream of the visitor");
	}
	return true;
}

static bool is_zero(const uint8_t *bytes, size_t size)
{
	return bytes[0] == 0 && memcmp(bytes, bytes + 1, size - 1) == 0;
}

static bool write_piece(const uint8_t *bytes, size_t size)
{
	while (size > 0) {
		ssize_t count = sink.appends ? write(sink.fd, bytes, size) : pwrite(sink.fd, bytes, size, (off_t)sink.at);
		if (count < 0 && errno == EINTR)
			continue;
		if (count < 0)
			return false;
		bytes += count;
		size -= (size_t)count;
		sink.at += (uint64_t)count;
	}
	return true;
}

/* Writes the buffer. Whole blocks of zeros are left out, so that they become holes of a file that ends before them. */
static bool write_buffer(void)
{
	size_t at = 0;
	while (at < sink.waiting) {
		size_t end = at;
		while (end < sink.waiting && (sink.appends || sink.waiting - end < BLOCK_BYTES ||
					       !is_zero(buffer + end, BLOCK_BYTES)))
			end += sink.waiting - end < BLOCK_BYTES ? sink.waiting - end : BLOCK_BYTES;
		if (!write_piece(buffer + at, end - at))
			return false;
		if (end > at)
			sink.size = sink.at;
		for (at = end; at < sink.waiting && sink.waiting - at >= BLOCK_BYTES && is_zero(buffer + at, BLOCK_BYTES);
			at += BLOCK_BYTES)
			sink.at += BLOCK_BYTES;
	}
	sink.waiting = 0;
	return true;
}

/* Adds everything that can be read from a descriptor. `shows`: progress records are sent. */
static bool pour(int from, const char *name, bool shows, struct problem *problem)
{
	for (;;) {
		ssize_t count = read_some(from, buffer + sink.waiting, sizeof buffer - sink.waiting);
		if (count < 0)
			return problem_set(problem, errno, "%.300s", name);
		if (count == 0)
			return true;
		sink.waiting += (size_t)count;
		if (sink.waiting == sizeof buffer && !write_buffer())
			return problem_set(problem, errno, "write");
		if (shows && !place_progress(&sink.at, problem))
			return false;
	}
}

/* Writes the rest. The file ends where the content ends, also when that is a hole. */
static bool end_content(struct problem *problem)
{
	if (!write_buffer() || (!sink.appends && sink.at > sink.size && ftruncate(sink.fd, (off_t)sink.at) != 0))
		return problem_set(problem, errno, "write");
	return true;
}

static void remove_temporary(void)
{
	if (sink.temporary[0] != '\0')
		unlinkat(sink.parent, sink.temporary, 0);
}

static void remove_and_exit(int number)
{
	(void)number;
	remove_temporary();
	_exit(1);
}

/* Creates a file that gets its name at the end; the temporary name is removed when the request is ended before. */
static bool open_temporary(struct problem *problem)
{
	const struct sigaction action = {.sa_handler = remove_and_exit};
	uint64_t number;
	char name[sizeof sink.temporary];
	if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number)
		return problem_set(problem, errno, "temporary name");
	snprintf(name, sizeof name, TEMPORARY_PREFIX "%016llx", (unsigned long long)number);
	sigset_t end;
	sigemptyset(&end);
	sigaddset(&end, SIGTERM);
	sigaction(SIGTERM, &action, NULL);
	/* Between the creation and the note of the name the signal waits. */
	sigprocmask(SIG_BLOCK, &end, NULL);
	sink.fd = openat(sink.parent, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	int error = errno;
	if (sink.fd >= 0)
		memcpy(sink.temporary, name, sizeof name);
	sigprocmask(SIG_UNBLOCK, &end, NULL);
	return sink.fd >= 0 || problem_set(problem, error, "temporary file");
}

/* Gives the new file the access control list of another, without which its mode would give the group more. */
static bool adopt_list(int old)
{
	static uint8_t list[XATTR_SIZE_MAX];
	ssize_t size = getxattr(place_name(old), ACCESS_LIST, list, sizeof list);
	if (size < 0)
		return errno == ENODATA || errno == EOPNOTSUPP;
	return fsetxattr(sink.fd, ACCESS_LIST, list, (size_t)size, 0) == 0;
}

/* Gives the new file the mode and owner of the request or, as far as that has none, of the file that it replaces. */
static bool adopt(const struct request *request, const char *name, struct problem *problem)
{
	struct stat status;
	int old = openat(sink.parent, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	bool has_old = old >= 0 && fstat(old, &status) == 0 && S_ISREG(status.st_mode);
	mode_t mode = has_old ? status.st_mode & 07777 : 0644;
	/* As the kernel clears the set-id bits of a file that another user than root writes to. */
	if (geteuid() != 0)
		mode &= ~(mode_t)(S_ISUID | S_ISGID);
	if ((request->flags & FILE_FLAG_MODE) != 0)
		mode = request->mode;
	if ((request->flags & FILE_FLAG_OWNER) == 0 && has_old && geteuid() == 0 &&
	    fchown(sink.fd, status.st_uid, status.st_gid) != 0)
		return problem_set(problem, errno, "owner");
	if (has_old && !adopt_list(old))
		return problem_set(problem, errno, "access control list");
	if (old >= 0)
		close(old);
	/* After the owner, because chown clears set-id bits. */
	return place_own(request, sink.fd, problem) &&
	       (fchmod(sink.fd, mode) == 0 || problem_set(problem, errno, "mode"));
}

/* Gives the temporary file its name. */
static bool put_in_place(const struct request *request, const char *name, struct problem *problem)
{
	bool replaces = (request->flags & FILE_FLAG_EXCLUSIVE) == 0;
	int result = replaces ? renameat(sink.parent, sink.temporary, sink.parent, name)
			      : linkat(sink.parent, sink.temporary, sink.parent, name, 0);
	int error = errno;
	if (result == 0 && replaces)
		sink.temporary[0] = '\0';
	return result == 0 || problem_set(problem, error, "%.300s", request->path);
}

/*
 * Makes the file of the request with the content that `fill` gives, under a temporary name until it is complete, and sends its
 * record.
 */
static bool write_atomically(struct request *request, bool (*fill)(struct request *, struct problem *), uint64_t *count,
	struct problem *problem)
{
	char name[NAME_MAX + 1];
	sink.parent = place_open_parent(request, request->path, name, problem);
	if (sink.parent < 0)
		return false;
	bool done = open_temporary(problem) && fill(request, problem) && end_content(problem) &&
		    adopt(request, name, problem) && put_in_place(request, name, problem);
	remove_temporary();
	sink.temporary[0] = '\0';
	*count = sink.at;
	return done && place_send_entry(sink.parent, name, request->path, problem);
}

static bool fill_from_input(struct request *request, struct problem *problem)
{
	return place_set_attributes(request, sink.fd, problem) && pour(request->input, "content", false, problem);
}

static bool fill_from_files(struct request *request, struct problem *problem)
{
	while (request->left > 0) {
		const char *path;
		struct place place;
		if (!request_take_path(request, &path, problem) || !place_open(path, true, &place, problem))
			return false;
		int fd = place_open_regular(&place, path, O_RDONLY, problem);
		if (fd < 0 || !pour(fd, path, true, problem))
			return false;
		close(fd);
		close(place.fd);
	}
	return true;
}

/* Opens the file that exists, or creates it. */
static bool open_in_place(const struct request *request, struct problem *problem)
{
	char name[NAME_MAX + 1];
	struct place place = {.fd = -1};
	bool exclusive = (request->flags & FILE_FLAG_EXCLUSIVE) != 0;
	sink.appends = (request->flags & FILE_FLAG_APPEND) != 0;
	int flags = O_WRONLY | (sink.appends ? O_APPEND : 0);
	bool exists = !exclusive && place_open(request->path, true, &place, problem);
	if (exists && place.broken == 0) {
		sink.fd = place_open_regular(&place, request->path, flags, problem);
		return sink.fd >= 0;
	}
	if (!exists && !exclusive && problem->error != ENOENT)
		return false;
	int parent = place_open_parent(request, request->path, name, problem);
	if (parent < 0)
		return false;
	flags |= O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | (exclusive ? O_EXCL : 0);
	sink.fd = openat(parent, name, flags, (request->flags & FILE_FLAG_MODE) != 0 ? request->mode & 0600 : 0666);
	int error = errno;
	close(parent);
	return sink.fd >= 0 || problem_set(problem, error, "%.300s", request->path);
}

/* Gives the file the mode of the request, if it has one and the file another. */
static bool set_mode(const struct request *request, struct problem *problem)
{
	struct stat status;
	if ((request->flags & FILE_FLAG_MODE) == 0 ||
	    (fstat(sink.fd, &status) == 0 && (status.st_mode & 07777) == request->mode) ||
	    fchmod(sink.fd, request->mode) == 0)
		return true;
	return problem_set(problem, errno, "mode of %.300s", request->path);
}

static bool write_in_place(struct request *request, struct problem *problem)
{
	struct stat status;
	if (!open_in_place(request, problem))
		return false;
	if (fstat(sink.fd, &status) != 0 || !S_ISREG(status.st_mode))
		return problem_set(problem, ENOTSUP, "%.300s", request->path);
	if (!place_own(request, sink.fd, problem) || !set_mode(request, problem) ||
	    !place_set_attributes(request, sink.fd, problem))
		return false;
	if (!sink.appends && status.st_size > 0 && ftruncate(sink.fd, 0) != 0)
		return problem_set(problem, errno, "%.300s", request->path);
	/* A write of another user than root clears set-id bits. */
	return pour(request->input, "content", false, problem) && end_content(problem) && set_mode(request, problem);
}

bool content_write(struct request *request, uint64_t *count, struct problem *problem)
{
	bool atomic = (request->flags & FILE_FLAG_ATOMIC) != 0;
	if (atomic && (request->flags & FILE_FLAG_APPEND) != 0)
		return problem_set(problem, EINVAL, "append that is atomic");
	if (atomic)
		return write_atomically(request, fill_from_input, count, problem);
	if (!write_in_place(request, problem))
		return false;
	*count = sink.at;
	return place_send_path(request->path, true, problem);
}

bool content_join(struct request *request, uint64_t *count, struct problem *problem)
{
	return write_atomically(request, fill_from_files, count, problem);
}
