/**
 * Runs short processes one after the other in an instance with a running command. Fails when the memory or the
 * descriptors of the daemon, the memory or the processes of the guest, or the time of a process grow. Every other process
 * is read by an attachment, as `coppice exec` does, the others from the events. Usage: bun tests/soak/processes.ts [COUNT]
 */
import { readdirSync } from "node:fs";
import { median, timed } from "../../src/cli/bench/measure.ts";
import { sampleOf, shortNumber } from "../../src/cli/bench/report.ts";
import { openClient } from "../../src/cli/client.ts";
import { answerOf, type Client } from "../../src/client/client.ts";
import { Attachment } from "../../src/client/connections/attachment.ts";
import { commandStart, operationEvents, outputOf } from "../../src/client/operation-events.ts";
import { startProcess } from "../../src/client/processes.ts";
import { BusyboxAppliance } from "../support/appliance/busybox-appliance.ts";

const COUNT_DEFAULT = 10_000;
const PARTS_COUNT = 10;
const MIB = 1_048_576;
const INSTANCE_SECONDS = 3600;
/** Caches fill in the first part; growth over the second part may not exceed this. */
const GROWTH_MAX = { residentMib: 25, descriptors: 8, cpu: 1.5, latency: 3, guestKib: 2048, guestProcesses: 2 };
/** Memory and processes of the guest, of its agent and its kernel: no other process has memory of its own there. */
const GUEST = "awk '/^(AnonPages|Slab)/ {sum += $2} END {print sum}' /proc/meminfo; ps | wc -l";

const count = Number(process.argv[2] ?? COUNT_DEFAULT);
const partCount = Math.ceil(count / PARTS_COUNT);

interface Reading {
  readonly processes: number;
  readonly eventsMs: number;
  readonly attachedMs: number;
  /** processor time of the daemon for one process */
  readonly cpuMs: number;
  readonly residentMib: number;
  readonly descriptors: number;
  readonly guestKib: number;
  readonly guestProcesses: number;
}

await using setup = await BusyboxAppliance.start({ poolSize: 1 });
const { appliance, image } = setup;
const client = openClient({ COPPICE_URL: appliance.url, COPPICE_TOKEN: appliance.token }, undefined);
const id = await appliance.spawn({
  image,
  command: `sleep ${INSTANCE_SECONDS}`,
  shell: true,
  disposable: true,
  timeout: INSTANCE_SECONDS,
});
await commandStart(client, id);
let cpuSecondsBefore = 0;
const readings: Reading[] = [await read(0, [], [])];
for (let part = 1; part <= PARTS_COUNT; part++) {
  const times = { events: [] as number[], attached: [] as number[] };
  for (let n = 0; n < partCount; n++) {
    if (n % 2 === 0) times.events.push(await timed(() => byEvents(client, "true")));
    else times.attached.push(await timed(() => byAttachment(client, "true")));
  }
  readings.push(await read(part * partCount, times.events, times.attached));
}
await answerOf(client.v1.operations({ id }).delete());
await appliance.finished(id);
const problems = growth(readings);
for (const problem of problems) process.stdout.write(`${problem}\n`);
process.stdout.write(problems.length === 0 ? `${count} processes in one instance: nothing grows\n` : "");
process.exitCode = problems.length === 0 ? 0 : 1;

/** Runs a process to its end, and returns its output. */
async function byEvents(from: Client, command: string): Promise<string> {
  const { spid } = await startProcess(from, id, { command, shell: true });
  let text = "";
  for await (const event of operationEvents(from, id, { follow: true, spid })) {
    if (event.type === "stdout") text += Buffer.from(outputOf(event)).toString();
    if (event.type === "exit") return text;
  }
  throw new Error(`process ${spid} has no end`);
}

async function byAttachment(from: Client, command: string): Promise<void> {
  const name = await startProcess(from, id, { command, shell: true });
  using attachment = await Attachment.open(from, name, { lossless: true });
  for await (const _ of attachment.output());
  if (attachment.exitCode !== 0) throw new Error(`process ${name.spid} ended with ${attachment.exitCode}`);
}

async function read(processes: number, eventsMs: readonly number[], attachedMs: readonly number[]): Promise<Reading> {
  const [guestKib = 0, guestProcesses = 0] = (await byEvents(client, GUEST)).split("\n").map(Number);
  const metrics = await client.metrics();
  const cpuSeconds = sampleOf(metrics, "process_cpu_seconds_total") ?? 0;
  const reading = {
    processes,
    eventsMs: median(eventsMs),
    attachedMs: median(attachedMs),
    cpuMs: ((cpuSeconds - cpuSecondsBefore) * 1000) / partCount,
    residentMib: (sampleOf(metrics, "process_resident_memory_bytes") ?? 0) / MIB,
    descriptors: readdirSync(`/proc/${appliance.pid}/fd`).length,
    guestKib,
    guestProcesses,
  };
  cpuSecondsBefore = cpuSeconds;
  const figures = Object.entries(reading).map(([name, value]) => `${name} ${shortNumber(value)}`);
  process.stdout.write(`${figures.join(", ")}\n`);
  return reading;
}

/** Growth between the second part and the last: the first part fills caches. */
function growth(all: readonly Reading[]): string[] {
  const [first, last] = [all[2], all.at(-1)];
  if (first === undefined || last === undefined || first === last) return ["too few parts"];
  const checks: [string, number, number][] = [
    ["resident memory grew, MiB", last.residentMib - first.residentMib, GROWTH_MAX.residentMib],
    ["descriptors grew", last.descriptors - first.descriptors, GROWTH_MAX.descriptors],
    ["the daemon's time for a process grew, times", last.cpuMs / first.cpuMs, GROWTH_MAX.cpu],
    ["the time of a process grew, times", last.eventsMs / first.eventsMs, GROWTH_MAX.latency],
    ["the time of an attached process grew, times", last.attachedMs / first.attachedMs, GROWTH_MAX.latency],
    ["memory in the guest grew, KiB", last.guestKib - first.guestKib, GROWTH_MAX.guestKib],
    ["processes in the guest grew", last.guestProcesses - first.guestProcesses, GROWTH_MAX.guestProcesses],
  ];
  return checks
    .filter(([, value, limit]) => value > limit)
    .map(([what, value, limit]) => `${what}: ${shortNumber(value)} > ${limit}`);
}
