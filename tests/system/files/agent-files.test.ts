/** Files of a running command in a real guest: identities, mounts, the overlay, limits, and commands as users by name. */

import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import type { GuestFile } from "../../../src/domain/tree/guest-file.ts";
import { parseGuestPathText } from "../../../src/domain/tree/guest-path.ts";
import type { AgentError, AgentExecSpec, ExecHandle } from "../../../src/vm/agent/agent.ts";
import type { GuestFiles } from "../../../src/vm/agent/files/guest-files.ts";
import { openVmHost, shell, type TestMachine, type VmHost } from "../../support/guests/vm.ts";

// On a busy host, an emulated machine takes many times the usual three seconds to boot.
setDefaultTimeout(120_000);

const signal = AbortSignal.timeout(600_000);
let host: VmHost;
let vm: TestMachine;
let target: ExecHandle;
let files: GuestFiles;

const at = (path: string, user = ""): GuestFile => ({ path: parseGuestPathText(path), user });

async function* bytes(content: string | Uint8Array): AsyncGenerator<Uint8Array> {
  yield Buffer.from(content);
}

const put = (path: string, content: string | Uint8Array, options: Partial<Parameters<GuestFiles["write"]>[1]> = {}) =>
  files.write(at(path), { signal, parents: true, ...options }, bytes(content));

async function get(path: string, user = ""): Promise<{ size: number | null; text: string }> {
  await using file = await files.read(at(path, user), { signal });
  const chunks: Uint8Array[] = [];
  for await (const chunk of file.chunks) chunks.push(chunk.slice());
  return { size: file.entry.size, text: Buffer.concat(chunks).toString() };
}

async function failure(work: Promise<unknown>): Promise<{ errno: number; message: string } | null> {
  return await work.then(
    () => null,
    (error: AgentError) => ({ errno: error.errno, message: error.message }),
  );
}

const errno = async (work: Promise<unknown>) => (await failure(work))?.errno;

/** Runs a script in the target's namespaces. */
async function run(script: string, spec: Partial<AgentExecSpec> = {}): Promise<string> {
  let text = "";
  const argv = ["/bin/sh", "-c", script];
  const command = { argv, env: { PATH: "/bin" }, cwd: "/", hostname: "", timeoutMs: 0, ...spec };
  const onOutput = (_: string, chunk: Uint8Array): undefined => {
    text += Buffer.from(chunk).toString();
  };
  const handle = vm.agent.exec(command, onOutput, { target });
  const { exitCode } = await handle.exit;
  return exitCode === 0 ? text : `${text}exit ${exitCode}`;
}

beforeAll(async () => {
  host = await openVmHost();
  vm = await host.mounted();
  const argv = ["/bin/sh", "-c", "while :; do sleep 60; done"];
  target = vm.agent.exec(
    { argv, env: { PATH: "/bin", SECRET: "of-the-target" }, cwd: "/", hostname: "h", timeoutMs: 600_000 },
    () => undefined,
  );
  target.exit.catch(() => undefined);
  await target.started;
  files = vm.agent.files(target);
  await put("/etc/passwd", "root:x:0:0::/root:/bin/sh\nann:x:1000:100:Ann:/home/ann:/bin/sh\nbob:x:1001:100::/none:\n");
  await put("/etc/group", "users:x:100:\nstaff:x:50:ann,bob\nwheel:x:10:ann\n");
  await files.makeDirectory(at("/home/ann"), { parents: true, owner: { uid: 1000, gid: 100 }, mode: 0o700, signal });
});
afterAll(async () => {
  await vm[Symbol.asyncDispose]();
  await host[Symbol.asyncDispose]();
});

describe("a command as a user by name", () => {
  const script = "id -u; id -g; id -G; pwd; echo $HOME $USER $LOGNAME $SHELL";

  test("has that user's groups, home and variables", async () => {
    const login = "1000\n100\n100 10 50\n/home/ann\n/home/ann ann ann /bin/sh\n";
    expect(await run(script, { userName: "ann", cwd: "" })).toBe(login);
    const alone = await shell(vm.agent, script, { userName: "1000", cwd: "", env: { PATH: "/bin", HOME: "/tmp" } });
    expect(alone.stdout).toBe("1000\n100\n100 10 50\n/home/ann\n/tmp ann ann /bin/sh\n");
    expect(await run(script, { userName: "bob", cwd: "" })).toBe("1001\n100\n100 50\n/\n/none bob bob /bin/sh\n");
    expect(await run(script, { userName: "ann:wheel", cwd: "/" })).toStartWith("1000\n10\n10\n/\n");
    expect(await run(script, { userName: "77:78", cwd: "" })).toBe("77\n78\n78\n/\n/ /bin/sh\n");
    expect(await run("id -u; id -G; echo $HOME", { userName: "root" })).toBe("0\n0\n/root\n");
    expect(await run("busybox grep CapEff /proc/self/status", { userName: "ann" })).toMatch(/^CapEff:\s+0+$/m);
  });

  test("is an error when there is no such user", async () => {
    const spec = { argv: ["/bin/id"], env: {}, cwd: "/", hostname: "", timeoutMs: 1000, userName: "eve" };
    const { exit } = vm.agent.exec(spec, () => undefined);
    expect(await failure(exit)).toMatchObject({ errno: 2, message: expect.stringContaining("user eve") });
  });
});

