/* Programs and maps of the kernel, written by hand, because there is no compiler or library for them. */
#ifndef COPPICE_BPF_H
#define COPPICE_BPF_H

#include <linux/bpf.h>
#include <stdbool.h>
#include <stdint.h>

#include "../problem.h"

#define INSTRUCTIONS_COUNT_MAX 96
#define LABELS_COUNT_MAX 16

/* A program that is being written. Jumps name labels, which may be placed later. */
struct assembly {
	struct bpf_insn code[INSTRUCTIONS_COUNT_MAX];
	uint8_t targets[INSTRUCTIONS_COUNT_MAX]; /* 0: no jump; otherwise 1 + label */
	unsigned labels[LABELS_COUNT_MAX];
	unsigned count;
};

/* `size`: BPF_B, BPF_H, BPF_W or BPF_DW. `operation`: as in linux/bpf.h, for example BPF_AND or BPF_JEQ. */
void emit(struct assembly *assembly, unsigned code, unsigned to, unsigned from, int offset, int32_t value);
void move(struct assembly *assembly, unsigned to, unsigned from);
void set(struct assembly *assembly, unsigned to, int32_t value);
void compute(struct assembly *assembly, unsigned operation, unsigned to, int32_t value);
void load(struct assembly *assembly, unsigned size, unsigned to, unsigned base, int offset);
void store(struct assembly *assembly, unsigned size, int offset, unsigned from);
void store_value(struct assembly *assembly, unsigned size, int offset, int32_t value);
/* The address of a place on the stack. */
void point(struct assembly *assembly, unsigned to, int offset);
void jump(struct assembly *assembly, unsigned label);
/* Compares 64 bits with a value that is extended by its sign. */
void jump_if(struct assembly *assembly, unsigned operation, unsigned operand, int32_t value, unsigned label);
void place(struct assembly *assembly, unsigned label);
void use_map(struct assembly *assembly, unsigned to, int map);
void call(struct assembly *assembly, int32_t function);
void leave(struct assembly *assembly, int32_t result);

/* These return a descriptor, or -1 with a problem that names `what`. */
int bpf_load(struct assembly *assembly, unsigned type, unsigned attach, const char *what, struct problem *problem);
int bpf_link(int program, int target, unsigned attach, const char *what, struct problem *problem);
int bpf_map(unsigned type, unsigned key_size, unsigned value_size, unsigned count, unsigned flags, const char *what,
	struct problem *problem);

/* These return false and errno on failure. */
bool bpf_set(int map, const void *key, const void *value);
bool bpf_get(int map, const void *key, void *value);
bool bpf_delete(int map, const void *key);
/* The key after `key`, or the first one for NULL. */
bool bpf_next(int map, const void *key, void *next);

#endif
