import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { createHash } from "node:crypto";
import { join } from "node:path";
import { parseGuestPathText } from "../../../src/domain/tree/guest-path.ts";
import { LayerIndex } from "../../../src/storage/index/layer-index.ts";
import { writeLayerIndex } from "../../../src/storage/index/layer-index-writer.ts";
import { AgentError } from "../../../src/vm/agent/agent.ts";
import { openVmHost, shell, type TestMachine, type VmHost } from "../../support/guests/vm.ts";
import { entryAt } from "../../support/images/index-reading.ts";
import { seededRandom } from "../../support/random.ts";

/** Linux EINVAL, for a disk without a known file system. */
const ERRNO_INVALID = 22;
// A busy host boots an emulated machine in many times the usual three seconds.
setDefaultTimeout(120_000);

let host: VmHost;
let vm: TestMachine;
beforeAll(async () => {
  host = await openVmHost();
  vm = await host.mounted();
});
afterAll(async () => {
  await vm[Symbol.asyncDispose]();
  await host[Symbol.asyncDispose]();
});

/** Closes what the tests do not dispose of. */
class Disposing<T extends { close(): void }> implements Disposable {
  readonly value: T;
  constructor(value: T) {
    this.value = value;
  }
  [Symbol.dispose](): void {
    this.value.close();
  }
}

async function* pieces(bytes: Uint8Array, sizeBytes: number): AsyncGenerator<Uint8Array> {
  for (let offset = 0; offset < bytes.byteLength; offset += sizeBytes) yield bytes.subarray(offset, offset + sizeBytes);
}

async function failure(promise: Promise<unknown>): Promise<AgentError> {
  const error = await promise.then(
    () => null,
    (reason: unknown) => reason,
  );
  expect(error).toBeInstanceOf(AgentError);
  return error as AgentError;
}

describe("commands", () => {
  test("have their environment, directory, host name and exit code", async () => {
    const script = "echo $FOO; pwd; hostname; id -u; echo err >&2; exit 7";
    const spec = { env: { PATH: "/bin", FOO: "bär" }, cwd: "/work/dir", hostname: "shoot" };
    const result = await shell(vm.agent, script.replace("hostname", "busybox hostname"), spec);
    expect(result).toMatchObject({ exitCode: 7, stdout: "bär\n/work/dir\nshoot\n0\n", stderr: "err\n" });
    expect(result).toMatchObject({ timedOut: false, oomKilled: false });
    expect(result.memoryPeakBytes).toBeGreaterThan(100_000n);
    expect(result.cpuTimeUs).toBeGreaterThan(0n);
    expect(result.wallUs).toBeGreaterThan(0n);
  });

  test("receive their standard input, and its end", async () => {
    const stdin = Buffer.from(seededRandom(3).bytes(3_000_000));
    const result = await shell(vm.agent, "busybox sha256sum", {
      stdin: [stdin.subarray(0, 100_001), stdin.subarray(100_001)],
    });
    expect(result.stdout).toBe(`${createHash("sha256").update(stdin).digest("hex")}  -\n`);
    expect((await shell(vm.agent, "wc -c", { stdin: [] })).stdout).toBe("0\n");
    expect((await shell(vm.agent, "wc -c")).stdout).toBe("0\n");
  });

  test("end also when they do not read their standard input", async () => {
    const result = await shell(vm.agent, "exit 4", { stdin: [new Uint8Array(2_000_000)] });
    expect(result.exitCode).toBe(4);
  });

  test("may write much more than any buffer holds, on both streams", async () => {
    let stdout = 0;
    let stderr = 0;
    const run = vm.agent.exec(
      {
        argv: ["/bin/sh", "-c", "yes | head -c 8000000 & yes | head -c 3000000 >&2; wait"],
        env: { PATH: "/bin" },
        cwd: "/",
        hostname: "h",
        timeoutMs: 60_000,
      },
      (stream, chunk) => {
        if (stream === "stdout") stdout += chunk.byteLength;
        else stderr += chunk.byteLength;
      },
    );
    expect((await run.exit).exitCode).toBe(0);
    expect([stdout, stderr]).toEqual([8_000_000, 3_000_000]);
  });

  test("can run at the same time", async () => {
    const results = await Promise.all([1, 2, 3].map((number) => shell(vm.agent, `sleep 0.2; echo ${number}`)));
    expect(results.map(({ stdout }) => stdout)).toEqual(["1\n", "2\n", "3\n"]);
  });

  test("are ended by a signal, and by their time limit", async () => {
    const started = Promise.withResolvers<void>();
    const run = vm.agent.exec(
      {
        argv: ["/bin/sh", "-c", "echo up; sleep 60"],
        env: { PATH: "/bin" },
        cwd: "/",
        hostname: "h",
        timeoutMs: 30_000,
      },
      () => void started.resolve(),
    );
    await run.started;
    await started.promise;
    run.signal(15);
    expect(await run.exit).toMatchObject({ exitCode: 143, timedOut: false });
    const late = await shell(vm.agent, "sleep 60", { timeoutMs: 500 });
    expect(late).toMatchObject({ exitCode: 137, timedOut: true });
    expect(late.wallUs).toBeGreaterThan(400_000n);
  });

  test("that are missing and that cannot be run have different exit codes", async () => {
    expect((await shell(vm.agent, "", { argv: ["no-such-command"] })).exitCode).toBe(127);
    expect((await shell(vm.agent, "", { argv: ["/bin"] })).exitCode).toBe(126);
  });
});