describe("files", () => {
  test("of a user are what that user may see and change", async () => {
    await put("/secret", "x", { mode: 0o600 });
    expect(await errno(get("/secret", "ann"))).toBe(13);
    expect(await errno(files.write(at("/new", "ann"), { signal }, bytes("")))).toBe(13);
    const own = await files.write(at("/home/ann/f", "ann"), { signal, mode: 0o4711 }, bytes("mine"));
    expect(own).toMatchObject({ uid: 1000, gid: 100, mode: 0o4711 });
    expect(Buffer.from(own.user, "latin1").toString()).toBe("ann");
    expect(await errno(get("/home/ann/f", "bob"))).toBe(13);
    await files.makeDirectory(at("/shared"), { parents: false, owner: { uid: 0, gid: 50 }, mode: 0o2770, signal });
    expect(await files.write(at("/shared/f", "ann"), { signal }, bytes("x"))).toMatchObject({ uid: 1000, gid: 50 });
    expect(await errno(files.write(at("/shared/g", "ann:users"), { signal }, bytes("x")))).toBe(13);
    expect(await failure(get("/secret", "eve"))).toMatchObject({ errno: 2 });
  });

  test("of /proc are read to their end, also those of other processes, and the visitor is none of them", async () => {
    expect((await get("/proc/sys/kernel/random/boot_id")).text).toMatch(/^[0-9a-f-]{36}\n$/);
    expect(await get("/proc/1/environ")).toEqual({ size: null, text: expect.stringContaining("") });
    const pids = (await run("echo /proc/[0-9]*/environ")).trim().split(" ");
    const environments: string[] = [];
    for (const path of pids) environments.push((await get(path).catch(() => ({ text: "" }))).text);
    expect(environments.join("")).toContain("SECRET=of-the-target");
    const end = new AbortController();
    const watch = files.watch(at("/etc"), { recursive: false, signal: end.signal });
    expect((await watch.next()).value).toMatchObject({ type: "ready" });
    const programs = (await run("cat /proc/[0-9]*/comm")).trim().split("\n");
    expect(programs.filter((name) => !["sh", "sleep", "cat"].includes(name))).toEqual(["init"]);
    end.abort();
    await watch.next().catch(() => undefined);
  });

  test("are watched where the image has them", async () => {
    const end = new AbortController();
    const watch = files.watch(at("/"), { recursive: true, signal: end.signal });
    expect((await watch.next()).value).toMatchObject({ type: "ready" });
    await run("echo x > /bin/new; mkdir /bin/dir; echo y > /bin/dir/f; busybox rm -r /bin/dir /bin/new");
    const seen = new Set<string>();
    while (!seen.has("remove bin/new")) {
      const { value } = await watch.next();
      seen.add(`${value?.type} ${value?.path}`);
    }
    for (const event of ["create bin/new", "write bin/new", "create bin/dir", "create bin/dir/f"])
      expect(seen.has(event)).toBeTrue();
    end.abort();
    await watch.next().catch(() => undefined);
  });

  test("are listed where a symlink leads, in one request", async () => {
    await run(
      "mkdir /place; echo > /place/f; busybox ln -s f /place/link; busybox ln -s place /way; busybox ln -s no /nowhere",
    );
    const list = async (path: string, follow: boolean) => {
      const lines: string[] = [];
      for await (const { path: name, type, target: link } of files.list(at(path), { follow, depth: 1, signal })) {
        lines.push(`${type} ${name} ${link}`);
      }
      return lines.sort();
    };
    expect(await list("/way", false)).toEqual(["d  ", "f f ", "l link f"]);
    expect(await list("/way", true)).toEqual(["d  ", "f f ", "f link /place/f"]);
    expect(await errno(list("/nowhere", false))).toBe(2);
    await run("rm -r /place /way /nowhere");
  });

  test("move with what an overlay does not rename, and between mounts", async () => {
    const names = async (path: string) => {
      const list: string[] = [];
      for await (const entry of files.list(at(path), { follow: false, depth: 9, signal }))
        list.push(`${entry.type} ${entry.mode.toString(8)} ${entry.path}`);
      return list.sort();
    };
    const before = await names("/bin");
    await files.move(at("/bin"), { to: at("/moved").path, replace: false, signal });
    expect(await names("/moved")).toEqual(before);
    expect(await errno(files.stat(at("/bin"), { follow: false, signal }))).toBe(2);
    await files.move(at("/moved"), { to: at("/bin").path, replace: false, signal });
    expect(await run("echo alive")).toBe("alive\n");
    await run(
      "mkdir /tree /tree/a; echo content > /tree/a/f; busybox ln -s a/f /tree/link; busybox mkfifo /tree/fifo; " +
        "busybox chmod 751 /tree/a; busybox truncate -s 5M /tree/holes",
    );
    await files.change(at("/tree/a/f"), {
      attributes: new Map([["user.x" as never, Buffer.from("y")]]),
      owner: { uid: 1000, gid: 50 },
      mode: 0o604,
      signal,
    });
    const tree = await names("/tree");
    await files.move(at("/tree"), { to: at("/dev/shm/tree").path, replace: false, signal });
    expect(await names("/dev/shm/tree")).toEqual(tree);
    await files.move(at("/dev/shm/tree"), { to: at("/back").path, replace: false, signal });
    expect(await names("/back")).toEqual(tree);
    expect(await files.stat(at("/back/a/f"), { follow: false, signal })).toMatchObject({
      uid: 1000,
      gid: 50,
      mode: 0o604,
    });
    expect(await run("busybox du -k /back/holes | busybox cut -f1")).toBe("0\n");
    await put("/dev/shm/one", "1");
    expect(await errno(files.move(at("/dev/shm/one"), { to: at("/back").path, replace: false, signal }))).toBe(17);
    expect(await errno(files.move(at("/dev/shm/one"), { to: at("/back").path, replace: true, signal }))).toBe(21);
    await files.remove(at("/back"), { recursive: true, signal });
    expect(await errno(files.remove(at("/dev"), { recursive: true, signal }))).toBe(16);
    expect(await run("ls /dev/null /dev/shm/one")).toBe("/dev/null\n/dev/shm/one\n");
  });

  test("that do not fit, and mounts that cannot be written, are errors", async () => {
    await run(
      "mkdir /small; mount -t tmpfs -o size=64k none /small; echo x > /small/f; mkdir /fixed; mount -t tmpfs -o ro none /fixed",
    );
    const big = Buffer.alloc(1 << 20, 1);
    expect(await errno(put("/small/big", big))).toBe(28);
    expect(await errno(put("/small/f", big, { atomic: true }))).toBe(28);
    expect((await get("/small/f")).text).toBe("x\n");
    expect((await run("ls -a /small")).split("\n")).not.toContainEqual(expect.stringContaining(".coppice"));
    expect(await errno(put("/fixed/f", "x"))).toBe(30);
    expect(await errno(files.remove(at("/fixed"), { recursive: true, signal }))).toBe(16);
  });

  test("of many MiB pass through both ways", async () => {
    const sizeBytes = 64 << 20;
    const block = Buffer.alloc(1 << 20, 7);
    async function* content() {
      for (let left = sizeBytes; left > 0; left -= block.length) yield block;
    }
    const written = await files.write(at("/large"), { signal }, content());
    expect(written.size).toBe(sizeBytes);
    let count = 0;
    await using file = await files.read(at("/large"), { signal });
    for await (const chunk of file.chunks) count += chunk.length;
    expect(count).toBe(sizeBytes);
    expect(await run("echo alive")).toBe("alive\n");
    await files.remove(at("/large"), { recursive: false, signal });
  });

  test("wait behind a quiesce only when they write", async () => {
    await using still = await vm.agent.quiesce(20_000);
    expect((await get("/etc/group")).text).toContain("staff");
    let over = false;
    const write = put("/late", "x").then(() => {
      over = true;
    });
    expect((await get("/etc/group")).text).toContain("staff");
    expect(over).toBeFalse();
    await still.thaw();
    await write;
    expect((await get("/late")).text).toBe("x");
  });

  test("end with the command, and the disk can be frozen at once", async () => {
    const watch = files.watch(at("/etc"), { recursive: false, signal });
    await watch.next();
    target.signal(9);
    expect((await target.exit).exitCode).toBe(137);
    await vm.agent.freeze();
    expect(await errno(watch.next())).toBe(3);
    expect(await errno(get("/etc/group"))).toBe(3);
  });
});
