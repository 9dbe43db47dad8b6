/** Guests that keep their machine busy after the end of their command. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import type { Appliance, Finished } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { type Body, execute, resultOf, uploadProgram } from "../../support/runs.ts";

setDefaultTimeout(240_000);

/**
 * A command that runs as root controls its guest. When one of its processes dumps core, the kernel starts this program
 * again, outside of all that ends with the command. There it keeps the root busy, so that it cannot be unmounted.
 * Once the command has ended and the agent tries to unmount the root, the program stops the agent for ever.
 */
const HOLDER = `
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
static int hold(const char *dumping) {
	char path[64];
	int command;
	snprintf(path, sizeof path, "/proc/%s/stat", dumping);
	FILE *stat = fopen(path, "r");
	if (stat == NULL || fscanf(stat, "%*d %*s %*c %d", &command) != 1 || chdir("/r") != 0) return 3;
	close(0);
	while (kill(command, 0) == 0) usleep(20000);
	sleep(2);
	if (ptrace(PTRACE_ATTACH, 1, NULL, NULL) != 0) return 4;
	for (;;) pause();
}
int main(int argc, char **argv) {
	int status;
	if (argc > 1 && argv[1][0] != '-') return hold(argv[1]);
	FILE *pattern = fopen("/proc/sys/kernel/core_pattern", "w");
	if (pattern == NULL || fputs("|/r/holder %P", pattern) < 0 || fclose(pattern) != 0) return 5;
	if (fork() == 0) abort();
	if (wait(&status) < 0 || !WCOREDUMP(status)) return 6;
	for (int i = argc; i > 1; i--) pause();
	return 7;
}
`;

const owned = new AsyncDisposableStack();
let appliance: Appliance;
let image: string;
let holder: string;

beforeAll(async () => {
  ({ appliance, image } = owned.use(await BusyboxAppliance.start({ poolSize: 2, tag: "busybox" })));
  holder = await uploadProgram(appliance, "holder", HOLDER);
});

afterAll(async () => {
  await owned.disposeAsync();
});

const spawnHolder = async (more: Body): Promise<Finished> => {
  const files = { "/holder": { uuid: holder, mode: "0755" } };
  return await appliance.finished(await appliance.spawn({ image, command: "/holder", files, ...more }));
};

describe("a guest that delays the capture of its files", () => {
  test.concurrent("fails within its own time budget, with the command's result in the error", async () => {
    const operation = await spawnHolder({ timeout: 300 });
    expect(operation).toMatchObject({
      status: "FAILED",
      error: {
        error: "conflict",
        details: { reason: "capture_timeout", step: "unmounting the file system of the run", exit_code: 7 },
      },
    });
    const { error, duration_ms } = operation as unknown as { error: { details: Body }; duration_ms: number };
    expect(error.details).toMatchObject({ timed_out: false, cpu_time_ms: expect.any(Number) });
    expect(Number(error.details["memory_bytes"])).toBeGreaterThan(0);
    expect(Number(error.details["allowed_ms"])).toBeLessThan(60_000);
    expect(duration_ms).toBeLessThan(120_000);
  });

  test.concurrent("keeps its result, without an image, when its command had timed out", async () => {
    const result = resultOf(await spawnHolder({ args: ["-for-ever"], timeout: 2 }));
    expect(result).toMatchObject({ exit_code: 137, timed_out: true });
    expect(result).not.toHaveProperty("image");
  });

  test("affects no other run, and leaves nothing behind", async () => {
    expect(await execute(appliance, { image, command: "true" })).toMatchObject({ exit_code: 0 });
    expect((await appliance.leftovers()).filter((name) => !name.startsWith("vms/"))).toEqual([]);
  });
});
