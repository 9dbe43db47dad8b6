import type { Client } from "../../client/client.ts";
import { forkSandboxMemory } from "../../client/forks.ts";
import { eventsBelow } from "../../client/operation-events.ts";
import { pathOfPlace } from "../../client/place.ts";
import { startProcess } from "../../client/processes.ts";
import { pauseSandbox, resumeSandbox } from "../../client/sandboxes.ts";
import { figureOf, interleaved, timed } from "./measure.ts";
import { remarkOf } from "./report.ts";
import { type Finding, rowOf } from "./row.ts";
import { exec } from "./running.ts";
import { CHANGE, CHANGED_MIB } from "./sandboxes.ts";
import { type BenchTarget, requireState } from "./target.ts";

const MIB = 1_048_576;
/** Memory of the guest that has changed since its machine started. */
const DIRTY_MIB = 100;
/** Random bytes in a file system in memory: none of its pages is zero, and each is different. */
const DIRTY = `dd if=/dev/urandom of=/dev/shm/coppice-bench bs=1048576 count=${DIRTY_MIB}`;
/** Writes a line every few milliseconds. */
const TICKS = "while :; do echo tick; sleep 0.02; done";

/** Forks with memory against copies of memory and spawns, and pauses with memory against captured runs. */
export async function* memoryPart(target: BenchTarget): AsyncGenerator<Finding> {
  yield* forkRows(target);
  yield* pauseRows(target);
}

async function* forkRows(target: BenchTarget): AsyncGenerator<Finding> {
  const { client } = target;
  const { uuid: parent } = await target.open();
  await exec(target, { sandbox: parent }, DIRTY);
  await startProcess(client, { sandbox: parent }, { command: TICKS, shell: true });
  const source = randomBytes();
  const answers: number[] = [];
  const pauses: number[] = [];
  const copied: number[] = [];
  const values = await interleaved(target.rounds(15, 5), {
    fork: async () => {
      await target.poolFull();
      const startedAt = performance.now();
      const fork = await forkSandboxMemory(client, parent, { count: 1 }, 0);
      answers.push(performance.now() - startedAt);
      pauses.push(fork.paused_ms);
      copied.push(fork.copied_bytes / MIB);
      const [child] = fork.sandboxes;
      if (child === undefined) throw new Error("a fork without a child");
      await firstOutput(client, child.uuid, target.options.signal);
      const durationMs = performance.now() - startedAt;
      await target.end(child.uuid);
      return durationMs;
    },
    copy: async () => timed(async () => void copyOf(source)),
    spawn: () => target.spawn(target.image, "true", { disposable: true }),
  });
  await target.end(parent);
  const dirtied = `fork with memory of a sandbox that has changed ${DIRTY_MIB} MiB of it`;
  yield rowOf({
    name: `pause of the parent, ${dirtied}`,
    from: "its monitor stopped the machine",
    to: "its monitor continued it; both as the answer has it",
    values: pauses,
    unit: "ms",
    against: { name: `copy of ${DIRTY_MIB} MiB to memory that was not used before`, values: values.copy },
    atMost: 2,
  });
  yield rowOf({
    name: `first line of the child, ${dirtied}`,
    from: "POST /v1/sandboxes/{id}/fork, sent",
    to: "next line of the process that it continues, read from its GET /v1/sandboxes/{id}/events",
    values: values.fork,
    unit: "ms",
    against: { name: "a warm disposable spawn of true", values: values.spawn },
    atMost: 1,
  });
  yield remarkOf("answers to these forks", figureOf(answers, "ms"), "with wait=0, as soon as the children exist");
  yield remarkOf("memory that these forks copied", figureOf(copied, "MiB"), "as the answers have it");
}

/** Waits for the first output in the log of a sandbox. @throws Error when the sandbox ends before */
async function firstOutput(client: Client, sandbox: string, signal: AbortSignal): Promise<void> {
  for await (const { type } of eventsBelow(client, pathOfPlace({ sandbox }), { follow: true, signal })) {
    if (type === "stdout") return;
  }
  throw new Error(`sandbox ${sandbox} wrote nothing`);
}

function randomBytes(): Uint8Array {
  const pattern = crypto.getRandomValues(new Uint8Array(65_536));
  const bytes = new Uint8Array(DIRTY_MIB * MIB);
  for (let at = 0; at < bytes.byteLength; at += pattern.byteLength) bytes.set(pattern, at);
  return bytes;
}

function copyOf(source: Uint8Array): Uint8Array {
  const copy = new Uint8Array(source.byteLength);
  copy.set(source);
  return copy;
}

/** A process that continues after a pause, against the same with files alone and against a captured run. */
async function* pauseRows(target: BenchTarget): AsyncGenerator<Finding> {
  const { client } = target;
  const { uuid: sandbox } = await target.open();
  const place = { sandbox };
  await startProcess(client, place, { command: TICKS, shell: true });
  const values = await interleaved(target.rounds(15, 5), {
    pause: async () => {
      await target.poolFull();
      return await timed(async () => {
        await exec(target, place, CHANGE);
        requireState(await pauseSandbox(client, sandbox, { memory: true }), "paused");
        requireState(await resumeSandbox(client, sandbox), "running");
        await exec(target, place, "true");
      });
    },
    runs: async () => {
      await target.poolFull();
      return await timed(async () => {
        const { image = "" } = await target.run(target.image, CHANGE);
        await target.run(image, "true", { disposable: true });
      });
    },
  });
  await target.endWithStates(sandbox);
  yield rowOf({
    name: `pause and resume with memory, ${CHANGED_MIB} MiB changed in a sandbox`,
    from: `${CHANGED_MIB} MiB written by exec, sent`,
    to: "end of true by exec afterwards, read",
    values: values.pause,
    unit: "ms",
    against: {
      name: `a captured run that writes ${CHANGED_MIB} MiB, and a spawn of true on its image`,
      values: values.runs,
    },
    atMost: 1.5,
  });
  await target.deleteMade();
}
