/*
 * Runs inside a machine: writes numbered lines to both outputs until SIGTERM, in turns at full speed and slowly.
 * A line is "NAME STREAM NUMBER GENERATION CELL SUM". GENERATION is the first number in /run/coppice/fork, 0 without that
 * file. CELL is the present content of one cell of a table in memory, of which every line changes one; SUM is the FNV-1a hash
 * of the line before it. So the lines before determine each line, unless memory or output was damaged.
 * The last line is "NAME end LINES LINES SUM", the lines of both outputs and a sum of all cells.
 * Usage: talker NAME LINES_AT_ONCE SLOW_LINES MILLISECONDS_BETWEEN_SLOW_LINES
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OUT, ERR, STREAMS };
enum { CELLS = 8192, LINE_BYTES = 160, BUFFER_BYTES = 65536, LINES_PER_ERROR = 8 };

/* A page of memory for every eight cells. */
struct cell {
    uint32_t value;
    uint8_t rest[508];
};

struct stream {
    int fd;
    const char *name;
    unsigned long count;
    size_t used;
    char buffer[BUFFER_BYTES];
    struct cell cells[CELLS];
};

static struct stream streams[STREAMS] = {{.fd = 1, .name = "out"}, {.fd = 2, .name = "err"}};
static volatile sig_atomic_t is_ending;

static void end(int number) {
    (void)number;
    is_ending = 1;
}

static uint32_t mix(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7feb352dU;
    x ^= x >> 15;
    x *= 0x846ca68bU;
    return x ^ x >> 16;
}

static uint32_t fnv(const char *text, size_t length) {
    uint32_t hash = 0x811c9dc5U;
    for (size_t at = 0; at < length; at++) hash = (hash ^ (unsigned char)text[at]) * 0x01000193U;
    return hash;
}

static void flush(struct stream *stream) {
    for (size_t done = 0; done < stream->used;) {
        ssize_t count = write(stream->fd, stream->buffer + done, stream->used - done);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) exit(3);
        done += (size_t)count;
    }
    stream->used = 0;
}

static void append(struct stream *stream, const char *text, size_t length) {
    if (stream->used + length > BUFFER_BYTES) flush(stream);
    memcpy(stream->buffer + stream->used, text, length);
    stream->used += length;
}

/* The generation of this machine among forks. */
static unsigned long generation(void) {
    char text[256];
    int fd = open("/run/coppice/fork", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t count = read(fd, text, sizeof text - 1);
    close(fd);
    if (count <= 0) return 0;
    text[count] = 0;
    size_t before = strcspn(text, "0123456789");
    return strtoul(text + before, NULL, 10);
}

static void line(struct stream *stream, const char *name, unsigned long generation_now) {
    char text[LINE_BYTES];
    uint32_t number = (uint32_t)++stream->count;
    struct cell *cell = &stream->cells[number % CELLS];
    int length = snprintf(text, sizeof text, "%s %s %lu %lu %08x ", name, stream->name, stream->count, generation_now, cell->value);
    length += snprintf(text + length, sizeof text - (size_t)length, "%08x\n", fnv(text, (size_t)length));
    cell->value = mix(cell->value ^ number);
    append(stream, text, (size_t)length);
}

static void wait_ms(long milliseconds) {
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    nanosleep(&time, NULL);
}

int main(int count, char **arguments) {
    if (count != 5) return 2;
    const char *name = arguments[1];
    unsigned long at_once = strtoul(arguments[2], NULL, 10);
    unsigned long slow = strtoul(arguments[3], NULL, 10);
    long between_ms = strtol(arguments[4], NULL, 10);
    struct sigaction action = {.sa_handler = end};
    sigaction(SIGTERM, &action, NULL);
    for (uint32_t stream = 0; stream < STREAMS; stream++) {
        for (uint32_t at = 0; at < CELLS; at++) {
            streams[stream].cells[at].value = mix(fnv(name, strlen(name)) ^ mix(at) ^ stream);
        }
    }
    while (!is_ending) {
        unsigned long now = generation();
        for (unsigned long at = 0; at < at_once && !is_ending; at++) {
            line(&streams[OUT], name, now);
            if (at % LINES_PER_ERROR == 0) line(&streams[ERR], name, now);
        }
        flush(&streams[OUT]);
        flush(&streams[ERR]);
        now = generation();
        for (unsigned long at = 0; at < slow && !is_ending; at++) {
            struct stream *stream = &streams[at % STREAMS];
            line(stream, name, now);
            flush(stream);
            wait_ms(between_ms);
        }
    }
    uint32_t sum = 0;
    for (int stream = 0; stream < STREAMS; stream++) {
        for (int at = 0; at < CELLS; at++) sum = mix(sum ^ streams[stream].cells[at].value);
    }
    char text[LINE_BYTES];
    int length = snprintf(text, sizeof text, "%s end %lu %lu %08x\n", name, streams[OUT].count, streams[ERR].count, sum);
    append(&streams[OUT], text, (size_t)length);
    flush(&streams[OUT]);
    return 0;
}
