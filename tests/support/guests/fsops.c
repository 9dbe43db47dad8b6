/*
 * Runs inside a machine: walks a tree, applies a script of file operations to it, and walks it again.
 * Usage: fsops DIRECTORY <SCRIPT. Output: "== before", a line per entry, "== results", an error number per operation,
 * "== after", a line per entry. Words are separated by blanks; in a word, %XX is a byte and a lone % the empty word.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "fsops-content.h"

#define WORDS_MAX 8
#define VALUE_BYTES_MAX 65536
#define FILES_MAX 4096

static void fatal(const char *what)
{
	fprintf(stderr, "fsops: %s: %s\n", what, strerror(errno));
	exit(2);
}

static void put_word(const char *bytes, size_t size)
{
	if (size == 0)
		putchar('%');
	for (size_t i = 0; i < size; i++) {
		unsigned char byte = (unsigned char)bytes[i];
		if (byte > 0x20 && byte < 0x7f && byte != '%' && byte != '=' && byte != ',')
			putchar(byte);
		else
			printf("%%%02X", byte);
	}
}

static void put_hash(const char *file, off_t size)
{
	unsigned char digest[32];
	if (!hash_file(file, size, digest))
		fatal(file);
	for (size_t at = 0; at < sizeof digest; at++)
		printf("%02x", digest[at]);
}

static void put_xattrs(const char *path)
{
	static char names[65536];
	static char value[VALUE_BYTES_MAX];
	ssize_t size = llistxattr(path, names, sizeof names);
	if (size < 0 && errno != ENOTSUP)
		fatal(path);
	if (size <= 0)
		putchar('-');
	for (char *name = names; name < names + size; name += strlen(name) + 1) {
		ssize_t length = lgetxattr(path, name, value, sizeof value);
		if (length < 0)
			fatal(name);
		if (name > names)
			putchar(',');
		put_word(name, strlen(name));
		putchar('=');
		put_word(value, (size_t)length);
	}
}

static char path[65536];

static void put_entry(const struct stat *status)
{
	static const char types[16] = {[S_IFDIR >> 12] = 'd', [S_IFREG >> 12] = 'f', [S_IFLNK >> 12] = 'l',
		[S_IFBLK >> 12] = 'b', [S_IFCHR >> 12] = 'c', [S_IFIFO >> 12] = 'p', [S_IFSOCK >> 12] = 's'};
	char target[4096];
	ssize_t target_size = S_ISLNK(status->st_mode) ? readlink(path, target, sizeof target) : 0;
	put_word(path, strlen(path));
	printf(" %c %o %u %u %lld %lld %ld %lu %lx:%lx %u:%u ", types[(status->st_mode & S_IFMT) >> 12],
		status->st_mode & 07777, status->st_uid, status->st_gid, (long long)status->st_size,
		(long long)status->st_mtim.tv_sec, status->st_mtim.tv_nsec, (unsigned long)status->st_nlink,
		(unsigned long)status->st_dev, (unsigned long)status->st_ino, major(status->st_rdev), minor(status->st_rdev));
	put_word(target, target_size > 0 ? (size_t)target_size : 0);
	putchar(' ');
	if (S_ISREG(status->st_mode))
		put_hash(path, status->st_size);
	else
		putchar('-');
	putchar(' ');
	put_xattrs(path);
	putchar('\n');
}

static void walk(dev_t device)
{
	struct stat status;
	if (lstat(path, &status) != 0)
		fatal(path);
	/* Mounts below it, such as /proc, do not belong to the image. */
	if (S_ISDIR(status.st_mode) && status.st_dev != device)
		return;
	put_entry(&status);
	if (!S_ISDIR(status.st_mode))
		return;
	DIR *directory = opendir(path);
	size_t length = strlen(path);
	if (directory == NULL)
		fatal(path);
	for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
			continue;
		if (length + strlen(entry->d_name) + 2 > sizeof path)
			fatal("long path");
		snprintf(path + length, sizeof path - length, "%s%s", length == 1 ? "" : "/", entry->d_name);
		walk(device);
		path[length] = '\0';
	}
	closedir(directory);
}

static void walk_root(const char *title, const char *root)
{
	struct stat status;
	printf("== %s\n", title);
	snprintf(path, sizeof path, "%s", root);
	if (lstat(path, &status) == 0)
		walk(status.st_dev);
}

static int write_pattern(const char *name, off_t offset, size_t size, uint32_t seed)
{
	unsigned char *bytes = malloc(size + 1);
	int fd = open(name, O_WRONLY | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0 || bytes == NULL) {
		free(bytes);
		return -1;
	}
	pattern(bytes, size, seed);
	size_t done = 0;
	while (done < size) {
		ssize_t wrote = pwrite(fd, bytes + done, size - done, offset + (off_t)done);
		if (wrote < 0)
			break;
		done += (size_t)wrote;
	}
	int error = errno;
	close(fd);
	free(bytes);
	errno = error;
	return done == size ? 0 : -1;
}

static int with_file(const char *name, int (*act)(int fd, int mode, off_t offset, off_t size), int mode, off_t offset, off_t size)
{
	int fd = open(name, O_WRONLY | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return -1;
	int result = act(fd, mode, offset, size);
	int error = errno;
	close(fd);
	errno = error;
	return result;
}

static int truncate_fd(int fd, int mode, off_t offset, off_t size)
{
	(void)mode;
	(void)offset;
	return ftruncate(fd, size);
}

static int remove_tree(const char *name)
{
	struct stat status;
	char child[4096 + 256];
	if (lstat(name, &status) == 0 && !S_ISDIR(status.st_mode))
		return unlink(name);
	DIR *directory = opendir(name);
	if (directory == NULL)
		return -1;
	for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
			continue;
		snprintf(child, sizeof child, "%s/%s", name, entry->d_name);
		if ((entry->d_type == DT_DIR ? remove_tree(child) : unlink(child)) != 0) {
			closedir(directory);
			return -1;
		}
	}
	closedir(directory);
	return rmdir(name);
}