describe("files", () => {
  test("are placed in the order of the calls", async () => {
    await using fresh = await host.clone();
    const content = Buffer.from(seededRandom(8).bytes(5_000_000));
    await fresh.machine.attach(await host.disks(fresh.machine));
    const mounted = fresh.agent.mount({ layers: 1, scratch: true });
    const path = parseGuestPathText("/deep/ly/nested ü");
    const put = { path, mode: 0o4750, sizeBytes: content.byteLength, content: pieces(content, 700_001) };
    const [, , result] = await Promise.all([
      mounted,
      fresh.agent.putFile(put),
      shell(fresh.agent, "busybox sha256sum < '/deep/ly/nested ü'; busybox stat -c '%a %u %g %s' '/deep/ly/nested ü'"),
    ]);
    const hash = createHash("sha256").update(content).digest("hex");
    expect(result.stdout).toBe(`${hash}  -\n4750 0 0 5000000\n`);
  });

  test("that cannot be placed fail with the reason", async () => {
    await using fresh = await host.mounted();
    const put = (path: string) =>
      fresh.agent.putFile({
        path: parseGuestPathText(path),
        mode: 0o644,
        sizeBytes: 300_000,
        content: pieces(new Uint8Array(300_000), 1000),
      });
    expect((await failure(put("/bin"))).errno).toBe(21);
  });

  test("cannot be placed after a failed mount, and nothing else succeeds either", async () => {
    await using fresh = await host.clone();
    const blank = join(host.directory, "blank");
    await Bun.write(blank, new Uint8Array(1_048_576));
    await fresh.machine.attach([{ serial: "L00", path: blank, readOnly: true }]);
    const mounted = fresh.agent.mount({ layers: 1, scratch: true });
    const run = shell(fresh.agent, "true");
    expect((await failure(mounted)).errno).toBe(ERRNO_INVALID);
    await failure(run);
  });
});

describe("a frozen scratch", () => {
  test("is listed completely, and its bytes are at the listed offsets", async () => {
    await using fresh = await host.mounted();
    await shell(fresh.agent, "mkdir -p /new && echo 'of the guest' > /new/file && busybox rm /bin/yes");
    await fresh.agent.freeze();
    const path = join(host.directory, "scratch.index");
    const stream = fresh.agent.index("scratch");
    const { entryCount } = await writeLayerIndex({ stream, path, diskBytes: 1_073_741_824 });
    // /new, /new/file, /bin (copied up) and the whiteout of /bin/yes.
    expect(entryCount).toBe(4);
    // Only the disk of a dead machine is final.
    await fresh.machine.kill();
    using index = new Disposing(LayerIndex.open(path));
    const entry = entryAt(index.value, "/new/file");
    if (entry === null) throw new Error("the file is not listed");
    expect(entry).toMatchObject({ type: "f", mode: 0o644, size: 13 });
    const [extent] = index.value.extents(entry, 0, 10);
    const disk = Bun.file(join(fresh.machine.directory, "S"));
    const physical = Number(extent?.physical);
    expect(await disk.slice(physical, physical + entry.size).text()).toBe("of the guest\n");
  });
});
