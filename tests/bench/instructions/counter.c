/*
 * A plug-in of QEMU's emulation that counts the instructions of a guest, by the block of code that they lie in.
 *
 * Debian's package has no header of this interface. These declarations are version 1 of it, as QEMU 4.2 to 8.x have it.
 */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct qemu_plugin_tb;
struct qemu_info_t;

enum qemu_plugin_op {
	QEMU_PLUGIN_INLINE_ADD_U64,
};

void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, void (*callback)(uint64_t id, struct qemu_plugin_tb *block));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *block, enum qemu_plugin_op op, void *value,
					      uint64_t operand);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *block);
int qemu_plugin_install(uint64_t id, const struct qemu_info_t *info, int argc, char **argv);

int qemu_plugin_version = 1;

/* tests/bench/instructions/counter.ts reads the same table. */
#define SLOTS_COUNT (1u << 17)
#define PROBES_COUNT 64

struct slot {
	/* guest address of a block; 0 while unused */
	_Atomic uint64_t address;
	/* instructions that were executed in blocks that begin there */
	uint64_t count;
};

/* The first slot counts the blocks that found no other. */
static struct slot *slots;

static struct slot *slot_of(uint64_t address)
{
	uint64_t start = (address * 0x9e3779b97f4a7c15u) >> 47;

	for (unsigned int probe = 0; probe < PROBES_COUNT; probe++) {
		struct slot *slot = &slots[(start + probe) % SLOTS_COUNT];
		uint64_t unused = 0;

		if (slot == slots)
			continue;
		if (atomic_compare_exchange_strong(&slot->address, &unused, address) || unused == address)
			return slot;
	}
	return slots;
}

/* A block counts wholly when it begins. An exception inside it makes the count a little too high. */
static void on_translation(uint64_t id, struct qemu_plugin_tb *block)
{
	struct slot *slot = slot_of(qemu_plugin_tb_vaddr(block));

	(void)id;
	qemu_plugin_register_vcpu_tb_exec_inline(block, QEMU_PLUGIN_INLINE_ADD_U64, &slot->count,
						 qemu_plugin_tb_n_insns(block));
}

/* The argument is fd=NUMBER, of a file that has the size of the table: it outlives the machine. */
int qemu_plugin_install(uint64_t id, const struct qemu_info_t *info, int argc, char **argv)
{
	(void)info;
	if (argc != 1 || strncmp(argv[0], "fd=", 3) != 0)
		return -1;
	slots = mmap(NULL, SLOTS_COUNT * sizeof(*slots), PROT_READ | PROT_WRITE, MAP_SHARED, atoi(argv[0] + 3), 0);
	if (slots == MAP_FAILED)
		return -1;
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
	return 0;
}
