import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import type { OperationId } from "../../../src/domain/ids.ts";
import { eventLogPath } from "../../../src/storage/events/event-file.ts";
import { READERS_COUNT_MAX } from "../../../src/storage/events/event-logs.ts";
import { dataLayout } from "../../../src/storage/layout.ts";
import type { Appliance } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { residentMib } from "../../support/appliance/resident.ts";
import { EventFollower, eventsOf, neverReads, outputOf } from "../../support/event-client.ts";
import { filesOpenBelow } from "../../support/images/layer-files.ts";
import { seededRandom, seedOfTests } from "../../support/random.ts";
import { bytesOf, operationOf, resultOf } from "../../support/runs.ts";
import { until } from "../../support/waiting.ts";

// A busy host boots an emulated machine in many times the usual three seconds.
setDefaultTimeout(180_000);

const MIB = 1_048_576;

const owned = new AsyncDisposableStack();
let appliance: Appliance;
let image: string;

beforeAll(async () => {
  ({ appliance, image } = owned.use(await BusyboxAppliance.start({ tag: "busybox" })));
});

afterAll(async () => {
  await owned.disposeAsync();
});

const spawn = (command: string, more: Record<string, unknown> = {}) =>
  appliance.spawn({ image, command, shell: true, disposable: true, ...more });
const openLogs = () => filesOpenBelow(`${appliance.dataDir}/events`, appliance.pid);
const types = (events: readonly { readonly type: string }[]) => events.map(({ type }) => type);

describe("the events of a run", () => {
  test("say what it did, in order, and their outputs are the result's", async () => {
    const files = {};
    const id = await spawn("cat; echo problem >&2; exit 3", { stdin: "given", timeout: 77, cwd: "/tmp", files });
    const result = resultOf(await appliance.finished(id));
    const events = await eventsOf(appliance, id);
    const [init, started] = events;
    const exit = events.find(({ type }) => type === "exit");
    expect(types(events).filter((type) => type !== "stdout" && type !== "stderr")).toEqual([
      ...["init", "spawn", "stdin", "exit", "shutdown", "completion"],
    ]);
    expect(events.map(({ id: number }) => number)).toEqual(events.map((_, index) => index));
    expect(init).toMatchObject({
      spid: 0,
      data: { vcpus: 1, isolation: expect.any(String), hostname: expect.any(String) },
    });
    expect(started).toMatchObject({ spid: 1, data: { command: "/bin/sh", cwd: "/tmp", uid: 0, gid: 0, timeout: 77 } });
    expect(started?.data.args).toEqual(["-c", "cat; echo problem >&2; exit 3"]);
    expect(started?.data.pid).toBeGreaterThan(0);
    expect(events.find(({ type }) => type === "stdin")?.data).toEqual({ bytes: 5 });
    expect(exit?.data).toMatchObject({ exit_code: 3, signal: null, timed_out: false, pid: started?.data.pid });
    expect(exit?.data).toMatchObject({ cpu_time_ms: result.cpu_time_ms, memory_bytes: result.memory_bytes });
    expect(exit?.data.resources.max_rss_kb).toBeGreaterThan(0);
    expect(events.at(-2)?.data).toMatchObject({ reason: "job_complete" });
    expect(events.at(-1)?.data).toMatchObject({ status: "SUCCESS" });
    expect([outputOf(events, 1, "stdout").toString(), outputOf(events, 1, "stderr").toString()]).toEqual([
      result.out,
      result.err,
    ]);
    const times = events.map(({ time }) => Date.parse(time));
    expect(times).toEqual([...times].sort((a, b) => a - b));
  });

  test("arrive during the run, each when it happens", async () => {
    const id = await spawn("echo first; read line; echo $line", { stdin: "x", timeout: 60 });
    const follower = new EventFollower(appliance, id);
    await follower.follow();
    expect(follower.isComplete).toBe(true);
    expect((await appliance.finished(id)).status).toBe("SUCCESS");
    const slow = await spawn("while :; do echo tick; sleep 0.1; done", { timeout: 60 });
    const seen = new EventFollower(appliance, slow);
    while (types(seen.events).filter((type) => type === "stdout").length < 5) await seen.follow(400);
    expect(await operationOf(appliance, slow)).toMatchObject({ status: "EXECUTING" });
    await appliance.fetch(`/operations/${slow}`, { method: "DELETE" });
    await seen.follow();
    expect(seen.events.at(-1)?.data.status).toBe("CANCELLED");
    expect(seen.events.at(-2)).toMatchObject({ type: "shutdown", data: { reason: "signal" } });
    expect(await eventsOf(appliance, slow)).toEqual(seen.events);
  });

  test("report truncated output, and what ended a run", async () => {
    const cut = await spawn("seq 100000; seq 10 >&2", { truncate_output_at: 1000 });
    const killed = await spawn("kill -9 $$");
    const late = await spawn("sleep 100", { timeout: 1 });
    const result = resultOf(await appliance.finished(cut));
    const events = await eventsOf(appliance, cut);
    expect(events.filter(({ type }) => type === "truncated").map(({ data }) => data)).toEqual([
      { stream: "stdout", bytes_emitted: 1000, bytes_dropped: 588_895 - 1000 },
    ]);
    expect(outputOf(events, 1, "stdout")).toEqual(bytesOf(result.stdout));
    expect([result.stdout.truncated, result.stderr.truncated]).toEqual([true, false]);
    await appliance.finished(killed);
    const exitOf = async (id: string) => (await eventsOf(appliance, id)).find(({ type }) => type === "exit")?.data;
    expect(await exitOf(killed)).toMatchObject({ exit_code: 137, signal: 9, timed_out: false });
    await appliance.finished(late);
    expect(await exitOf(late)).toMatchObject({ timed_out: true });
    expect((await eventsOf(appliance, late)).at(-2)?.data.reason).toBe("timeout");
  });

  test("are complete for a client whose connection is cut at random bytes, again and again", async () => {
    const random = seededRandom(seedOfTests());
    const script = `
      i=1
      while [ $i -le 120 ]; do
        seq $i $((i * 20)); seq $i $((i * 9)) >&2
        [ $((i % 10)) = 0 ] && { head -c 5000 /dev/urandom; sleep 0.2; }
        i=$((i + 1))
      done`;
    const id = await spawn(script, { truncate_output_at: 10 * MIB, timeout: 120 });
    const followers = Array.from({ length: 3 }, () => new EventFollower(appliance, id));
    const follow = async (follower: EventFollower): Promise<void> => {
      while (!follower.isComplete)
        await follower.follow(random.below(8) === 0 ? random.below(200) : random.below(90_000));
    };
    await Promise.all(followers.map(follow));
    const result = resultOf(await appliance.finished(id));
    const all = await eventsOf(appliance, id);
    // Once more after the end.
    const after = new EventFollower(appliance, id);
    await follow(after);
    for (const follower of [...followers, after]) {
      expect(follower.cutsCount).toBeGreaterThan(5);
      expect(follower.events).toEqual(all);
      expect(outputOf(follower.events, 1, "stdout").equals(bytesOf(result.stdout))).toBe(true);
      expect(outputOf(follower.events, 1, "stderr").equals(bytesOf(result.stderr))).toBe(true);
    }
    expect(bytesOf(result.stdout).byteLength).toBeGreaterThan(400_000);
    await until("no log is open", () => openLogs().length === 0);
  });
});

