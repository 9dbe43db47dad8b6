import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { createHash } from "node:crypto";
import { chmod, mkdir, readdir, readFile, rm, stat, truncate } from "node:fs/promises";
import { join, resolve } from "node:path";
import { outputObject } from "../../../src/api/v1/schema/operations.ts";
import { ScriptedAppliance } from "../../support/cli/cli.ts";
import { Executable } from "../../support/executable.ts";
import { freePort } from "../../support/free-port.ts";
import { pause } from "../../support/waiting.ts";

const ROOT = resolve(import.meta.dir, "../../..");
const ID = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15";

let coppice: Executable;
beforeAll(async () => {
  coppice = await Executable.place();
  await coppice.layTraps();
});
afterAll(() => coppice[Symbol.asyncDispose]());

const sha256 = async (path: string): Promise<string> =>
  createHash("sha256")
    .update(await readFile(path))
    .digest("hex");

describe("alone in a directory", () => {
  test("prints its version and parts", async () => {
    const { version } = JSON.parse(await readFile(join(ROOT, "package.json"), "utf8"));
    const { code, stdout } = await coppice.run(["version", "--json"]);
    expect(code).toBe(0);
    const facts = JSON.parse(stdout.toString());
    expect(facts).toMatchObject({ version, bun: "1.4.4", guest_assets: expect.stringMatching(/^[0-9a-f]{64}$/) });
    expect(facts.revision).not.toBe("source");
  });

  test("opens its store with the embedded addon and migrations", async () => {
    const created = await coppice.run(["token", "create", "--account", "alice", "--data-dir", "data"]);
    expect([created.code, created.stderr]).toEqual([0, expect.stringContaining("for alice")]);
    const listed = await coppice.run(["token", "list", "--json", "--data-dir", "data"]);
    expect(JSON.parse(listed.stdout.toString())).toMatchObject([{ account: "alice", state: "valid" }]);
  });

  test("reads no settings and runs no code from its working directory", async () => {
    const { code, stdout, stderr } = await coppice.run(["doctor", "--json", "--no-boot", "--data-dir", "data"]);
    expect([0, 1]).toContain(code);
    expect(`${stdout}${stderr}`).not.toMatch(/TRAPPED|trapped|6\.6\.6/);
  });

  test("doctor finds the embedded guest", async () => {
    const { stdout } = await coppice.run(["doctor", "--json", "--no-boot", "--data-dir", "data"]);
    const { findings } = JSON.parse(stdout.toString());
    expect(findings).toContainEqual(expect.objectContaining({ name: "guest", summary: "inside the executable" }));
  });

  test("prints no path of the machine that built it", async () => {
    const { stdout, stderr } = await coppice.run(["--help"]);
    expect(`${stdout}${stderr}`).not.toContain(ROOT);
  });

  test("a user without access to the data directory gets that error, and no empty list", async () => {
    const denied = join(coppice.directory, "denied");
    await mkdir(denied, { mode: 0o700 });
    await chmod(coppice.directory, 0o755);
    const unprivileged = ["/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", coppice.path];
    const path = join(denied, "data");
    for (const argv of [["token", "list"], ["token", "create", "--account", "a"], ["gc"], ["backup", "-o", "x.tar"]]) {
      const { exitCode, stderr } = Bun.spawnSync([...unprivileged, ...argv, "--data-dir", path], {
        cwd: coppice.directory,
        env: { PATH: "/usr/bin:/bin", HOME: coppice.directory },
      });
      expect([exitCode, stderr.toString()]).toEqual([
        1,
        expect.stringMatching(new RegExp(`^coppice [a-z ]+: ${path} is not accessible: run this as .*\\n$`)),
      ]);
    }
    const serve = Bun.spawnSync([...unprivileged, "serve", "--data-dir", path], { cwd: "/", env: {} });
    expect([serve.exitCode, serve.stderr.toString()]).toEqual([1, expect.stringContaining("this needs root")]);
  });

  test("the first failure is reported, not that of the clean-up after it", async () => {
    await using appliance = new ScriptedAppliance();
    appliance.answer = () => new Response("content");
    const argv = ["cp", ID, "/a", join(coppice.directory, "denied/inside")];
    const unprivileged = ["/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", coppice.path];
    const child = Bun.spawn([...unprivileged, ...argv], {
      cwd: "/",
      env: { ...appliance.environment },
      stderr: "pipe",
    });
    const stderr = await new Response(child.stderr).text();
    expect([await child.exited, stderr]).toEqual([
      1,
      expect.stringMatching(/^coppice cp: EACCES: permission denied, .*\n$/),
    ]);
  });
});

