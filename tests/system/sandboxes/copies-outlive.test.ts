/** Machines that are copies (forks with memory, sandboxes resumed with memory), when the daemon is killed. */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import type { Appliance } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { SandboxClient, type WireEvent, type WireSandbox } from "../../support/sandboxes/client.ts";
import { pause, until } from "../../support/waiting.ts";

// On a busy host, an emulated machine takes many times the usual three seconds to boot.
setDefaultTimeout(480_000);

/** Writes numbered lines, has its secret only in memory, and answers each word with it. */
const COUNTER = `secret=$(head -c 8 /dev/urandom | md5sum)
i=0
while :; do i=$((i+1)); echo "line $i"; sleep 0.05; done &
while read word; do echo "$word $secret"; done
wait`;

let busybox: BusyboxAppliance;
let appliance: Appliance;
beforeAll(async () => {
  busybox = await BusyboxAppliance.start({ poolSize: 0, flags: ["--vm-cpu-budget", "16"] });
  ({ appliance } = busybox);
});
afterAll(() => busybox?.[Symbol.asyncDispose]());

async function killed(): Promise<void> {
  await appliance.down("SIGKILL");
  await appliance.up();
}

async function openCounter(name: string): Promise<{ readonly box: SandboxClient; readonly spid: number }> {
  const box = await SandboxClient.open(appliance, { image: busybox.image, name });
  const { status, body } = await box.post("processes", { command: COUNTER, shell: true, stdin_open: true });
  expect(status).toBe(201);
  const { spid } = body as { spid: number };
  await until("it counts", async () => numbersOf(await box.events(), spid).length > 3);
  return { box, spid };
}

function textOf(events: readonly WireEvent[], spid: number, upTo = Infinity): string {
  const outputs = events.filter((event) => event.spid === spid && event.type === "stdout" && event.id <= upTo);
  return outputs.map(({ data }) => String(data["content"])).join("");
}

/** The numbers of the whole lines, in the order of the log. */
function numbersOf(events: readonly WireEvent[], spid: number): number[] {
  return textOf(events, spid)
    .split("\n")
    .slice(0, -1)
    .flatMap((line) => (line.startsWith("line ") ? [Number(line.slice("line ".length))] : []));
}

/** Waits for further lines, and expects each one once. */
async function countsOn(box: SandboxClient, spid: number): Promise<void> {
  const last = numbersOf(await box.events(), spid).at(-1) ?? 0;
  let numbers: number[] = [];
  await until("it counts on", async () => {
    numbers = numbersOf(await box.events(), spid);
    return (numbers.at(-1) ?? 0) > last + 3;
  });
  const [first = 0] = numbers;
  expect(numbers.findIndex((number, at) => number !== first + at)).toBe(-1);
}

/** Makes the counter say a word, and its secret. */
async function say(box: SandboxClient, spid: number, word: string): Promise<string> {
  await until("it is continued", async () => {
    const answer = await appliance.post(`/sandboxes/${box.id}/processes/${spid}/stdin`, { content: `${word}\n` });
    if (answer.status !== 503) expect([answer.status, await answer.text()]).toEqual([204, ""]);
    return answer.ok;
  });
  let said = "";
  await until("it answers", async () => {
    said = new RegExp(`^${word} (.*)$`, "m").exec(textOf(await box.events(), spid))?.[1] ?? "";
    return said !== "";
  });
  return said;
}

async function forksOf(parent: SandboxClient, request: Record<string, unknown> = {}): Promise<SandboxClient[]> {
  const { status, body } = await parent.post("fork?wait=60", { memory: true, ...request });
  expect([status, body]).toEqual([201, expect.anything()]);
  const { sandboxes } = body as { sandboxes: WireSandbox[] };
  const forks = sandboxes.map(({ uuid }) => new SandboxClient(appliance, uuid));
  for (const fork of forks) await until("it runs", async () => (await fork.get()).state === "running");
  return forks;
}

/** Waits until the sandbox has been continued so many times, and runs. */
async function adopted(box: SandboxClient, count: number): Promise<void> {
  let events: readonly WireEvent[] = [];
  await until("it is continued", async () => {
    events = await box.events();
    const { state, error } = await box.get();
    expect([state, error]).toEqual(["running", undefined]);
    return events.filter(({ type }) => type === "adopted").length === count;
  });
  expect(events.map(({ id }) => id)).toEqual(events.map((_, at) => at));
}

