/* Contents of files for fsops: how they are written and hashed. */
#ifndef FSOPS_CONTENT_H
#define FSOPS_CONTENT_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "sha256.h"

#define BLOCK_BYTES 4096

/* Over the number and content of every block that is not all zeros, so that holes and zeros are the same. */
static bool hash_range(struct sha256 *hash, int fd, off_t from, off_t to)
{
	static unsigned char bytes[16 * BLOCK_BYTES];
	static const unsigned char zeros[BLOCK_BYTES];
	for (off_t at = from; at < to;) {
		ssize_t got = pread(fd, bytes, sizeof bytes, at);
		if (got <= 0)
			return got == 0;
		if (got % BLOCK_BYTES != 0)
			memset(bytes + got, 0, (size_t)(BLOCK_BYTES - got % BLOCK_BYTES));
		for (off_t block = 0; block < got && at + block < to; block += BLOCK_BYTES) {
			uint64_t number = (uint64_t)(at + block) / BLOCK_BYTES;
			unsigned char head[8];
			if (memcmp(bytes + block, zeros, BLOCK_BYTES) == 0)
				continue;
			for (int i = 0; i < 8; i++)
				head[i] = (unsigned char)(number >> (8 * i));
			sha256_add(hash, head, sizeof head);
			sha256_add(hash, bytes + block, BLOCK_BYTES);
		}
		at += got;
	}
	return true;
}

static bool hash_file(const char *file, off_t size, unsigned char digest[32])
{
	struct sha256 hash;
	bool done = true;
	int fd = open(file, O_RDONLY | O_NOFOLLOW);
	if (fd < 0)
		return false;
	sha256_begin(&hash);
	for (off_t at = 0; done && at < size;) {
		off_t data = lseek(fd, at, SEEK_DATA);
		if (data < 0)
			break;
		off_t hole = lseek(fd, data, SEEK_HOLE);
		if (hole < 0)
			hole = size;
		/* Whole blocks; hashed bytes are not hashed again. */
		data -= data % BLOCK_BYTES;
		if (data < at)
			data = at;
		hole += (BLOCK_BYTES - hole % BLOCK_BYTES) % BLOCK_BYTES;
		done = hash_range(&hash, fd, data, hole);
		at = hole;
	}
	close(fd);
	sha256_end(&hash, digest);
	return done;
}

/* The same bytes as in the test: xorshift32, low byte first. */
static void pattern(unsigned char *bytes, size_t size, uint32_t seed)
{
	uint32_t state = seed;
	for (size_t i = 0; i < size; i++) {
		if (i % 4 == 0) {
			state ^= state << 13;
			state ^= state >> 17;
			state ^= state << 5;
		}
		bytes[i] = (unsigned char)(state >> (8 * (i % 4)));
	}
}

#endif
