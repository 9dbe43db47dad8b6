/** The commands for files of what runs, against a real instance whose guest is this host. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout } from "bun:test";
import { execFileSync } from "node:child_process";
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Api } from "../../support/api/api.ts";
import { heldTest } from "../../support/api/program.ts";
import { type RunningFixture, runningInstance } from "../../support/api/running.ts";
import { type CliOptions, cli } from "../../support/cli/cli.ts";

// The first test may have to build the agent.
setDefaultTimeout(150_000);

let api: Api;
let running: RunningFixture;
let directory: string;
beforeAll(async () => {
  api = await Api.start();
  await api.addImage([[{ path: "f", type: "f", content: "x" }]], { tag: "base" });
  running = await runningInstance(api, "sleep 1000");
  directory = mkdtempSync(join(tmpdir(), "coppice-cli-files-"));
});
afterAll(async () => {
  await running?.[Symbol.asyncDispose]();
  await api[Symbol.asyncDispose]();
  rmSync(directory, { recursive: true });
});

const coppice = async (argv: readonly string[], options: CliOptions = {}) => {
  const environment = { COPPICE_URL: api.url, COPPICE_TOKEN: api.token, HOME: "/nonexistent" };
  const { code, stdout, stderr } = await cli(argv, { environment, ...options });
  return { code, out: stdout.toString("utf8"), stderr };
};
const done = async (...argv: string[]) => {
  const result = await coppice(argv);
  expect({ argv, code: result.code, stderr: result.stderr }).toEqual({ argv, code: 0, stderr: "" });
  return result.out;
};
const there = (path: string) => `${running.id}:${path}`;
const inGuest = (path: string) => join(running.root, path);

describe("cp of a file", () => {
  heldTest("that is a pipe fails, and leaves nothing", async () => {
    execFileSync("mkfifo", [inGuest("pipe")]);
    const result = await coppice(["cp", there("/pipe"), join(directory, "pipe")]);
    expect([result.code, result.stderr]).toEqual([1, "coppice cp: /pipe is neither a file nor a directory\n"]);
    expect(readdirSync(directory).filter((name) => name.includes("pipe"))).toEqual([]);
  });

  heldTest("writes it in place with its permissions, and reads it back", async () => {
    const local = join(directory, "script.sh");
    writeFileSync(local, "#!/bin/sh\n", { mode: 0o750 });
    await done("cp", local, there("/new/name"));
    expect(readFileSync(inGuest("new/name"), "utf8")).toBe("#!/bin/sh\n");
    expect(statSync(inGuest("new/name")).mode & 0o777).toBe(0o750);
    const inode = statSync(inGuest("new/name")).ino;
    writeFileSync(local, "second");
    await done("cp", local, there("/new/name"));
    expect([statSync(inGuest("new/name")).ino, readFileSync(inGuest("new/name"), "utf8")]).toEqual([inode, "second"]);
    // A directory gets it under its own name.
    await done("cp", local, there("/new"));
    expect(readFileSync(inGuest("new/script.sh"), "utf8")).toBe("second");
    await done("cp", there("/new/name"), join(directory, "back"));
    expect(readFileSync(join(directory, "back"), "utf8")).toBe("second");
    expect(await done("cp", there("/new/name"), "-")).toBe("second");
    expect(await done("cat", there("/new/name"))).toBe("second");
    const piped = await coppice(["cp", "-", there("/piped")], { stdin: Buffer.from("from a pipe") });
    expect([piped.code, readFileSync(inGuest("piped"), "utf8")]).toEqual([0, "from a pipe"]);
  });

  heldTest("keeps holes in both directions", async () => {
    const local = join(directory, "sparse");
    writeFileSync(local, "begin");
    truncateSync(local, 8_388_608);
    writeFileSync(local, "end", { flag: "a" });
    await done("cp", local, there("/sparse"));
    expect(readFileSync(inGuest("sparse")).equals(readFileSync(local))).toBe(true);
    expect(statSync(inGuest("sparse")).blocks * 512).toBeLessThan(1_048_576);
    await done("cp", there("/sparse"), join(directory, "sparse-back"));
    expect(readFileSync(join(directory, "sparse-back")).equals(readFileSync(local))).toBe(true);
    expect(statSync(join(directory, "sparse-back")).blocks * 512).toBeLessThan(1_048_576);
    truncateSync(local, 4096 * 300);
    await done("cp", local, there("/hole"));
    await done("cp", there("/hole"), join(directory, "hole-back"));
    expect(statSync(join(directory, "hole-back")).size).toBe(4096 * 300);
  });
});

describe("cp of a directory", () => {
  heldTest("copies a tree in and out", async () => {
    const local = join(directory, "tree");
    mkdirSync(join(local, "d/empty"), { recursive: true });
    for (let n = 0; n < 30; n++) writeFileSync(join(local, `d/file ${n}`), `content ${n}`);
    chmodSync(join(local, "d/file 7"), 0o600);
    chmodSync(join(local, "d/empty"), 0o500);
    symlinkSync("d/file 1", join(local, "link"));
    const copied = await coppice(["cp", local, there("/tree")]);
    expect([copied.code, copied.stderr]).toEqual([
      0,
      "coppice cp: links, devices, sockets and pipes were left out: 1\n",
    ]);
    expect(readFileSync(inGuest("tree/d/file 29"), "utf8")).toBe("content 29");
    expect(statSync(inGuest("tree/d/file 7")).mode & 0o777).toBe(0o600);
    expect(statSync(inGuest("tree/d/empty")).mode & 0o777).toBe(0o500);
    symlinkSync("../d/file 1", inGuest("tree/d/link"));
    await done("cp", there("/tree"), join(directory, "out"));
    expect(readdirSync(join(directory, "out/d")).length).toBe(32);
    expect(readlinkSync(join(directory, "out/d/link"))).toBe("../d/file 1");
    expect(statSync(join(directory, "out/d/file 7")).mode & 0o777).toBe(0o600);
    // An existing directory gets the tree under its own name.
    await done("cp", join(local, "d"), there("/tree"));
    expect((await coppice(["cp", join(local, "d"), there("/tree/d/file 1")])).code).toBe(1);
  });
});

describe("ls, mkdir and rm", () => {
  heldTest("list, make and remove", async () => {
    await done("mkdir", "-p", there("/dir/below"));
    expect((await coppice(["mkdir", there("/dir/below")])).stderr).toContain("/dir/below exists");
    expect((await coppice(["mkdir", there("/absent/below")])).code).toBe(1);
    await done("mkdir", "-m", "0700", there("/dir/private"));
    writeFileSync(inGuest("dir/a\x1bb"), "12345", { mode: 0o4755 });
    chmodSync(inGuest("dir/a\x1bb"), 0o4755);
    const lines = (await done("ls", there("dir"))).trimEnd().split("\n").sort();
    expect(lines[0]).toMatch(/^-rwsr-xr-x 1 0 0 5 \d{4}-\d\d-\d\dT[\d:]{8}Z a\\033b$/);
    expect(lines[1]).toMatch(/^drwx------ 2 0 0 \d+ \S+ private$/);
    expect(await done("ls", there("/dir/below"))).toBe("");
    const json = (await done("ls", "--json", there("/dir"))).trimEnd().split("\n");
    expect(json.map((line) => JSON.parse(line).name).sort()).toEqual(["a\x1bb", "below", "private"]);
    expect((await coppice(["rm", there("/dir")])).code).toBe(1);
    await done("rm", "-r", there("/dir"), there("/sparse"));
    expect([existsSync(inGuest("dir")), existsSync(inGuest("sparse"))]).toEqual([false, false]);
    expect((await coppice(["rm", there("/dir")])).stderr).toContain("No such file");
    expect((await coppice(["rm", "/dir"])).code).toBe(2);
    expect((await coppice(["cp", there("/a"), there("/b")])).code).toBe(2);
  });
});