test("followers that never read, of a run that never stops writing, cost the daemon little memory", async () => {
  const id = await spawn("yes stdout & yes stderr >&2", { truncate_output_at: 10 * MIB, timeout: 170 });
  // With the follower, as many as an operation can have.
  const sockets = Array.from({ length: READERS_COUNT_MAX - 1 }, () => neverReads(appliance, id));
  const follower = new EventFollower(appliance, id);
  const followed = follower.follow();
  const log = eventLogPath(dataLayout(appliance.dataDir), id as OperationId);
  await until("the log is almost as long as may be", () => Bun.file(log).size >= 2 * 10 * MIB, 150_000);
  // The log has more than the outputs.
  await until("both outputs are as long as may be", async () => {
    const response = await appliance.fetch(`/instances/${id}/processes/1`);
    const { stdout, stderr } = (await response.json()) as Record<"stdout" | "stderr", { readonly content: string }>;
    return stdout.content.length === 10 * MIB && stderr.content.length === 10 * MIB;
  });
  expect((await appliance.fetch(`/instances/${id}/processes/1`, { method: "DELETE" })).status).toBe(204);
  await followed;
  const events = follower.events;
  expect(outputOf(events, 1, "stdout").byteLength).toBe(10 * MIB);
  expect(outputOf(events, 1, "stderr").byteLength).toBe(10 * MIB);
  expect(events.filter(({ type }) => type === "truncated")).toHaveLength(2);
  const peakMib = residentMib(appliance.pid, "VmHWM");
  process.stdout.write(`${sockets.length} followers that never read: ${peakMib.toFixed(0)} MiB RSS at most\n`);
  expect(peakMib).toBeLessThan(250);
  for (const socket of sockets) socket.destroy();
  await until("no log is open", () => openLogs().length === 0);
});

test.each(["SIGTERM", "SIGKILL"] as const)(
  "%s of the daemon leaves a log that ends, and nothing that was seen is lost",
  async (signal) => {
    const id = await spawn("i=0; while :; do echo line $i; i=$((i + 1)); done", { timeout: 120 });
    const follower = new EventFollower(appliance, id);
    await follower.follow(200_000);
    const cut = follower.follow();
    await appliance.down(signal);
    await cut;
    const seenCount = follower.events.length;
    expect(seenCount).toBeGreaterThan(10);
    expect(follower.isComplete).toBe(false);
    await appliance.up();
    // The instance outlives a service that is killed.
    const outlives = signal === "SIGKILL";
    if (outlives) await appliance.fetch(`/operations/${id}`, { method: "DELETE" });
    await follower.follow();
    const status = outlives ? "CANCELLED" : "FAILED";
    expect(follower.events.at(-1)).toMatchObject({ type: "completion", data: { status } });
    if (!outlives) expect(follower.events.at(-1)?.data.error.message).toContain("stopped");
    expect(follower.events.map((event) => event.id)).toEqual(follower.events.map((_, index) => index));
    expect(await eventsOf(appliance, id)).toEqual(follower.events);
    const lines = outputOf(follower.events, 1, "stdout").toString().split("\n").slice(0, -1);
    expect(lines).toEqual(lines.map((_, index) => `line ${index}`));
  },
);