/* Many small files: DIRECTORY COUNT, a hundredth of them in each of its directories. */
static int many(const char *name, long count)
{
	char child[4096];
	for (long i = 0; i < count; i++) {
		snprintf(child, sizeof child, "%s/%ld", name, i % 100);
		if (i < 100 && mkdir(child, 0755) != 0)
			return -1;
		snprintf(child, sizeof child, "%s/%ld/file-%ld", name, i % 100, i);
		int fd = open(child, O_WRONLY | O_CREAT | O_EXCL, 0644);
		if (fd < 0)
			return -1;
		if (i % 10 != 0 && write(fd, child, strlen(child)) != (ssize_t)strlen(child))
			return -1;
		close(fd);
	}
	return 0;
}

static int create(const char *name, mode_t mode)
{
	int fd = open(name, O_WRONLY | O_CREAT | O_EXCL, mode);
	if (fd >= 0)
		close(fd);
	return fd < 0 ? -1 : 0;
}

struct word {
	char *bytes;
	size_t size;
};

static mode_t type_of(char letter)
{
	return letter == 'b' ? S_IFBLK : letter == 'c' ? S_IFCHR : letter == 's' ? S_IFSOCK : S_IFIFO;
}

/* Every operation names its path first. */
static int apply(const char *what, const struct word *words)
{
	const char *name = words[0].bytes;
	const char *second = words[1].bytes;
	long long numbers[WORDS_MAX];
	for (int i = 1; i < WORDS_MAX; i++)
		numbers[i] = words[i].bytes == NULL ? 0 : strtoll(words[i].bytes, NULL, 0);
	if (strcmp(what, "create") == 0)
		return create(name, (mode_t)numbers[1]);
	if (strcmp(what, "write") == 0)
		return write_pattern(name, numbers[1], (size_t)numbers[2], (uint32_t)numbers[3]);
	if (strcmp(what, "truncate") == 0)
		return with_file(name, truncate_fd, 0, 0, numbers[1]);
	if (strcmp(what, "allocate") == 0)
		return with_file(name, fallocate, (int)numbers[1], numbers[2], numbers[3]);
	if (strcmp(what, "link") == 0)
		return link(name, second);
	if (strcmp(what, "symlink") == 0)
		return symlink(second, name);
	if (strcmp(what, "mkdir") == 0)
		return mkdir(name, (mode_t)numbers[1]);
	if (strcmp(what, "rmdir") == 0)
		return rmdir(name);
	if (strcmp(what, "unlink") == 0)
		return unlink(name);
	if (strcmp(what, "remove") == 0)
		return remove_tree(name);
	if (strcmp(what, "rename") == 0)
		return rename(name, second);
	if (strcmp(what, "exchange") == 0)
		return (int)syscall(SYS_renameat2, AT_FDCWD, name, AT_FDCWD, second, RENAME_EXCHANGE);
	if (strcmp(what, "node") == 0)
		return mknod(name, type_of(second[0]) | (mode_t)numbers[2], makedev((unsigned)numbers[3], (unsigned)numbers[4]));
	if (strcmp(what, "chmod") == 0)
		return chmod(name, (mode_t)numbers[1]);
	if (strcmp(what, "chown") == 0)
		return lchown(name, (uid_t)numbers[1], (gid_t)numbers[2]);
	if (strcmp(what, "times") == 0) {
		struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {numbers[1], (long)numbers[2]}};
		return utimensat(AT_FDCWD, name, times, AT_SYMLINK_NOFOLLOW);
	}
	if (strcmp(what, "set") == 0)
		return lsetxattr(name, second, words[2].bytes, words[2].size, 0);
	if (strcmp(what, "unset") == 0)
		return lremovexattr(name, second);
	if (strcmp(what, "many") == 0)
		return many(name, (long)numbers[1]);
	errno = EINVAL;
	fatal(what);
	return -1;
}

static struct word decode(char *text)
{
	struct word word = {.bytes = text};
	if (strcmp(text, "%") == 0)
		text[0] = '\0';
	char *to = word.bytes;
	for (const char *from = text; *from != '\0'; from++) {
		char digits[3] = {from[0], 0, 0};
		if (*from == '%') {
			digits[0] = from[1];
			digits[1] = from[2];
			*to++ = (char)strtol(digits, NULL, 16);
			from += 2;
		} else {
			*to++ = *from;
		}
	}
	*to = '\0';
	word.size = (size_t)(to - word.bytes);
	return word;
}

static void run_script(void)
{
	char *line = NULL;
	size_t room = 0;
	printf("== results\n");
	for (ssize_t length; (length = getline(&line, &room, stdin)) > 0;) {
		struct word words[WORDS_MAX] = {{NULL, 0}};
		char *rest = line;
		line[strcspn(line, "\n")] = '\0';
		const char *what = strsep(&rest, " ");
		for (int i = 0; rest != NULL && i < WORDS_MAX; i++)
			words[i] = decode(strsep(&rest, " "));
		printf("%d\n", apply(what, words) == 0 ? 0 : errno);
	}
	free(line);
}

int main(int argc, char **argv)
{
	struct rlimit files = {FILES_MAX, FILES_MAX};
	if (argc != 2) {
		fprintf(stderr, "usage: fsops DIRECTORY <SCRIPT\n");
		return 2;
	}
	umask(0);
	setrlimit(RLIMIT_NOFILE, &files);
	walk_root("before", argv[1]);
	run_script();
	walk_root("after", argv[1]);
	return fflush(stdout) == 0 ? 0 : 2;
}
