/** Builds of templates on real machines. */

import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { keyOfToken } from "../../../src/service/e2b/keys.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { type EndedBuild, TemplateClient } from "../../support/e2b/template-client.ts";
import { freePort } from "../../support/free-port.ts";
import { type TarEntry, tar } from "../../support/images/tar.ts";
import { until } from "../../support/waiting.ts";

setDefaultTimeout(240_000);

let box: BusyboxAppliance;
let client: TemplateClient;
beforeAll(async () => {
  const port = await freePort();
  box = await BusyboxAppliance.start({ poolSize: 1, tag: "base", tables: `[e2b]\nlisten = "127.0.0.1:${port}"` });
  client = new TemplateClient(`http://127.0.0.1:${port}`, keyOfToken(box.appliance.token));
});
afterAll(() => box[Symbol.asyncDispose]());

const RUN = (command: string, user?: string) => ({
  type: "RUN",
  args: user === undefined ? [command] : [command, user],
});
const lines = ({ entries }: EndedBuild, step: string) =>
  entries.filter((entry) => entry.step === step).map(({ message }) => message);

/** Number of the archives that were uploaded for tests with archives of their own. */
let copies = 10;

/** The output of a command in an image, as root. */
async function output(image: string, command: string): Promise<string> {
  const { code, stdout, stderr } = await box.appliance.command(["run", "--image", image, "--shell", "--", command]);
  if (code !== 0) throw new Error(`${command}: ${code} ${stderr}${stdout}`);
  return stdout.trimEnd();
}

