/** Copies of the scratch of a guest that continues to write: their content, and what is left of aborted ones. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { closeSync, existsSync, openSync, readdirSync, writeSync } from "node:fs";
import { mkdtemp, readFile, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import { run } from "../../../src/system/exec.ts";
import { allocatedBytes } from "../../../src/system/sparse.ts";
import { QUIESCE_MS_MAX } from "../../../src/vm/agent/protocol.ts";
import { DiskCopyLateError, openHostCopy, takeOverFile } from "../../../src/vm/disk-copy.ts";
import type { DiskCopy } from "../../../src/vm/vmm.ts";
import { SmallDisk } from "../../support/appliance/small-disk.ts";
import { openVmHost, shell, type TestMachine, type VmHost } from "../../support/guests/vm.ts";
import { until } from "../../support/waiting.ts";

// On a busy host, an emulated machine takes many times the usual three seconds to boot.
setDefaultTimeout(120_000);

let host: VmHost;
let vm: TestMachine;
let directory: string;
let number = 0;
beforeAll(async () => {
  host = await openVmHost("qemu");
  vm = await host.mounted();
  directory = await mkdtemp(join(host.directory, "copies-"));
});
afterAll(async () => {
  await vm[Symbol.asyncDispose]();
  await host[Symbol.asyncDispose]();
});

const never = new AbortController().signal;
const newPath = (): string => join(directory, `${++number}`);

/** The two ways to copy; the second is for monitors without one of their own. */
const WAYS = {
  "the monitor": (path: string, signal = never): Promise<DiskCopy> =>
    vm.machine.copyDisk({ serial: "S", path, pauseMsMax: 20_000, signal }),
  "the host": (path: string, signal = never): Promise<DiskCopy> =>
    openHostCopy(join(vm.machine.directory, "S"), { path, pauseMsMax: 20_000, signal }),
} as const;

/** Text of a file on an ext4 disk that the test has made. */
async function fileOf(disk: string, path: string): Promise<string> {
  const { stdout } = await run({ argv: ["debugfs", "-R", `cat ${path}`, disk], timeoutMs: 20_000 });
  return Buffer.from(stdout).toString();
}

async function same(a: string, b: string): Promise<boolean> {
  const { stdout } = await run({ argv: ["sh", "-c", 'cmp -s "$1" "$2"; echo $?', "sh", a, b], timeoutMs: 60_000 });
  return Buffer.from(stdout).toString().trim() === "0";
}

describe.each(Object.keys(WAYS) as (keyof typeof WAYS)[])("a copy by %s", (way) => {
  test("is the disk as of one instant, with its holes, and leaves no file open", async () => {
    const disk = join(vm.machine.directory, "S");
    await shell(vm.agent, "head -c 3000000 /dev/urandom > /data; busybox rm -f /counter /late");
    const text = "i=0; while :; do i=$((i+1)); echo $i >> /counter; echo $i; done";
    let seen = "";
    const writer = vm.agent.exec(
      { argv: ["/bin/sh", "-c", text], env: { PATH: "/bin" }, cwd: "/", hostname: "h", timeoutMs: 120_000 },
      (_, chunk) => {
        seen += Buffer.from(chunk).toString();
      },
    );
    await until("it writes", () => seen.split("\n").length > 3);
    const path = newPath();
    await using copy = await WAYS[way](path);
    await vm.agent.flush();
    await using still = await vm.agent.quiesce(QUIESCE_MS_MAX);
    await copy.finish();
    expect(await same(disk, path)).toBe(true);
    const before = Number(seen.split("\n").at(-2));
    const late = shell(vm.agent, "echo late > /late; cat /late");
    await shell(vm.agent, "echo behind it");
    await still.thaw();
    expect((await late).stdout).toBe("late\n");
    await copy.seal();
    writer.signal(9);
    await writer.exit;
    const { uid, mode, blocks } = await stat(path);
    expect({ uid, mode: mode & 0o777 }).toEqual({ uid: 0, mode: 0o600 });
    expect(blocks * 512).toBeLessThan((await allocatedBytes(disk)) * 1.1 + 1_048_576);
    // It contains every completed write, and no later one.
    const lines = (await fileOf(path, "/upper/counter")).split("\n");
    expect(lines.pop()).toBe("");
    expect(lines).toEqual(lines.map((_, index) => `${index + 1}`));
    expect(lines.length).toBeGreaterThanOrEqual(before);
    expect(before).toBeGreaterThan(1);
    expect(await fileOf(path, "/upper/late")).toBe("");
    expect(readdirSync(vm.machine.directory).sort()).toEqual(["L00", "S"]);
    expect((await run({ argv: ["e2fsck", "-fn", path], timeoutMs: 30_000 })).stdout).toBeDefined();
    await rm(path);
  });

  test("that is aborted does not affect the guest", async () => {
    const path = newPath();
    {
      await using _copy = await WAYS[way](path);
      await shell(vm.agent, "echo more > /more");
    }
    const gone = new AbortController();
    gone.abort(new Error("not wanted"));
    expect(await WAYS[way](newPath(), gone.signal).catch((error: unknown) => error)).toBe(gone.signal.reason);
    expect(readdirSync(vm.machine.directory).sort()).toEqual(["L00", "S"]);
    expect((await shell(vm.agent, "cat /more; echo x > /x; cat /x")).stdout).toBe("more\nx\n");
  });
});

