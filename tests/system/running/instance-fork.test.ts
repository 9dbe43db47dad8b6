/** Forks of instances with their memory, on real machines. */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { until } from "../../support/waiting.ts";

// On a busy host, an emulated machine takes many times the usual three seconds to boot.
setDefaultTimeout(480_000);

let busybox: BusyboxAppliance;
beforeAll(async () => {
  busybox = await BusyboxAppliance.start({ poolSize: 0, flags: ["--vm-cpu-budget", "16"] });
});
afterAll(async () => {
  await busybox?.[Symbol.asyncDispose]();
});

interface Event {
  readonly id: number;
  readonly type: string;
  readonly spid?: number;
  readonly data: Readonly<Record<string, unknown>>;
}

async function eventsOf(id: string): Promise<Event[]> {
  const headers = { accept: "application/json" };
  return (await (await busybox.appliance.fetch(`/operations/${id}/events`, { headers })).json()) as Event[];
}

const stdout = (events: readonly Event[], upTo = Infinity): string =>
  events.flatMap(({ id, type, data }) => (type === "stdout" && id <= upTo ? [String(data["content"])] : [])).join("");

async function fork(id: string, request: Record<string, unknown> = {}) {
  const response = await busybox.appliance.post(`/instances/${id}/fork`, request);
  const body = (await response.json()) as never;
  return { status: response.status, body };
}

interface Fork {
  readonly paused_ms: number;
  readonly instances: readonly { readonly uuid: string; readonly index: number }[];
}

/** A copy whose input has ended reads the rest, and makes an image of its own. */
const COUNT = `i=0; while [ ! -e /stop ]; do i=$((i+1)); echo line $i; sleep 0.05; done
while read word; do echo got $word; done; echo $i > /root/last; cat /run/coppice/fork`;

test("copies are instances that continue the command, with a log, a result and an image of their own", async () => {
  const parent = await busybox.appliance.spawn({
    ...{ image: busybox.image, command: COUNT, shell: true, stdin: "one\n", stdin_open: true, timeout: 400 },
  });
  await until("it talks", async () => stdout(await eventsOf(parent)).length > 20, 120_000);
  const { status, body } = await fork(parent, { count: 2, timeout: 300 });
  expect([status, body]).toEqual([201, expect.anything()]);
  const { paused_ms, instances } = body as Fork;
  expect(paused_ms).toBeGreaterThan(0);
  expect(instances.map(({ index }) => index)).toEqual([1, 2]);
  const stop = { command: "touch /stop", shell: true };
  for (const id of [parent, ...instances.map(({ uuid }) => uuid)]) {
    await until("it runs", async () => {
      const started = await busybox.appliance.post(`/instances/${id}/processes`, stop);
      return started.status === 201;
    });
  }
  const before = await eventsOf(parent);
  for (const { uuid, index } of instances) {
    const ended = await busybox.appliance.finished(uuid);
    expect(ended).toMatchObject({ status: "SUCCESS", kind: "instance", parent, result: { exit_code: 0 } });
    const events = await eventsOf(uuid);
    const atEvent = Number(ended.forked_at_event);
    expect(events[0]).toMatchObject({ type: "fork", data: { parent, at_event: atEvent } });
    // Its own output alone is its result.
    expect((ended.result as unknown as { stdout: { content: string } }).stdout.content).toBe(stdout(events));
    const lines = (stdout(before, atEvent) + stdout(events)).split("\n");
    const numbered = lines.filter((line) => line.startsWith("line"));
    expect(numbered).toEqual(numbered.map((_, at) => `line ${at + 1}`));
    expect(lines.slice(numbered.length)).toEqual(["got one", "generation=1", `index=${index}`, ""]);
    const image = (ended.result as unknown as { image: string }).image;
    const last = await busybox.appliance.run(image, "cat /root/last");
    expect((last.result as unknown as { stdout: { content: string } }).stdout.content).toBe(`${numbered.length}\n`);
  }
  // The input of the parent is still open.
  await busybox.appliance.post(`/instances/${parent}/processes/1/stdin`, { content: "two\n", close: true });
  const ended = await busybox.appliance.finished(parent);
  expect(ended.status).toBe("SUCCESS");
  expect(stdout(await eventsOf(parent))).toContain("got one\ngot two\n");
  expect(await fork(parent)).toMatchObject({ status: 409, body: { error: "conflict" } });
});

test("a copy ends at its own time limit, which may be shorter or longer than what its parent has left", async () => {
  const parent = await busybox.appliance.spawn({
    ...{ image: busybox.image, command: "sleep 1000", shell: true, timeout: 300, disposable: true },
  });
  await until("it runs", async () => (await eventsOf(parent)).some(({ type }) => type === "spawn"), 120_000);
  const { body } = await fork(parent, { timeout: 5 });
  const [copy] = (body as Fork).instances;
  const ended = await busybox.appliance.finished(copy?.uuid ?? "");
  expect(ended).toMatchObject({ status: "SUCCESS", result: { timed_out: true, exit_code: 137 } });
  expect(ended.result).not.toHaveProperty("image");
  const running = await (await busybox.appliance.fetch(`/operations/${parent}`)).json();
  expect(running).toMatchObject({ status: "EXECUTING" });
  await busybox.appliance.fetch(`/operations/${parent}`, { method: "DELETE" });
  expect((await busybox.appliance.finished(parent)).status).toBe("CANCELLED");
});
