import { expect, test } from "bun:test";
import { closeSync, readdirSync, readSync, statSync, truncateSync, writeSync } from "node:fs";
import { appendFile, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createMemfd, SEALS_ALL } from "../../../../src/vm/descriptors.ts";
import { compressFork } from "../../../../src/vm/fork-files.ts";
import { NotResumableError } from "../../../../src/vm/machine-end.ts";
import { readFork, writeFork } from "../../../../src/vm/qemu/fork-files.ts";
import { difference, type ForkOrigin, originOf } from "../../../../src/vm/qemu/fork-origin.ts";
import { failureOf, throwing } from "../../../support/failures.ts";
import { sealsOf } from "../../../support/guests/seals.ts";

const MIB = 1_048_576;
const ORIGIN: ForkOrigin = {
  qemu: "7.2.22 (D)",
  acceleration: "tcg",
  processor: null,
  machine: "abc",
  agentProtocol: 4,
};
const shape = { vcpus: 2, memoryBytes: 8 * MIB };
const disks = [
  { serial: "L00", node: "disk3" },
  { serial: "S", node: "disk4" },
];
const never = new AbortController().signal;

function file(sizeBytes: number, fill: (bytes: Buffer) => void) {
  const bytes = Buffer.alloc(sizeBytes);
  fill(bytes);
  const fd = createMemfd("file", sizeBytes);
  writeSync(fd, bytes, 0, sizeBytes, 0);
  return { bytes, fd, sizeBytes };
}

/** A saved fork point. */
async function saved() {
  const directory = await mkdtemp(join(tmpdir(), "coppice-fork-"));
  const memory = file(3 * MIB + 4096, (bytes) => bytes.fill("memory "));
  const state = file(12_345, (bytes) => crypto.getRandomValues(bytes));
  await writeFork({ origin: ORIGIN, shape, disks, memory, state }, directory);
  for (const { fd } of [memory, state]) closeSync(fd);
  return { directory, memory, state, [Symbol.asyncDispose]: () => rm(directory, { recursive: true }) };
}

const read = (directory: string) => readFork(directory, () => ORIGIN);

async function expectLoaded({ directory, memory, state }: Awaited<ReturnType<typeof saved>>): Promise<void> {
  const loaded = await read(directory);
  expect(loaded).toMatchObject({ origin: ORIGIN, shape, disks });
  for (const [{ fd, sizeBytes }, { bytes }] of [
    [loaded.memory, memory],
    [loaded.state, state],
  ] as const) {
    const content = Buffer.alloc(sizeBytes);
    readSync(fd, content, 0, sizeBytes, 0);
    expect(content.equals(bytes)).toBe(true);
    expect(sealsOf(fd)).toBe(SEALS_ALL);
    closeSync(fd);
  }
}

test("a saved fork point can be loaded, before and after its compression, and is private", async () => {
  await using fork = await saved();
  const modes = () => readdirSync(fork.directory).map((name) => statSync(join(fork.directory, name)).mode & 0o777);
  expect(new Set(modes())).toEqual(new Set([0o600]));
  await expectLoaded(fork);
  await compressFork(fork.directory, never);
  expect(readdirSync(fork.directory).sort()).toEqual(["fork.json", "memory.zst", "state"]);
  expect(new Set(modes())).toEqual(new Set([0o600]));
  expect(statSync(join(fork.directory, "memory.zst")).size).toBeLessThan(MIB);
  await expectLoaded(fork);
});

test("an aborted compression changes nothing", async () => {
  await using fork = await saved();
  const gone = new AbortController();
  gone.abort(new Error("not wanted"));
  expect(await throwing(compressFork(fork.directory, gone.signal))).toThrow();
  expect(readdirSync(fork.directory).sort()).toEqual(["fork.json", "memory", "state"]);
});

const DAMAGE: Record<string, (path: (name: string) => string) => unknown> = {
  "a missing description": (path) => rm(path("fork.json")),
  "a cut description": (path) => truncateSync(path("fork.json"), 20),
  "a description of something else": (path) => writeFile(path("fork.json"), "{}"),
  "missing memory": (path) => rm(path("memory")),
  "cut memory": (path) => truncateSync(path("memory"), MIB),
  "longer memory": (path) => appendFile(path("memory"), "more"),
  "other memory": async (path) => {
    const bytes = await readFile(path("memory"));
    bytes[2 * MIB] = 0;
    await writeFile(path("memory"), bytes);
  },
  "a cut state": (path) => truncateSync(path("state"), 0),
  "compressed memory that is not": async (path) => {
    await rm(path("memory"));
    await writeFile(path("memory.zst"), "nothing");
  },
  "memory beyond the guest's": async (path) => {
    const text = await readFile(path("fork.json"), "utf8");
    await writeFile(path("fork.json"), text.replace(/"sizeBytes":\d+/, `"sizeBytes":${10 * MIB}`));
  },
};

test.each(Object.keys(DAMAGE))("%s is refused, and leaves no file open", async (what) => {
  await using fork = await saved();
  await DAMAGE[what]?.((name) => join(fork.directory, name));
  const before = readdirSync("/proc/self/fd").length;
  const error = await failureOf(read(fork.directory));
  expect(error).toBeInstanceOf(NotResumableError);
  expect((error as Error).message).toMatch(
    /^the (description|file (memory|state)) of its memory is (missing or )?damaged$/,
  );
  expect(readdirSync("/proc/self/fd").length).toBe(before);
});

test.each([
  [{}, null],
  [{ qemu: "9.0" }, "QEMU 9.0 saved its memory, and this host has 7.2.22 (D)"],
  [{ acceleration: "kvm" }, "its memory was saved with KVM, and machines run with emulation now"],
  [{ processor: "p" }, "its memory was saved on a host with another processor"],
  [{ agentProtocol: 3 }, "its agent speaks version 3 of the protocol, and this release speaks 4"],
  [{ machine: "def" }, "its memory was saved by a release with other virtual machines"],
] as const)("a fork point with %o can be loaded, or the reason says why not", (changed, reason) => {
  expect(difference({ ...ORIGIN, ...changed }, ORIGIN)).toBe(reason);
});

test("the origin depends on everything that defines the machine", () => {
  const here = originOf("tcg", shape, "7.2");
  expect(here).toMatchObject({ qemu: "7.2", acceleration: "tcg", processor: null });
  expect(originOf("tcg", shape, "7.2")).toEqual(here);
  expect(originOf("tcg", { ...shape, vcpus: 1 }, "7.2").machine).not.toBe(here.machine);
  expect(originOf("kvm", shape, "7.2").processor).toMatch(/^[0-9a-f]{64}$/);
});

test("an origin that differs is refused before the files are read", async () => {
  await using fork = await saved();
  await rm(join(fork.directory, "memory"));
  const other = readFork(fork.directory, () => ({ ...ORIGIN, qemu: "9.0" }));
  expect(await throwing(other)).toThrow("and this host has 9.0");
});
