import { listFiles, readFile, writeFile } from "../../client/guest-files.ts";
import { eventsBelow } from "../../client/operation-events.ts";
import { pathOfPlace } from "../../client/place.ts";
import { COMMAND_SPID } from "../../client/processes.ts";
import { pauseSandbox, resumeSandbox, rollbackSandbox } from "../../client/sandboxes.ts";
import { interleaved, timed } from "./measure.ts";
import { type Finding, rowOf } from "./row.ts";
import { exec } from "./running.ts";
import { type BenchTarget, requireState } from "./target.ts";

const DIRECTORY_PATH = "/root/coppice-bench";
const FILE_PATH = `${DIRECTORY_PATH}/file`;
const FILE_BYTES = 1024;
/** Size of the state that a sandbox saves, in `MiB`. */
export const CHANGED_MIB = 10;
/** Random bytes, which no disk can leave out. */
export const CHANGE = `dd if=/dev/urandom of=/root/coppice-bench.state bs=1048576 count=${CHANGED_MIB}`;
/** One wait for a state, in `seconds`. */
const WAIT_SECONDS = 30;

/** Files of a running sandbox and an additional process in it, against each other and against a new instance. */
export async function* boxFilesPart(target: BenchTarget): AsyncGenerator<Finding> {
  const { client, options } = target;
  const { uuid: sandbox } = await target.open();
  const place = { sandbox };
  const file = { place, path: FILE_PATH, signal: options.signal };
  const content = new Blob([new Uint8Array(FILE_BYTES).fill(0x61)]);
  const write = async () => void (await writeFile(client, file, content));
  const read = async () => {
    const { byteLength } = await (await readFile(client, file)).bytes();
    if (byteLength !== FILE_BYTES) throw new Error(`a file of ${FILE_BYTES} bytes was read as ${byteLength}`);
  };
  const list = async () => {
    let count = 0;
    for await (const _entry of listFiles(client, { ...file, path: DIRECTORY_PATH })) count += 1;
    if (count !== 2) throw new Error(`a directory of one file has ${count} entries with itself`);
  };
  // The machine that replaces that of a spawn must not be booting meanwhile.
  const rested = async (run: () => Promise<void>): Promise<number> => {
    await target.poolFull();
    return await timed(run);
  };
  for (const run of [write, read, list]) await run();
  await exec(target, place, "true");
  const values = await interleaved(target.rounds(25, 7), {
    write: () => rested(write),
    read: () => rested(read),
    list: () => rested(list),
    exec: () => rested(() => exec(target, place, "true")),
    spawn: () => target.spawn(target.image, "true", { disposable: true }),
  });
  await target.end(sandbox);
  yield rowOf({
    name: "true by exec into a running sandbox",
    from: "POST /v1/sandboxes/{id}/processes, sent",
    to: "its end read from GET /v1/sandboxes/{id}/events",
    values: values.exec,
    unit: "ms",
    against: { name: "a warm disposable spawn of true", values: values.spawn },
    atMost: 0.15,
  });
  const against = { name: "true by exec into the same sandbox", values: values.exec };
  const files = "/v1/sandboxes/{id}/files";
  const rows = [
    { name: "write of a file of 1 KiB in a running sandbox", from: `PUT ${files}, sent`, values: values.write },
    { name: "read of a file of 1 KiB in a running sandbox", from: `GET ${files}, sent`, values: values.read },
    { name: "listing of a directory in a running sandbox", from: `GET ${files}/list, sent`, values: values.list },
  ];
  for (const row of rows) yield rowOf({ ...row, to: "answer read to its end", unit: "ms", against, atMost: 0.5 });
}

const CREATED = {
  from: "POST /v1/sandboxes, sent",
  to: "end of its first process read from GET /v1/sandboxes/{id}/events",
  unit: "ms",
} as const;

