/** Images of running instances: their content, what happens when either ends, and what is left of them. */
import { afterAll, afterEach, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { readdirSync } from "node:fs";
import type { OperationId } from "../../../src/domain/ids.ts";
import { eventLogPath } from "../../../src/storage/events/event-file.ts";
import { dataLayout } from "../../../src/storage/layout.ts";
import type { Appliance, Finished } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { type Body, download, resultOf, uploadProgram } from "../../support/runs.ts";
import { until } from "../../support/waiting.ts";

// On a busy host, an emulated machine takes many times the usual three seconds to boot.
setDefaultTimeout(180_000);

/** Checkpoints of one run; COPPICE_TEST_CHECKPOINTS sets another number. */
const ROUNDS_COUNT = Number(process.env["COPPICE_TEST_CHECKPOINTS"] ?? 12);
const RING_COUNT = 4;

/**
 * Processes in a ring: each writes a record to its file, and only then signals the next one. So a file always has as
 * many records as the one after it, or one more; the same holds for a copy of all files as of one instant.
 * Every other process waits for the disk with each record.
 */
const RING = `
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
int main(void)
{
	int pipes[${RING_COUNT}][2];
	mkdir("/ring", 0755);
	for (int i = 0; i < ${RING_COUNT}; i++)
		if (pipe(pipes[i]) != 0)
			return 1;
	for (int i = 0; i < ${RING_COUNT}; i++) {
		if (i < ${RING_COUNT - 1} && fork() != 0)
			continue;
		char path[32], record[16], token = 'x';
		snprintf(path, sizeof path, "/ring/%d", i);
		int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
		if (i == ${RING_COUNT - 1} && write(pipes[0][1], &token, 1) != 1)
			return 1;
		for (unsigned n = 1;; n++) {
			if (read(pipes[i][0], &token, 1) != 1)
				return 2;
			int length = snprintf(record, sizeof record, "%u\\n", n);
			if (write(fd, record, (size_t)length) != length)
				return 3;
			if (i % 2 == 0 && fsync(fd) != 0)
				return 4;
			if (write(pipes[(i + 1) % ${RING_COUNT}][1], &token, 1) != 1)
				return 5;
		}
	}
	return 0;
}
`;

const owned = new AsyncDisposableStack();
let appliance: Appliance;
let base: string;
let ring: string;
beforeAll(async () => {
  // Room for one machine: a checkpoint must not wait for the end of the run that it copies.
  const flags = ["--vm-cpu-budget", "1"];
  ({ appliance, image: base } = owned.use(await BusyboxAppliance.start({ poolSize: 1, flags })));
  ring = await uploadProgram(appliance, "ring", RING);
});
afterEach(async () => {
  // The next test has room only when the run of a failed test has ended.
  const running = (await (await appliance.fetch("/operations?status=EXECUTING")).json()) as Finished[];
  for (const { id } of running) await cancelled(id);
});
afterAll(async () => {
  await owned.disposeAsync();
});

interface Checkpoint {
  readonly image: string;
  readonly tag?: string;
  readonly size_bytes: number;
  readonly pause_ms: number;
}

async function ask(instance: string, request: Body = {}): Promise<string> {
  const response = await appliance.post(`/instances/${instance}/checkpoint`, request);
  const body = (await response.json()) as { uuid: string };
  if (response.status !== 202) throw new Error(`the checkpoint answered ${response.status}: ${JSON.stringify(body)}`);
  expect(response.headers.get("location")).toEndWith(`/v1/operations/${body.uuid}`);
  return body.uuid;
}

async function checkpointOf(instance: string, request: Body = {}): Promise<Checkpoint> {
  const operation = await appliance.finished(await ask(instance, request));
  if (operation.status !== "SUCCESS") throw new Error(JSON.stringify(operation));
  return operation.result as unknown as Checkpoint;
}

/** Starts a run and waits until its command has begun. */
async function started(request: Body): Promise<string> {
  const id = await appliance.spawn({ image: base, shell: true, timeout: 120, ...request });
  await begun(id);
  return id;
}

/** An instance has its machine before its command runs, and is refused a checkpoint until then. */
async function begun(id: string): Promise<void> {
  await until("the command begins", async () => {
    const response = await appliance.post(`/instances/${id}/checkpoint`, {});
    if (response.status === 409) return false;
    const { uuid } = (await response.json()) as { uuid: string };
    await appliance.finished(uuid);
    return true;
  });
}

async function cancelled(id: string): Promise<Finished> {
  await appliance.fetch(`/operations/${id}`, { method: "DELETE" });
  return await appliance.finished(id);
}

async function fileOf(image: string, path: string): Promise<string> {
  return await (await download(appliance, image, path)).text();
}

/** The event log of an operation: JSON between bytes that are not text. */
const eventsOf = async (id: string) =>
  await Bun.file(eventLogPath(dataLayout(appliance.dataDir), id as OperationId)).text();

const layers = () => readdirSync(`${appliance.dataDir}/layers`).length;

describe("a checkpoint", () => {
  test("is an image from which others start, while the run continues to its own end", async () => {
    const id = await started({ command: "echo one > /one; while [ ! -e /stop ]; do sleep 0.1; done" });
    const operation = await ask(id, { tag: "half-way" });
    const { result } = await appliance.finished(operation);
    const { image, tag, size_bytes, pause_ms } = result as unknown as Checkpoint;
    expect(tag).toBe("half-way");
    expect(pause_ms).toBeGreaterThan(0);
    expect(size_bytes).toBeLessThan(4_000_000);
    expect(await fileOf(image, "/one")).toBe("one\n");
    const images = (await (await appliance.fetch("/images?tag=half-way")).json()) as Body[];
    expect(images.map(({ uuid }) => uuid)).toEqual([image]);
    const steps = (await (await appliance.fetch(`/images/${image}/lineage`)).json()) as Body[];
    expect(steps.map(({ uuid, kind }) => ({ uuid, kind }))).toEqual([
      { uuid: image, kind: "checkpoint" },
      { uuid: base, kind: "image_import" },
    ]);
    expect(steps[0]).toMatchObject({
      parent: base,
      command: expect.arrayContaining([expect.stringContaining("/one")]),
    });
    expect(steps[0]).not.toHaveProperty("exit_code");
    const run = await cancelled(id);
    expect(run.status).toBe("CANCELLED");
    expect(await eventsOf(id)).toContain(JSON.stringify({ operation, image, pause_ms }));
    expect(await eventsOf(operation)).toMatch(/"step":"copying"[\s\S]*"step":"indexing","pause_ms":/);
    const branch = resultOf(await appliance.run(image, "cat /one; echo two > /two"));
    expect(branch.out).toBe("one\n");
    expect(await fileOf(branch.image ?? "", "/two")).toBe("two\n");
  });

  test("of a run without changes is an image with a tag of its own", async () => {
    const id = await started({ command: "sleep 100" });
    const before = layers();
    const { image, size_bytes } = await checkpointOf(id, { tag: "unchanged" });
    expect(image).not.toBe(base);
    expect(size_bytes).toBe(0);
    expect(layers()).toBe(before);
    await cancelled(id);
    expect(resultOf(await appliance.run(image, "true", { disposable: true })).exit_code).toBe(0);
  });

  test(
    `has all files as of one instant, ${ROUNDS_COUNT} times, and leaves nothing else behind`,
    async () => {
      const files = { "/bin/ring": { uuid: ring, mode: "0755" } };
      const id = await started({ command: "ring", files, timeout: 60 + 5 * ROUNDS_COUNT });
      const before = { layers: layers(), fds: readdirSync(`/proc/${appliance.pid}/fd`).length };
      const machine = (await appliance.monitorPids()).length;
      const pauses: number[] = [];
      let last = 0;
      for (let round = 0; round < ROUNDS_COUNT; round++) {
        const { image, pause_ms } = await checkpointOf(id);
        pauses.push(pause_ms);
        const counts: number[] = [];
        for (let number = 0; number < RING_COUNT; number++) {
          const records = (await fileOf(image, `/ring/${number}`)).split("\n");
          expect(records.pop()).toBe("");
          expect(records).toEqual(records.map((_, index) => `${index + 1}`));
          counts.push(records.length);
        }
        const [first = 0] = counts;
        expect(counts.every((count) => count === first || count === first - 1)).toBe(true);
        expect(counts.toSorted((a, b) => b - a)).toEqual(counts);
        expect(first).toBeGreaterThan(last);
        last = first;
        const response = await appliance.fetch(`/images/${image}`, { method: "DELETE" });
        expect(response.status).toBe(204);
      }
      process.stderr.write(`checkpoint: pauses of ${pauses.join(", ")} ms, ${last} records\n`);
      await until("the layers are gone", () => layers() === before.layers);
      await until("no copy is left", async () => (await appliance.unfinished()).length === 0);
      const descriptors = () => readdirSync(`/proc/${appliance.pid}/fd`).length;
      await until("no descriptor is left", () => descriptors() < before.fds + 10);
      await until("no machine is left", async () => (await appliance.monitorPids()).length <= machine + 1);
      expect((await cancelled(id)).status).toBe("CANCELLED");
      await until("nothing is left", async () => (await appliance.unfinished()).length === 0);
    },
    120_000 + 6000 * ROUNDS_COUNT,
  );

  test("is made within its time while writers never stop", async () => {
    // They overwrite what fits in the guest's memory, so that dirty pages are always left.
    const writer = (name: string) => `while :; do dd if=/dev/zero of=/${name} bs=65536 count=640 conv=notrunc; done`;
    const id = await started({ command: `(${writer("a")}) 2>/dev/null & ${writer("b")} 2>/dev/null` });
    for (const round of [1, 2, 3]) {
      const { image, pause_ms, size_bytes } = await checkpointOf(id);
      process.stdout.write(`checkpoint ${round} of endless writers: ${pause_ms} ms without writes\n`);
      expect(pause_ms).toBeLessThan(5000);
      expect(size_bytes).toBeLessThan(100_000_000);
      for (const name of ["/a", "/b"]) {
        const bytes = new Uint8Array(await (await download(appliance, image, name)).arrayBuffer());
        expect(bytes.every((byte) => byte === 0)).toBe(true);
      }
    }
    expect((await cancelled(id)).status).toBe("CANCELLED");
    await until("nothing is left", async () => (await appliance.unfinished()).length === 0);
  });

  test("is refused without a run, during another checkpoint, and for an unknown instance", async () => {
    const id = await started({ command: "sleep 100" });
    const asked = await Promise.all([1, 2].map(() => appliance.post(`/instances/${id}/checkpoint`, {})));
    asked.sort((one, other) => one.status - other.status);
    expect(asked.map(({ status }) => status)).toEqual([202, 409]);
    const [accepted, refused] = await Promise.all(asked.map(async (answer) => (await answer.json()) as Body));
    expect(refused).toMatchObject({ error: "conflict", message: expect.stringContaining("under way") });
    expect((await appliance.finished(String(accepted?.["uuid"]))).status).toBe("SUCCESS");
    await cancelled(id);
    expect((await appliance.post(`/instances/${id}/checkpoint`, {})).status).toBe(409);
    const other = await appliance.createToken("other");
    expect((await appliance.post(`/instances/${id}/checkpoint`, {}, other)).status).toBe(404);
    const reader = await appliance.createToken("tester", "--scope", "instances:read");
    expect((await appliance.post(`/instances/${id}/checkpoint`, {}, reader)).status).toBe(403);
  });
});

describe("an end", () => {
  const command = "busybox dd if=/dev/zero of=/large bs=1M count=200 2>/dev/null; touch /large-is-there; sleep 100";

  test("of the run fails an unfinished checkpoint, and leaves a finished one", async () => {
    for (let round = 0; round < 4; round++) {
      const id = await started(round % 2 === 0 ? { command } : { command: "read line", stdin_open: true });
      const checkpoint = await ask(id);
      if (round % 2 === 0) await cancelled(id);
      else await appliance.post(`/instances/${id}/processes/1/stdin`, { content: "\n", close: true });
      const operation = await appliance.finished(checkpoint);
      if (operation.status !== "SUCCESS") {
        expect(operation).toMatchObject({ status: "FAILED", error: { error: "conflict" } });
      }
      const run = await appliance.finished(id);
      expect(run.status).toBe(round % 2 === 0 ? "CANCELLED" : "SUCCESS");
    }
    await until("nothing is left", async () => (await appliance.unfinished()).length === 0);
  });

  test("of the command by its time limit lets it die while its writes are held up, and keeps its files", async () => {
    const writers = "for i in 1 2 3; do while :; do date >> /now; sync; done & done; wait";
    const id = await started({ command: writers, timeout: 4 });
    for (;;) {
      const response = await appliance.post(`/instances/${id}/checkpoint`, {});
      if (response.status !== 202) break;
      await appliance.finished(((await response.json()) as { uuid: string }).uuid);
    }
    const run = resultOf(await appliance.finished(id));
    expect(run.timed_out).toBe(true);
    expect(await fileOf(run.image ?? "", "/now")).toContain("UTC");
  });

  test("of a checkpoint by a cancel or its time limit does not affect the run", async () => {
    const id = await started({ command: `${command} & while :; do date > /now; done` });
    const checkpoint = await ask(id);
    expect((await cancelled(checkpoint)).status).toBe("CANCELLED");
    await until("nothing is left", async () => (await appliance.unfinished()).length === 0);
    const { image } = await checkpointOf(id);
    expect(await fileOf(image, "/large-is-there").catch(() => "")).toBeDefined();
    await cancelled(id);
  });

  test("of the service fails it, and the next start removes its remains", async () => {
    const id = await started({ command });
    const checkpoint = await ask(id);
    await appliance.down("SIGKILL");
    await appliance.up();
    expect(["FAILED", "SUCCESS"]).toContain((await appliance.finished(checkpoint)).status);
    // The instance has outlived the service.
    await cancelled(id);
    await until("nothing is left", async () => (await appliance.unfinished()).length === 0);
  });
});