test("leaves nothing in the monitor or the directory, many times in a row", async () => {
  const fds = (): number => readdirSync(`/proc/${vm.machine.pid}/fd`).length;
  const before = fds();
  for (let round = 0; round < 12; round++) {
    const path = newPath();
    await using copy = await WAYS["the monitor"](path);
    await using _still = await vm.agent.quiesce(20_000);
    await copy.finish();
    await copy.seal();
    await rm(path);
  }
  // The monitor may close the files of the test before only now, and the last ones of this test a moment later.
  await until("the monitor has closed what it opened", () => fds() <= before);
  expect(readdirSync(vm.machine.directory).sort()).toEqual(["L00", "S"]);
});

test("a copy whose machine is killed fails, and the caller removes the partial file", async () => {
  const other = await host.mounted();
  await using _other = other;
  const path = newPath();
  await using copy = await other.machine.copyDisk({ serial: "S", path, pauseMsMax: 1000, signal: never });
  await other.machine.kill();
  expect(await copy.finish().catch((error: Error) => error.name)).toEndWith("Error");
  await copy[Symbol.asyncDispose]();
  expect(existsSync(path)).toBe(true);
});

test("a file system with shared blocks clones a disk of any size, however short the allowed pause", async () => {
  await using xfs = await SmallDisk.makeSharing(400_000_000);
  const [from, path] = [join(xfs.path, "disk"), join(xfs.path, "copy")];
  await Bun.write(from, new Uint8Array(100_000_000).fill(1));
  await using copy = await openHostCopy(from, { path, pauseMsMax: 0, signal: never });
  // Later writes are part of it.
  const fd = openSync(from, "r+");
  writeSync(fd, "since then", 99_000_000);
  closeSync(fd);
  const freeBytes = await xfs.freeBytes();
  await copy.finish();
  await copy.seal();
  expect(freeBytes - (await xfs.freeBytes())).toBeLessThan(10_000_000);
  expect(await same(from, path)).toBe(true);
  expect(((await stat(path)).mode & 0o777).toString(8)).toBe("600");
});

test("a disk that takes longer to copy than the allowed pause is refused before anything is paused", async () => {
  await shell(vm.agent, "busybox dd if=/dev/zero of=/large bs=1M count=90 2>/dev/null");
  await vm.agent.flush();
  const path = newPath();
  const error = await openHostCopy(join(vm.machine.directory, "S"), { path, pauseMsMax: 0, signal: never }).catch(
    (reason: unknown) => reason,
  );
  expect(error).toBeInstanceOf(DiskCopyLateError);
  expect((error as DiskCopyLateError).bytes).toBeGreaterThan(90_000_000);
  expect((error as DiskCopyLateError).neededMs).toBeGreaterThan(0);
  expect(existsSync(path)).toBe(false);
});

test("a file that is still open for writing is copied again", async () => {
  const path = newPath();
  await Bun.write(path, "before");
  const fd = openSync(path, "r+");
  const { ino } = await stat(path);
  await takeOverFile(path);
  expect((await stat(path)).ino).not.toBe(ino);
  writeSync(fd, "after!", 0);
  closeSync(fd);
  expect(await readFile(path, "utf8")).toBe("before");
  const { ino: own } = await stat(path);
  await takeOverFile(path);
  expect((await stat(path)).ino).toBe(own);
});