/** New sandboxes until the end of their first command, against spawns, and many at once. */
export async function* createPart(target: BenchTarget): AsyncGenerator<Finding> {
  await target.end(await firstCommand(target));
  const values = await interleaved(target.rounds(25, 7), {
    ours: async () => {
      await target.poolFull();
      const startedAt = performance.now();
      const id = await firstCommand(target);
      const durationMs = performance.now() - startedAt;
      await target.end(id);
      return durationMs;
    },
    theirs: () => target.spawn(target.image, "true", { disposable: true }),
  });
  const spawn = { name: "a warm disposable spawn of true", values: values.theirs };
  yield rowOf({
    ...CREATED,
    name: "sandbox from its creation to the end of its first command",
    values: values.ours,
    against: spawn,
    atMost: 1.05,
  });
  yield await togetherRow(target);
}

/** Many sandboxes at once against some one after the other; each is ended, so that no host is too small for them. */
async function togetherRow(target: BenchTarget) {
  const [together, apart] = target.options.quick ? [20, 10] : [100, 40];
  const whole = async () => target.end(await firstCommand(target));
  const values = await interleaved(target.rounds(3, 1), {
    apart: async () => {
      const durationMs = await timed(async () => {
        for (let n = 0; n < apart; n++) await whole();
      });
      return durationMs / apart;
    },
    together: async () => (await timed(() => Promise.all(Array.from({ length: together }, whole)))) / together,
  });
  return rowOf({
    name: `${together} sandboxes at once, for each`,
    from: "POST /v1/sandboxes, sent",
    to: "DELETE /v1/sandboxes/{id} after the end of its first process, answered",
    values: values.together,
    unit: "ms",
    against: { name: `${apart} sandboxes one after the other, for each`, values: values.apart },
    atMost: 1,
  });
}

/** Creates a sandbox that begins with `true`; returns its id when that has ended. @throws Error when it fails */
async function firstCommand(target: BenchTarget): Promise<string> {
  const { client, options } = target;
  const { uuid: sandbox } = await target.open({ start: { command: "true", shell: true } }, 0);
  const path = pathOfPlace({ sandbox });
  for await (const event of eventsBelow(client, path, { follow: true, signal: options.signal })) {
    if (event.type !== "exit" || event.spid === COMMAND_SPID) continue;
    const { exit_code } = event.data as { readonly exit_code: number };
    if (exit_code === 0) return sandbox;
    throw new Error(`the first command of sandbox ${sandbox} ended with ${exit_code}`);
  }
  throw new Error(`the events of sandbox ${sandbox} have no end of its first command`);
}

/** Pause and resume, and rollback in place, against a captured run and a spawn; each changes the same files. */
export async function* statesPart(target: BenchTarget): AsyncGenerator<Finding> {
  const { client } = target;
  const { uuid: sandbox } = await target.open();
  const place = { sandbox };
  const changed = async (turn: () => Promise<void>): Promise<number> => {
    await target.poolFull();
    return await timed(async () => {
      await exec(target, place, CHANGE);
      await turn();
      await exec(target, place, "true");
    });
  };
  const values = await interleaved(target.rounds(15, 5), {
    pause: () =>
      changed(async () => {
        requireState(await pauseSandbox(client, sandbox, { wait: WAIT_SECONDS }), "paused");
        requireState(await resumeSandbox(client, sandbox, { wait: WAIT_SECONDS }), "running");
      }),
    rollback: () =>
      changed(async () => {
        requireState(await rollbackSandbox(client, sandbox, {}, WAIT_SECONDS), "running");
      }),
    runs: async () => {
      await target.poolFull();
      return await timed(async () => {
        const { image = "" } = await target.run(target.image, CHANGE);
        await target.run(image, "true", { disposable: true });
      });
    },
  });
  await target.endWithStates(sandbox);
  const shared = {
    from: `${CHANGED_MIB} MiB written by exec, sent`,
    to: "end of true by exec afterwards, read",
    unit: "ms",
    against: {
      name: `a captured run that writes ${CHANGED_MIB} MiB, and a spawn of true on its image`,
      values: values.runs,
    },
    atMost: 1.1,
  } as const;
  const name = `${CHANGED_MIB} MiB changed in a sandbox`;
  yield rowOf({ ...shared, name: `pause and resume, ${name}`, values: values.pause });
  yield rowOf({ ...shared, name: `rollback in place, ${name}`, values: values.rollback });
  await target.deleteMade();
}
