import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { readdir, stat } from "node:fs/promises";
import { join, relative } from "node:path";
import { BusyboxCommands } from "../../support/appliance/busybox-commands.ts";
import {
  type Body,
  download,
  names,
  operationOf,
  type RunResult,
  resultOf,
  running,
  upload,
  uploadProgram,
} from "../../support/runs.ts";
import { until } from "../../support/waiting.ts";

setDefaultTimeout(120_000);

const box = new BusyboxCommands({ flags: ["--limits-instance-timeout-max", "400"] });
const { exec, shell } = box;
const timedOut = { exit_code: 137, timed_out: true };

/** Takes all processors with real-time priority. */
const SPINNER = `
#define _GNU_SOURCE
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char **argv) {
	struct sched_param highest = {.sched_priority = 99};
	(void)argv;
	if (syscall(SYS_sched_setscheduler, 0, SCHED_FIFO, &highest) != 0) return 3;
	if (write(1, "spinning\\n", 9) != 9) return 4;
	for (int i = argc; i > 1; i--) if (fork() == 0) break;
	for (;;) continue;
}
`;

describe("POST /instances timeout", () => {
  // spec: instances.timeout, result.timed_out
  test.concurrent("kills the whole tree, with processes that ignore SIGTERM, fork, or became daemons", async () => {
    const commands = [
      "trap '' TERM INT HUP; echo begun; while :; do sleep 1; done",
      "trap '' TERM; (trap '' TERM; sleep 300 & sleep 300) & (setsid sh -c 'setsid sleep 300 &' &) ; echo begun; wait; sleep 300",
      "echo begun; exec >/dev/null 2>&1 </dev/null; setsid sleep 300; sleep 300",
    ];
    const results = await Promise.all(commands.map((command) => shell(command, { timeout: 6 })));
    for (const result of results) expect(result).toMatchObject({ ...timedOut, out: "begun\n" });
  });

  test("kills processes that spin with real-time priority, and the operation still ends SUCCESS", async () => {
    const uuid = await uploadProgram(box.appliance, "spinner", SPINNER);
    const files = { "/spin": { uuid, mode: "0755" } };
    const [one, many] = await Promise.all([
      exec({ command: "/spin", files, timeout: 4 }),
      exec({
        command: "/spin",
        args: ["1", "2", "3"],
        files,
        timeout: 2,
        resources: { vcpus: 2 },
      }),
    ]);
    expect(one).toMatchObject(timedOut);
    expect(many).toMatchObject(timedOut);
    expect(one.cpu_time_ms).toBeGreaterThan(500);
  });

  test.concurrent("earlier writes are in the outputs and, unless disposable, in the image", async () => {
    const operation = await box.appliance.run(box.image, "echo first; echo kept > /root/kept; sleep 300", {
      timeout: 6,
    });
    const result = resultOf(operation);
    expect(result).toMatchObject({ ...timedOut, out: "first\n" });
    expect(await (await download(box.appliance, result.image ?? "", "/root/kept")).text()).toBe("kept\n");
    const duration = Number((operation as unknown as Body)["duration_ms"]);
    expect(duration).toBeGreaterThan(5900);
  });

  // spec: instances.timeout
  test.concurrent("is in seconds, 1 to limits.instance_timeout_max; queue time does not count", async () => {
    for (const timeout of [0, -1, 1.5, "5", 401, null]) {
      const response = await box.appliance.post("/instances", { image: box.image, command: "true", timeout });
      expect([timeout, response.status]).toEqual([timeout, 400]);
    }
    // More than can run at once: the last ones wait longer than their time limit.
    const runs = Array.from({ length: 20 }, () => shell("sleep 3; echo ran", { timeout: 10 }));
    for (const result of await Promise.all(runs)) expect(result).toMatchObject({ exit_code: 0, out: "ran\n" });
    expect((await shell("sleep 0.1", { timeout: 400 })).timed_out).toBe(false);
  });

  test.concurrent("a command that ends by itself just in time has not timed out, whatever its exit code", async () => {
    expect(await shell("exit 137", { timeout: 60 })).toMatchObject({ exit_code: 137, timed_out: false });
  });
});