describe("a build", () => {
  test("runs its steps as the user, in the directory and with the variables that earlier steps set", async () => {
    const steps = [
      RUN("id -un; pwd; echo $HOME"),
      { type: "ENV", args: ["A", "b c", "B", "$A"] },
      { type: "WORKDIR", args: ["/srv/app"] },
      RUN('echo "$A/$B"; pwd; stat -c %U /srv /srv/app'),
      { type: "USER", args: ["worker"] },
      RUN("id -un; echo done > /tmp/by-worker"),
      RUN("id -un", "root"),
    ];
    const build = await client.build("steps", { fromTemplate: "base", steps });
    expect([build.status, build.reason]).toEqual(["ready", undefined]);
    expect(lines(build, "1")).toEqual([
      "[builder 1/7] RUN id -un; pwd; echo $HOME",
      "user",
      "/home/user",
      "/home/user",
    ]);
    expect(lines(build, "4").slice(1)).toEqual(["b c/$A", "/srv/app", "user", "user"]);
    expect(lines(build, "6").slice(1)).toEqual(["worker"]);
    expect(lines(build, "7").slice(1)).toEqual(["root"]);
    expect(await output("tag:steps:default", "cat /tmp/by-worker")).toBe("done");
  });

  test("does a step again only when something before it has changed, or when it must", async () => {
    const steps = [RUN("date +%s%N > /home/user/one"), { type: "ENV", args: ["V", "1"] }, RUN("echo $V > two")];
    const build = async (name: string, body: object) => {
      const built = await client.build(name, { fromTemplate: "base", ...body });
      expect(built.status).toBe("ready");
      const cached = built.entries.filter(({ message }) => message.startsWith("CACHED")).map(({ step }) => step);
      return cached.filter((step) => step !== "base");
    };
    expect(await build("kept", { steps })).toEqual([]);
    const first = await output("tag:kept:default", "cat /home/user/one");
    expect(await build("kept:v2", { steps })).toEqual(["1", "3"]);
    expect(await output("tag:kept:v2", "cat /home/user/one")).toBe(first);
    const other = [steps[0], { type: "ENV", args: ["V", "2"] }, steps[2]];
    expect(await build("kept:v3", { steps: other })).toEqual(["1"]);
    expect(await build("kept:v4", { steps: [{ ...steps[0], force: true }, ...steps.slice(1)] })).toEqual([]);
    expect(await build("kept:v5", { steps, force: true })).toEqual([]);
    expect(await output("tag:kept:v5", "cat /home/user/one")).not.toBe(first);
  });

  test("copies files of an archive", async () => {
    const { templateID, buildID } = await client.request("copied");
    const entries: TarEntry[] = [
      { path: "folder/a.txt", content: "a", mode: 0o640 },
      { path: "folder/link", type: "symlink", target: "a.txt" },
      { path: "folder/sub/b.txt", content: "b" },
      { path: "folder/.hidden/c.txt", content: "c" },
    ];
    const archive = tar(entries);
    const hashes = ["1", "2"].map((digit) => digit.repeat(64));
    expect(await client.upload(templateID, hashes[0] as string, archive)).toBe(false);
    expect(await client.upload(templateID, hashes[0] as string, archive)).toBe(true);
    expect(await client.upload(templateID, hashes[1] as string, Bun.gzipSync(new Uint8Array(archive)))).toBe(false);
    const copy = (hash: number, ...args: string[]) => ({ type: "COPY", args, filesHash: hashes[hash] });
    const steps = [
      copy(0, "folder/*", "many"),
      RUN("mkdir -p /srv/whole/sub; touch /srv/whole/sub/old", "root"),
      copy(1, "folder", "/srv/whole/", "root", "0755"),
      copy(0, "folder/a.txt", "/srv/deep/name.txt"),
      copy(0, "folder/a.txt", "/srv/into/"),
      copy(0, "folder/link", "/srv/kept-link"),
      { type: "WORKDIR", args: ["/srv/deep"] },
      copy(0, ".", "all"),
      RUN("cat /home/user/many/sub/b.txt"),
    ];
    await client.start({ templateID, buildID }, { fromTemplate: "base", steps });
    const build = await client.ended({ templateID, buildID });
    expect([build.status, build.reason]).toEqual(["ready", undefined]);
    const state = [
      "cd /home/user/many; stat -c '%n %a %U %F' a.txt sub/b.txt; readlink link",
      "cd /srv; stat -c '%n %a %U' whole/a.txt whole/sub/b.txt deep/name.txt into/a.txt; readlink kept-link",
      "ls -A whole whole/sub | xargs echo; find /srv/deep/all | sort; ls -d /.template-build 2>&1",
    ];
    expect((await output("tag:copied:default", `${state.join("; ")}; true`)).split("\n")).toEqual([
      ...["a.txt 640 user regular file", "sub/b.txt 644 user regular file", "a.txt"],
      ...["whole/a.txt 755 root", "whole/sub/b.txt 755 root", "deep/name.txt 640 user", "into/a.txt 640 user"],
      ...["a.txt", "whole: .hidden a.txt link sub whole/sub: b.txt old"],
      ...["/srv/deep/all", "/srv/deep/all/folder", "/srv/deep/all/folder/.hidden"],
      ...["/srv/deep/all/folder/.hidden/c.txt", "/srv/deep/all/folder/a.txt"],
      ...["/srv/deep/all/folder/link", "/srv/deep/all/folder/sub", "/srv/deep/all/folder/sub/b.txt"],
      "ls: /.template-build: No such file or directory",
    ]);
  });

  test.each([
    ["names above it", [{ path: "../../etc/passwd", content: "x" }]],
    [
      "a link out of it",
      [
        { path: "out", type: "symlink", target: "/etc" },
        { path: "out/passwd", content: "x" },
      ],
    ],
    [
      "a link above it",
      [
        { path: "out", type: "symlink", target: "../.." },
        { path: "out/etc/passwd", content: "x" },
      ],
    ],
    [
      "a hard link out of it",
      [
        { path: "h", type: "hardlink", target: "/etc/passwd" },
        { path: "h", content: "x" },
      ],
    ],
    ["absolute names", [{ path: "/etc/passwd", content: "x" }]],
    ["links and a mode", [{ path: "h", type: "symlink", target: "/etc/passwd" }], "root", "0666"],
  ] as [string, TarEntry[], ...string[]][])(
    "writes nothing outside of the target of a copy: %s",
    async (_, entries, ...more) => {
      const name = `hostile-${++copies}`;
      const { templateID, buildID } = await client.request(name);
      const hash = String(copies).repeat(64).slice(0, 64);
      await client.upload(templateID, hash, tar(entries));
      const steps = [{ type: "COPY", args: [".", "/srv/copied", ...more], filesHash: hash }];
      await client.start({ templateID, buildID }, { fromTemplate: "base", steps });
      const { status, reason } = await client.ended({ templateID, buildID });
      if (status === "error") return expect(reason).toMatchObject({ step: "1" });
      expect(await output(`tag:${name}:default`, "stat -c '%a %U' /etc/passwd; grep -c root /etc/passwd")).toBe(
        "644 root\n1",
      );
    },
  );

  test.each([
    ["is cut", tar([{ path: "a", content: "x".repeat(100_000) }]).subarray(0, 50_000)],
    ["is not one", Buffer.from("text".repeat(500))],
    [
      "is cut in its compressed form",
      Bun.gzipSync(new Uint8Array(tar([{ path: "a", content: "xyz" }]))).subarray(0, 40),
    ],
  ])("fails at a copy with an archive that %s", async (_, archive) => {
    const { templateID, buildID } = await client.request("broken");
    const hash = String(++copies).repeat(64).slice(0, 64);
    await client.upload(templateID, hash, archive);
    await client.start(
      { templateID, buildID },
      { fromTemplate: "base", steps: [{ type: "COPY", args: [".", "/x"], filesHash: hash }] },
    );
    expect(await client.ended({ templateID, buildID })).toMatchObject({ status: "error", reason: { step: "1" } });
  });

  test("says why nothing can be copied", async () => {
    const { templateID, buildID } = await client.request("uncopied");
    const hash = String(++copies).repeat(64).slice(0, 64);
    await client.upload(templateID, hash, tar([{ path: "a", content: "x" }]));
    const steps = [{ type: "COPY", args: ["b", "/x"], filesHash: hash }];
    await client.start({ templateID, buildID }, { fromTemplate: "base", steps });
    expect((await client.ended({ templateID, buildID })).reason).toMatchObject({
      ...{ step: "1", message: "failed to copy 'b': command failed: the archive has no b" },
    });
  });

  test.each([
    ["1", [RUN("echo out; exit 3")], "failed to run command 'echo out; exit 3': command failed: exit status 3"],
    [
      "2",
      [RUN("true"), RUN("whoami", "root123")],
      "failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'",
    ],
    ["1", [{ type: "USER", args: ["; exit 1"] }], "unauthenticated: invalid username: '; exit 1'"],
    ["1", [{ type: "WORKDIR", args: ["/etc/passwd/x"] }], "failed to create workdir: command failed: exit status 1"],
    ["1", [{ type: "COPY", args: ["a", "b"], filesHash: "f".repeat(64) }], "the files of COPY a were not uploaded"],
  ])("names the step %s that failed, and why", async (step, steps, message) => {
    const { status, reason, entries } = await client.build("failing", { fromTemplate: "base", steps });
    expect(status).toBe("error");
    expect(reason).toMatchObject({ step, message });
    expect(entries.at(-1)).toMatchObject({ step, message, level: "error" });
  });

  test.each([
    [{ fromTemplate: "nowhere" }, "template 'nowhere' not found"],
    [{ fromImage: "not//a reference" }, ""],
  ])("fails at its base %j", async (from, message) => {
    const { status, reason } = await client.build("baseless", from);
    expect([status, reason?.step]).toEqual(["error", "base"]);
    expect(reason?.message).toContain(message);
  });

  test("imports an image of a registry once, and adds the user", async () => {
    const build = await client.build("imported", { fromImage: box.reference, steps: [RUN("id -u")] });
    expect([build.status, build.reason]).toEqual(["ready", undefined]);
    expect(lines(build, "1").slice(1)).toEqual(["1000"]);
  });

  test("starts its command once, and waits until it is ready", async () => {
    const startCmd = "echo begun; sleep 1; echo here > /tmp/ready; sleep 1000";
    const build = await client.build("starting", { fromTemplate: "base", startCmd, readyCmd: "cat /tmp/ready" });
    expect([build.status, build.reason]).toEqual(["ready", undefined]);
    expect(lines(build, "finalize")).toContain("begun");
    const failed = await client.build("starting", { fromTemplate: "base", startCmd: "./nowhere", readyCmd: "sleep 1" });
    expect(failed.reason).toMatchObject({ step: "finalize", message: expect.stringContaining("exit status 127") });
    const child = await client.build("child", { fromTemplate: "starting", steps: [RUN("test ! -e /tmp/ready")] });
    expect([child.status, child.reason]).toEqual(["ready", undefined]);
    expect(lines(child, "finalize")).toContain("begun");
  });

  test("keeps a bounded log of endless output", async () => {
    const build = await client.build("flood", { fromTemplate: "base", steps: [RUN("seq 1 200000; exit 9")] });
    expect(build.reason?.message).toContain("exit status 9");
    expect(build.entries.length).toBeGreaterThan(1000);
    expect(build.entries.length).toBeLessThan(12_000);
    expect(build.entries.map(({ message }) => message)).toContain("the log is full: further output is not kept");
  });

  test("leaves nothing of a template that is deleted while it is built", async () => {
    const requested = await client.request("gone");
    await client.start(requested, { fromTemplate: "base", steps: [RUN("sleep 1000")] });
    const path = `/templates/gone/builds/${requested.buildID}/status`;
    await until("it runs", async () => (await client.call("GET", path)).json.logs.length >= 2);
    expect((await client.call("DELETE", "/templates/gone")).status).toBe(204);
    expect((await client.call("GET", path)).status).toBe(404);
    await until("its run is gone", async () => (await box.appliance.unfinished()).length === 0);
  });

  test("fails when the appliance is restarted", async () => {
    const requested = await client.request("interrupted");
    await client.start(requested, { fromTemplate: "base", steps: [RUN("sleep 1000")] });
    await box.appliance.down("SIGKILL");
    await box.appliance.up();
    const { status, reason } = await client.ended(requested);
    expect([status, reason?.message]).toEqual(["error", "the service was restarted during the build"]);
  });
});