describe("serve", () => {
  /** Runs the appliance until it listens, and ends it. */
  async function serveOnce(dataDir: string, more: readonly string[] = []): Promise<{ log: string; code: number }> {
    const flags = ["--data-dir", dataDir, "--listen-port", "0", "--vm-emulation", "allow", "--log-format", "json"];
    const child = coppice.start(["serve", ...flags, "--pool-size", "0", ...more]);
    let log = "";
    for await (const chunk of child.stderr) {
      const listening = log.includes('"message":"listening"');
      log += Buffer.from(chunk).toString("utf8");
      if (!listening && log.includes('"message":"listening"')) child.kill("SIGTERM");
    }
    return { log, code: await child.exited };
  }

  test("says what to do next until a token has been made", async () => {
    const dataDir = join(coppice.directory, "new");
    const command = `coppice token create --data-dir ${dataDir} --account me --save`;
    const ingress = ["--ingress-listen", `127.0.0.1:${await freePort()}`];
    const e2b = ["--e2b-listen", `127.0.0.1:${await freePort()}`, "--e2b-domain", "box.example"];
    const { log } = await serveOnce(dataDir, [...ingress, ...e2b]);
    expect(log).toContain(command);
    expect(log).toContain('"sandbox":"coppice up tag:python --name dev"');
    expect(log).toContain(`"message":"serving ports of sandboxes","listen":"${ingress[1]}","domain":"localhost"`);
    expect(log).toContain(`"message":"serving clients of E2B","listen":"${e2b[1]}","domain":"box.example"`);
    const token = coppice.start(["token", "create", "--data-dir", dataDir, "--account", "me", "--e2b"]);
    expect(await new Response(token.stdout).text()).toMatch(/^e2b_[0-9a-f]{200,}\n$/);
    expect(await token.exited).toBe(0);
    expect((await serveOnce(dataDir)).log).not.toContain("this appliance is new");
    await rm(dataDir, { recursive: true });
  });

  test("unpacks kernel, initramfs and launcher as they were built, and repairs what is damaged", async () => {
    const dataDir = join(coppice.directory, "unpacked");
    expect(await serveOnce(dataDir)).toMatchObject({ code: 0 });
    const [hash = "", ...others] = await readdir(join(dataDir, "assets"));
    expect(others).toEqual([]);
    const unpacked = join(dataDir, "assets", hash);
    const names = ["copy-memory", "initramfs.cpio", "launch", "memory.so", "vmlinux"];
    expect((await readdir(unpacked)).sort()).toEqual(names);
    for (const name of names) {
      expect(await sha256(join(unpacked, name))).toBe(await sha256(join(ROOT, "build/assets", name)));
      expect((await stat(join(unpacked, name))).mode & 0o222).toBe(0);
    }
    const before = await stat(join(unpacked, "vmlinux"));
    await truncate(join(unpacked, "initramfs.cpio"), 10);
    await mkdir(join(dataDir, "assets/0000"));
    expect(await serveOnce(dataDir)).toMatchObject({ code: 0 });
    expect(await sha256(join(unpacked, "initramfs.cpio"))).toBe(
      await sha256(join(ROOT, "build/assets/initramfs.cpio")),
    );
    expect((await stat(join(unpacked, "vmlinux"))).ino).not.toBe(before.ino);
    expect(await readdir(join(dataDir, "assets"))).toEqual([hash]);
    await rm(dataDir, { recursive: true });
  }, 60_000);

  test("an invalid setting ends it at once, with all problems", async () => {
    const { code, stderr } = await coppice.run(["serve", "--listen-port", "x"], { COPPICE_POOL_SIZE: "y" });
    expect(code).toBe(2);
    expect(stderr).toMatch(/COPPICE_POOL_SIZE: .*\n.*--listen-port: /);
  });
});