describe("DELETE /operations/{operationId} of an instance", () => {
  // spec: operations.cancel, states.conflict, service.operations
  test.concurrent("answers 202 with the Operation, twice; it ends CANCELLED with the figures so far; then 409", async () => {
    const spin = "while :; do :; done";
    const id = await box.appliance.spawn({ image: box.image, command: spin, shell: true });
    await until(
      "the command has surely begun",
      async () => {
        const stats = await box.appliance.fetch(`/instances/${id}/stats?once=true`);
        return stats.status === 200 && Number(((await stats.json()) as Body)["cpu_time_ms"]) > 3000;
      },
      90_000,
    );
    const first = await box.appliance.fetch(`/operations/${id}`, { method: "DELETE" });
    expect(first.status).toBe(202);
    expect(await first.json()).toMatchObject({ id, kind: "instance" });
    expect([202, 409]).toContain((await box.appliance.fetch(`/operations/${id}`, { method: "DELETE" })).status);
    const operation = (await box.appliance.finished(id)) as unknown as { status: string; error: { details: Body } };
    expect(operation.status).toBe("CANCELLED");
    expect(operation).not.toHaveProperty("result");
    expect(Number(operation.error.details["cpu_time_ms"])).toBeGreaterThan(100);
    expect(Number(operation.error.details["memory_bytes"])).toBeGreaterThan(1_048_576);
    expect((await box.appliance.fetch(`/operations/${id}`, { method: "DELETE" })).status).toBe(409);
  });

  test.concurrent("of a waiting instance ends it at once, and it never runs", async () => {
    // Larger than the rest of the budget while the first one runs.
    const resources = { vcpus: 4 };
    const first = await box.appliance.spawn({
      image: box.image,
      command: "sleep 5",
      shell: true,
      resources,
      disposable: true,
    });
    const waiting = await box.appliance.spawn({ image: box.image, command: "true", resources });
    const cancelled = await box.appliance.fetch(`/operations/${waiting}`, { method: "DELETE" });
    expect([cancelled.status, ((await cancelled.json()) as Body)["status"]]).toEqual([202, "CANCELLED"]);
    expect(await operationOf(box.appliance, waiting)).not.toHaveProperty("started_at");
    await box.appliance.fetch(`/operations/${first}`, { method: "DELETE" });
    expect((await box.appliance.finished(first)).status).toBe("CANCELLED");
  });
});

