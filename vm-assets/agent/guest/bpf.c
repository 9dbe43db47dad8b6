#include "bpf.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

void emit(struct assembly *assembly, unsigned code, unsigned to, unsigned from, int offset, int32_t value)
{
	assert(assembly->count < INSTRUCTIONS_COUNT_MAX);
	assembly->code[assembly->count++] = (struct bpf_insn){
		.code = (uint8_t)code, .dst_reg = to & 0xf, .src_reg = from & 0xf, .off = (int16_t)offset, .imm = value};
}

void move(struct assembly *assembly, unsigned to, unsigned from)
{
	emit(assembly, BPF_ALU64 | BPF_MOV | BPF_X, to, from, 0, 0);
}

void set(struct assembly *assembly, unsigned to, int32_t value)
{
	emit(assembly, BPF_ALU64 | BPF_MOV | BPF_K, to, 0, 0, value);
}

void compute(struct assembly *assembly, unsigned operation, unsigned to, int32_t value)
{
	emit(assembly, BPF_ALU64 | operation | BPF_K, to, 0, 0, value);
}

void load(struct assembly *assembly, unsigned size, unsigned to, unsigned base, int offset)
{
	emit(assembly, BPF_LDX | BPF_MEM | size, to, base, offset, 0);
}

void store(struct assembly *assembly, unsigned size, int offset, unsigned from)
{
	emit(assembly, BPF_STX | BPF_MEM | size, BPF_REG_10, from, offset, 0);
}

void store_value(struct assembly *assembly, unsigned size, int offset, int32_t value)
{
	emit(assembly, BPF_ST | BPF_MEM | size, BPF_REG_10, 0, offset, value);
}

void point(struct assembly *assembly, unsigned to, int offset)
{
	move(assembly, to, BPF_REG_10);
	compute(assembly, BPF_ADD, to, offset);
}

/* Its offset is known when the label is placed. */
static void emit_jump(struct assembly *assembly, unsigned code, unsigned operand, int32_t value, unsigned label)
{
	assert(label < LABELS_COUNT_MAX);
	assembly->targets[assembly->count] = (uint8_t)(1 + label);
	emit(assembly, code, operand, 0, 0, value);
}

void jump(struct assembly *assembly, unsigned label)
{
	emit_jump(assembly, BPF_JMP | BPF_JA, 0, 0, label);
}

void jump_if(struct assembly *assembly, unsigned operation, unsigned operand, int32_t value, unsigned label)
{
	emit_jump(assembly, BPF_JMP | operation | BPF_K, operand, value, label);
}

void place(struct assembly *assembly, unsigned label)
{
	assembly->labels[label] = assembly->count;
}

void use_map(struct assembly *assembly, unsigned to, int map)
{
	/* An instruction of twice the size. */
	emit(assembly, BPF_LD | BPF_DW | BPF_IMM, to, BPF_PSEUDO_MAP_FD, 0, map);
	emit(assembly, 0, 0, 0, 0, 0);
}

void call(struct assembly *assembly, int32_t function)
{
	emit(assembly, BPF_JMP | BPF_CALL, 0, 0, 0, function);
}

void leave(struct assembly *assembly, int32_t result)
{
	/* The upper half stays clear: the kernel knows results of 32 bits. */
	emit(assembly, BPF_ALU | BPF_MOV | BPF_K, BPF_REG_0, 0, 0, result);
	emit(assembly, BPF_JMP | BPF_EXIT, 0, 0, 0, 0);
}

static int bpf(int command, union bpf_attr *attributes)
{
	return (int)syscall(SYS_bpf, command, attributes, sizeof *attributes);
}

/* The system call's attributes, all of them zero: the kernel refuses unknown bits. */
static void clear(union bpf_attr *attributes)
{
	memset(attributes, 0, sizeof *attributes);
}

static int check(int fd, const char *what, struct problem *problem)
{
	if (fd < 0)
		problem_set(problem, errno, "%s", what);
	return fd;
}

int bpf_load(struct assembly *assembly, unsigned type, unsigned attach, const char *what, struct problem *problem)
{
	union bpf_attr attributes;
	for (unsigned i = 0; i < assembly->count; i++)
		if (assembly->targets[i] != 0)
			assembly->code[i].off = (int16_t)((int)assembly->labels[assembly->targets[i] - 1] - (int)i - 1);
	clear(&attributes);
	attributes.prog_type = type;
	attributes.expected_attach_type = attach;
	attributes.insns = (uintptr_t)assembly->code;
	attributes.insn_cnt = assembly->count;
	/* Some helper functions are for programs with this license only. */
	attributes.license = (uintptr_t)"GPL";
	return check(bpf(BPF_PROG_LOAD, &attributes), what, problem);
}

int bpf_link(int program, int target, unsigned attach, const char *what, struct problem *problem)
{
	union bpf_attr attributes;
	clear(&attributes);
	attributes.link_create.prog_fd = (uint32_t)program;
	attributes.link_create.target_fd = (uint32_t)target;
	attributes.link_create.attach_type = attach;
	return check(bpf(BPF_LINK_CREATE, &attributes), what, problem);
}

int bpf_map(unsigned type, unsigned key_size, unsigned value_size, unsigned count, unsigned flags, const char *what,
	struct problem *problem)
{
	union bpf_attr attributes;
	clear(&attributes);
	attributes.map_type = type;
	attributes.key_size = key_size;
	attributes.value_size = value_size;
	attributes.max_entries = count;
	attributes.map_flags = flags;
	return check(bpf(BPF_MAP_CREATE, &attributes), what, problem);
}

static bool element(int command, int map, const void *key, const void *value)
{
	union bpf_attr attributes;
	clear(&attributes);
	attributes.map_fd = (uint32_t)map;
	attributes.key = (uintptr_t)key;
	attributes.value = (uintptr_t)value;
	return bpf(command, &attributes) == 0;
}

bool bpf_set(int map, const void *key, const void *value)
{
	return element(BPF_MAP_UPDATE_ELEM, map, key, value);
}

bool bpf_get(int map, const void *key, void *value)
{
	return element(BPF_MAP_LOOKUP_ELEM, map, key, value);
}

bool bpf_delete(int map, const void *key)
{
	return element(BPF_MAP_DELETE_ELEM, map, key, NULL);
}

bool bpf_next(int map, const void *key, void *next)
{
	/* `next_key` is where `value` is. */
	return element(BPF_MAP_GET_NEXT_KEY, map, key, next);
}