test("forks with memory continue after each kill of the daemon, and so do their own forks", async () => {
  const { box: parent, spid } = await openCounter("parent");
  const secret = await say(parent, spid, "first");
  const [fork, sibling] = (await forksOf(parent, { count: 2 })) as [SandboxClient, SandboxClient];
  expect(await say(fork, spid, "before")).toBe(secret);
  await sibling.run("echo own > /root/own");

  await killed();
  for (const box of [parent, fork, sibling]) {
    await adopted(box, 1);
    await countsOn(box, spid);
    expect(await say(box, spid, "after")).toBe(secret);
  }
  // The log of a fork tells how much output it lacks.
  const events = await fork.events();
  const { forked_at_event: at } = (await fork.get()) as WireSandbox & { forked_at_event: number };
  const before = textOf(await parent.events(), spid, at);
  const spawn = events.find((event) => event.type === "spawn" && event.spid === spid);
  expect(spawn?.data["output_before"]).toEqual({ stdout: before.length, stderr: 0 });
  expect(numbersOf(await parent.events(), spid).at(-1)).toBeGreaterThan(before.split("\n").length);

  const [grandchild] = (await forksOf(fork)) as [SandboxClient];
  expect((await grandchild.run("cat /run/coppice/fork")).output).toBe("generation=2\nindex=1\n");
  await killed();
  for (const [box, count] of [
    [fork, 2],
    [sibling, 2],
    [grandchild, 1],
  ] as const) {
    await adopted(box, count);
    await countsOn(box, spid);
  }
  expect(await say(grandchild, spid, "again")).toBe(secret);
  expect((await sibling.run("cat /root/own")).output).toBe("own\n");

  // It has its own files and its memory, also after a pause.
  await grandchild.run("echo deep > /root/deep");
  await grandchild.becomes("paused", "pause?wait=60", { memory: true });
  await grandchild.becomes("running", "resume?wait=60", {});
  expect(await say(grandchild, spid, "resumed")).toBe(secret);
  await killed();
  await adopted(grandchild, 2);
  await countsOn(grandchild, spid);
  expect(await say(grandchild, spid, "last")).toBe(secret);
  const [late] = (await forksOf(grandchild)) as [SandboxClient];
  expect((await late.run("cat /run/coppice/fork /root/deep")).output).toBe("generation=3\nindex=1\ndeep\n");
  await late.becomes("paused", "pause?wait=60", {});
  const files = await appliance.fetch(`/inspect/${(await late.get()).head}/download?path=/root/deep`);
  expect(await files.text()).toBe("deep\n");
  for (const box of [parent, fork, sibling, grandchild, late]) await box.end();
  await until("nothing is left", async () => (await appliance.leftovers()).length === 0);
});

test("a sandbox that is resumed with its memory continues, or is still paused with it, whenever the daemon is killed", async () => {
  const { box, spid } = await openCounter("resumed");
  const secret = await say(box, spid, "before");
  let adoptions = 0;
  for (const [round, delayMs] of [2000, 0, 50, 120, 200, 300, 450, 700].entries()) {
    await box.becomes("paused", "pause?wait=60", { memory: true });
    const answer = appliance.post(`/sandboxes/${box.id}/resume`, {}).catch(() => null);
    await pause("a moment of the resume", delayMs);
    await appliance.down("SIGKILL");
    await answer;
    await appliance.up();
    await until("it settles", async () => ["paused", "running", "failed"].includes((await box.get()).state));
    const { state, memory, error } = await box.get();
    if (state === "paused") {
      expect(memory?.size_bytes).toBeGreaterThan(0);
      await box.becomes("running", "resume?wait=60", {});
    } else {
      expect([state, error]).toEqual(["running", undefined]);
      adoptions += 1;
    }
    expect(await say(box, spid, `round${round}`)).toBe(secret);
    await countsOn(box, spid);
    expect(Math.abs(Number((await box.run("date +%s")).output) - Date.now() / 1000)).toBeLessThan(30);
    expect(readdirSync(join(appliance.dataDir, "memory-images"))).toEqual([]);
  }
  expect(adoptions).toBeGreaterThan(0);
  await box.end();
  await until("nothing is left", async () => (await appliance.leftovers()).length === 0);
});

test("an instance that is a fork ends with its own result after the daemon was killed", async () => {
  const command = `i=0; while [ ! -e /stop ]; do i=$((i+1)); echo line $i; sleep 0.05; done
while read word; do echo got $word; done; echo $i > /root/last; cat /run/coppice/fork`;
  const run = { image: busybox.image, command, shell: true, stdin: "one\n", stdin_open: true, timeout: 400 };
  const parent = await appliance.spawn(run);
  const eventsOf = async (id: string) => {
    const headers = { accept: "application/json" };
    return (await (await appliance.fetch(`/operations/${id}/events`, { headers })).json()) as WireEvent[];
  };
  await until("it counts", async () => numbersOf(await eventsOf(parent), 1).length > 3);
  const answer = await appliance.post(`/instances/${parent}/fork`, { count: 2, timeout: 300 });
  const { instances } = (await answer.json()) as { instances: { uuid: string; index: number }[] };
  const records = () => readdirSync(join(appliance.dataDir, "vms"), { recursive: true }).map(String);
  const kept = () => records().filter((path) => path.endsWith("machine.json"));
  await until("all can outlive the daemon", () => kept().length === 3);
  await killed();
  const before = await eventsOf(parent);
  for (const { uuid, index } of instances) {
    await until("it is continued", async () => {
      return (await appliance.post(`/instances/${uuid}/processes`, { command: "touch /stop", shell: true })).ok;
    });
    const ended = await appliance.finished(uuid);
    expect(ended).toMatchObject({ status: "SUCCESS", result: { exit_code: 0 } });
    const events = await eventsOf(uuid);
    const text = textOf(events, 1);
    expect((ended.result as unknown as { stdout: { content: string } }).stdout.content).toBe(text);
    const lines = (textOf(before, 1, Number(ended.forked_at_event)) + text).split("\n");
    const numbered = lines.filter((line) => line.startsWith("line"));
    expect(numbered).toEqual(numbered.map((_, at) => `line ${at + 1}`));
    expect(lines.slice(numbered.length)).toEqual(["got one", "generation=1", `index=${index}`, ""]);
    const image = (ended.result as unknown as { image: string }).image;
    const last = await appliance.fetch(`/inspect/${image}/download?path=/root/last`);
    expect(await last.text()).toBe(`${numbered.length}\n`);
  }
  await appliance.fetch(`/operations/${parent}`, { method: "DELETE" });
  await appliance.finished(parent);
  await until("nothing is left", async () => (await appliance.leftovers()).length === 0);
});