describe("disposable", () => {
  /** Every stored file with its size, without the rows and outputs of operations. */
  const kept = async () => {
    const entries = await readdir(box.appliance.dataDir, { recursive: true, withFileTypes: true });
    const paths = entries
      .filter((entry) => entry.isFile())
      .map((entry) => relative(box.appliance.dataDir, join(entry.parentPath, entry.name)))
      .filter((path) => /^(layers|blobs|tmp|scratch|assets|keys)\//.test(path));
    return await Promise.all(
      paths.sort().map(async (path) => [path, (await stat(join(box.appliance.dataDir, path))).size]),
    );
  };

  // spec: instances.disposable
  test("makes no image, and leaves the data directory unchanged", async () => {
    const images = async () => ((await (await box.appliance.fetch("/images")).json()) as Body[]).length;
    await until("nothing of other runs is left", async () => (await box.appliance.unfinished()).length === 0);
    const before = { kept: await kept(), images: await images() };
    const result = await shell("dd if=/dev/zero of=/root/big bs=1M count=20 2>/dev/null; rm -rf /etc; echo done");
    expect(result).toMatchObject({ exit_code: 0, out: "done\n" });
    expect(result).not.toHaveProperty("image");
    expect({ kept: await kept(), images: await images() }).toEqual(before);
    expect(await names(box.appliance, box.image, "/etc")).toContain("passwd");
  });
});

describe("an operation of an instance", () => {
  // spec: operation.fields, service.operations, service.figures
  test.concurrent("its uuid is the operation's id; result only when SUCCESS; its times and duration are there", async () => {
    const response = await box.appliance.post("/instances", { image: "tag:busybox", command: "sleep", args: ["1"] });
    const { uuid } = (await response.json()) as { uuid: string };
    expect([response.status, response.headers.get("location")]).toEqual([201, `/v1/operations/${uuid}`]);
    const early = await box.appliance.fetch(`/operations/${uuid}`);
    expect(Number(early.headers.get("retry-after"))).toBeGreaterThan(0);
    expect(await early.json()).not.toHaveProperty("result");
    const operation = (await box.appliance.finished(uuid)) as unknown as Record<string, string>;
    expect(operation).toMatchObject({ id: uuid, kind: "instance", status: "SUCCESS" });
    const time = (name: string) => Date.parse(operation[name] ?? "");
    expect(time("started_at")).toBeGreaterThanOrEqual(time("created_at"));
    expect(time("finished_at") - time("started_at")).toBe(Number(operation["duration_ms"]));
    expect(Number(operation["duration_ms"])).toBeGreaterThan(1000);
    const result = operation["result"] as unknown as RunResult;
    expect(Object.keys(result).sort()).toEqual(
      ["cpu_time_ms", "exit_code", "image", "isolation", "memory_bytes", "stderr", "stdout", "timed_out"].sort(),
    );
  });

  test.concurrent("live stats: server-sent events of a running instance, until it ends; 409 when it does not run", async () => {
    const id = await box.appliance.spawn({
      image: box.image,
      command: "i=0; while [ $i -lt 3 ]; do sleep 1; i=$((i+1)); done",
      shell: true,
    });
    await running(box.appliance, id);
    const response = await box.appliance.fetch(`/instances/${id}/stats`);
    expect(response.headers.get("content-type")).toStartWith("text/event-stream");
    const events = [...(await response.text()).matchAll(/^data: (\{"\w.*)$/gm)].map(([, data]) =>
      JSON.parse(data ?? ""),
    );
    expect(events.length).toBeGreaterThanOrEqual(2);
    for (const event of events) {
      expect(Object.keys(event).sort()).toEqual(
        ["at", "cpu_percent", "cpu_time_ms", "memory_bytes", "memory_peak_bytes", "pids"].sort(),
      );
    }
    await box.appliance.finished(id);
    expect((await box.appliance.fetch(`/instances/${id}/stats`)).status).toBe(409);
  });

  // spec: instances.image, instances.files
  test.concurrent("a deleted image and an unknown file are 404 at once", async () => {
    const unknown = crypto.randomUUID();
    const file = await upload(box.appliance, "x");
    const bodies: Body[] = [
      { image: unknown },
      { image: "tag:no-such-tag" },
      { image: box.image, files: { "/a": { uuid: unknown } } },
      { image: box.image, files: { "/a": { uuid: file }, "/b": { uuid: unknown } } },
    ];
    for (const body of bodies) {
      const response = await box.appliance.post("/instances", { command: "true", ...body });
      expect([response.status, ((await response.json()) as Body)["error"]]).toEqual([404, "not_found"]);
    }
  });
});

test("these tests leave nothing behind", async () => {
  await until("only the pool is left", async () => (await box.appliance.leftovers()).length <= 3);
  const left = await box.appliance.leftovers();
  expect(left.filter((name) => !name.startsWith("vms/"))).toEqual([]);
});

test("stdin and env, which may be secret, are in no file of the data directory after the end", async () => {
  const canary = `canary-${crypto.randomUUID()}`;
  const held = async () => {
    const argv = ["grep", "-rlF", "--exclude-dir=scratch", canary, box.appliance.dataDir];
    return await new Response(Bun.spawn(argv, { timeout: 30_000 }).stdout).text();
  };
  const id = await box.appliance.spawn({
    image: box.image,
    command: ": the rest stays as long as the operation; sleep 300",
    shell: true,
    env: { SECRET: `env-${canary}` },
    stdin: `stdin-${canary}`.repeat(10_000),
    disposable: true,
  });
  await running(box.appliance, id);
  expect(await held()).not.toBe("");
  await box.appliance.fetch(`/operations/${id}`, { method: "DELETE" });
  await box.appliance.finished(id);
  await box.appliance.down();
  expect(await held()).toBe("");
  expect(box.appliance.log).not.toContain(canary);
  await box.appliance.up();
});