describe("as a client", () => {
  const output = Buffer.alloc(
    10_000_000,
    Uint8Array.from({ length: 251 }, (_, index) => index),
  );
  const argv = ["run", "--image", "tag:x", "--", "job"];

  /** An appliance whose run writes that output and ends at once. */
  function scripted(stdout: Uint8Array = output): ScriptedAppliance {
    const appliance = new ScriptedAppliance();
    const result = {
      ...{ exit_code: 5, cpu_time_ms: 0, memory_bytes: 0, timed_out: false, isolation: "vm" },
      ...{ stdout: outputObject(stdout, false), stderr: outputObject(Buffer.from([0xc3, 0x28, 10]), false) },
    };
    appliance.answer = ({ path }) =>
      path === "/instances"
        ? Response.json({ uuid: ID }, { status: 201 })
        : Response.json({ id: ID, kind: "instance", status: "SUCCESS", created_at: "", result });
    return appliance;
  }

  test("10 MB of output arrive whole at a slow reader, and the exit code with them", async () => {
    await using appliance = scripted();
    const child = coppice.start(argv, appliance.environment);
    const hash = createHash("sha256");
    let chunks = 0;
    for await (const chunk of child.stdout) {
      hash.update(chunk);
      chunks += 1;
      if (chunks < 20) await pause("the reader is slow", 10);
    }
    const stderr = await new Response(child.stderr).bytes();
    expect(hash.digest("hex")).toBe(createHash("sha256").update(output).digest("hex"));
    expect([...stderr]).toEqual([0xc3, 0x28, 10]);
    expect(await child.exited).toBe(5);
  });

  test("a file that others append to keeps what they wrote", async () => {
    await using empty = scripted(new Uint8Array(0));
    const file = join(coppice.directory, "log");
    const script =
      'exec >log 2>&1; echo one; "$0" version; "$0" burn; echo two; "$0" run --image X -- job 2>err; echo three';
    const shell = Bun.spawn(["/bin/sh", "-c", script, coppice.path], {
      cwd: coppice.directory,
      env: { PATH: "/usr/bin:/bin", ...empty.environment },
    });
    await shell.exited;
    const text = await readFile(file, "utf8");
    expect(text).toMatch(/^one\ncoppice \S+ .*\ncoppice: there is no command burn\nTry .*\ntwo\nthree\n$/);
  });

  test("a reader that leaves does not crash it", async () => {
    await using appliance = scripted();
    const child = coppice.start(argv, appliance.environment);
    const reader = child.stdout.getReader();
    await reader.read();
    await reader.cancel();
    expect(await new Response(child.stderr).text()).not.toContain("unexpected failure");
    await child.exited;
    expect(child.signalCode).toBeNull();
  });

  test("the exit code of a run is right although the pipe is closed early", async () => {
    await using appliance = scripted();
    const script = `"$0" run --image X -- job 2>/dev/null | head -c 1 >/dev/null; echo "\${PIPESTATUS[0]}"`;
    const shell = Bun.spawn(["/bin/bash", "-c", script, coppice.path], {
      cwd: coppice.directory,
      env: { PATH: "/usr/bin:/bin", ...appliance.environment },
      stdout: "pipe",
    });
    expect(await new Response(shell.stdout).text()).toBe("5\n");
  });

  test("a full disk below the output is reported in one line", async () => {
    const full = Bun.spawn(["/bin/sh", "-c", '"$0" version >/dev/full', coppice.path], {
      cwd: coppice.directory,
      env: { PATH: "/usr/bin:/bin" },
      stderr: "pipe",
    });
    expect(await new Response(full.stderr).text()).toBe("coppice version: ENOSPC: no space left on device, write\n");
    expect(await full.exited).toBe(1);
  });

  test("SIGINT cancels the operation on the appliance", async () => {
    await using appliance = new ScriptedAppliance();
    const polled = Promise.withResolvers<void>();
    let cancelled = false;
    appliance.answer = async ({ method, path }) => {
      if (path === "/instances") return Response.json({ uuid: ID }, { status: 201 });
      if (method === "DELETE") cancelled = true;
      polled.resolve();
      await pause("an appliance answers later", 20);
      const status = cancelled ? "CANCELLED" : "EXECUTING";
      return Response.json({ id: ID, kind: "instance", status, created_at: "" });
    };
    const child = coppice.start(argv, appliance.environment);
    await polled.promise;
    child.kill("SIGINT");
    expect(await child.exited).toBe(130);
    expect(cancelled).toBe(true);
  });
});
