import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { run } from "../../src/system/exec.ts";
import { Appliance } from "../support/appliance/appliance.ts";
import { pushBusybox } from "../support/images/images.ts";
import { Registry } from "../support/images/registry.ts";
import { execute, upload } from "../support/runs.ts";
import { until } from "../support/waiting.ts";

let registry: Registry;
let appliance: Appliance;
let directory: string;

beforeAll(async () => {
  registry = await Registry.start();
  directory = await mkdtemp(join(tmpdir(), "coppice-load-"));
  const reference = await pushBusybox(registry, "busybox:load");
  for (const kind of ["oci-archive", "docker-archive"]) {
    const copy = ["skopeo", "copy", "--quiet", "--insecure-policy", "--src-tls-verify=false", `docker://${reference}`];
    await run({ argv: [...copy, `${kind}:${at(kind)}`], timeoutMs: 60_000 });
  }
  // The appliance knows no registry.
  appliance = await Appliance.start();
}, 120_000);

afterAll(async () => {
  await appliance[Symbol.asyncDispose]();
  await registry[Symbol.asyncDispose]();
  await rm(directory, { recursive: true });
}, 60_000);

const at = (name: string): string => join(directory, name);

describe("an image in a file", () => {
  test.each(["oci-archive", "docker-archive"])("a %s is loaded, tagged, and runs", async (kind) => {
    const { code, stdout, stderr } = await appliance.command(["image", "load", at(kind), "--tag", kind]);
    expect(stderr).toContain(`loaded ${at(kind)}`);
    expect(code).toBe(0);
    const image = stdout.trim();
    const { out } = await execute(appliance, { image, command: "busybox | head -1", shell: true });
    expect(out).toStartWith("BusyBox");
    const tagged = await execute(appliance, { image: `tag:${kind}`, command: "echo", args: ["tagged"] });
    expect(tagged.out).toBe("tagged\n");
  });

  test("can be read from standard input, and uses no space a second time", async () => {
    const before = await readdir(join(appliance.dataDir, "layers"));
    const { code, stdout } = await appliance.command(["image", "load", "-"], await readFile(at("oci-archive")));
    expect(code).toBe(0);
    expect(stdout.trim()).toMatch(/^[0-9a-f-]{36}$/);
    expect(await readdir(join(appliance.dataDir, "layers"))).toEqual(before);
  });

  test("has its source in its lineage", async () => {
    const image = (await appliance.command(["image", "load", at("oci-archive")])).stdout.trim();
    const steps = (await (await appliance.fetch(`/images/${image}/lineage`)).json()) as unknown;
    const sha256 = new Bun.CryptoHasher("sha256").update(await readFile(at("oci-archive"))).digest("hex");
    expect(JSON.stringify(steps)).toContain(`archive sha256:${sha256}`);
  });

  test.each([
    ["no archive at all", async () => writeFile(at("bad"), "not a tar file")],
    [
      "an archive of something else",
      async () => void (await run({ argv: ["tar", "-cf", at("bad"), "-C", "/etc", "hostname"], timeoutMs: 10_000 })),
    ],
    ["half an archive", async () => writeFile(at("bad"), (await readFile(at("docker-archive"))).subarray(0, 400_000))],
  ])("%s is refused, and nothing is left of it", async (_what, make) => {
    await make();
    const layers = await readdir(join(appliance.dataDir, "layers"));
    const { code, stderr } = await appliance.command(["image", "load", at("bad")]);
    expect(code).toBe(1);
    expect(stderr).toContain("validation_error");
    expect(await readdir(join(appliance.dataDir, "layers"))).toEqual(layers);
    await until("nothing is left", async () => (await appliance.unfinished()).length === 0);
  });

  test("of another account is not found", async () => {
    const file = await upload(appliance, await Bun.file(at("oci-archive")).bytes());
    const token = await appliance.createToken("stranger");
    const headers = { "content-type": "application/json" };
    const init = { method: "POST", headers, body: JSON.stringify({ file }) };
    expect((await appliance.fetch("/images/load", { ...init, token })).status).toBe(404);
    expect((await appliance.fetch("/images/load", init)).status).toBe(202);
  });
});

describe("a saved image", () => {
  /** The entries of a tree: type, permissions, owner, size of files, link target, number of links, content. */
  const LIST =
    "find . -mindepth 1 \\( -type f -printf '%P %y %m %U:%G %s %n\\n' -o -printf '%P %y %m %U:%G %l\\n' \\) | sort";
  const SUMS = "find . -type f -print0 | sort -z | xargs -0 sha256sum";
  const CHANGES = [
    "mkdir -p /data/kept /data/gone /data/replaced && echo a > /data/kept/a && echo b > /data/gone/b && echo c > /data/replaced/c",
    [
      "rm -r /data/gone /bin/yes; rm -r /data/replaced; mkdir /data/replaced; echo new > /data/replaced/d",
      "ln /data/kept/a /data/kept/hard; ln -s ../kept/a /data/kept/soft; chmod 4755 /data/kept/a; chown 12:34 /data/replaced/d",
      "dd if=/dev/zero of=/data/sparse bs=1 count=1 seek=50000000 2>/dev/null; mkfifo /data/fifo; mkdir /.odd; : > '/data/with space'",
    ].join("; "),
    "rm /data/kept/hard; mv /data/sparse /data/moved; rmdir /.odd; echo file > /.odd",
  ];

  const sh = async (script: string, cwd: string): Promise<string> =>
    Buffer.from((await run({ argv: ["sh", "-ec", script], cwd, timeoutMs: 60_000 })).stdout).toString();

  /** The tree that umoci unpacks from an archive. */
  async function unpacked(archive: string, name: string): Promise<string> {
    await run({
      argv: ["skopeo", "copy", "--quiet", "--insecure-policy", `oci-archive:${archive}`, `oci:${name}:image`],
      cwd: directory,
      timeoutMs: 60_000,
    });
    await run({
      argv: ["umoci", "raw", "unpack", "--image", `${name}:image`, at(`${name}-root`)],
      cwd: directory,
      timeoutMs: 60_000,
    });
    return at(`${name}-root`);
  }

  test("unpacks to the same tree as the image's archive, with as many layers as the image", async () => {
    let image = (await appliance.command(["image", "load", at("oci-archive")])).stdout.trim();
    for (const command of CHANGES)
      image = (await execute(appliance, { image, command, shell: true, disposable: false })).image ?? "";
    const { code, stderr } = await appliance.command(["image", "save", image, "-o", at("saved.tar")]);
    expect([code, stderr]).toEqual([0, ""]);
    const manifest = JSON.parse(await sh(`skopeo inspect --raw oci-archive:${at("saved.tar")}`, directory)) as {
      layers: unknown[];
    };
    expect(manifest.layers).toHaveLength(4);
    const root = await unpacked(at("saved.tar"), "saved");

    await sh(`mkdir tree`, directory);
    const archive = Buffer.from(await (await appliance.fetch(`/inspect/${image}/archive?path=/`)).bytes());
    await writeFile(at("tree.tar"), archive);
    await sh("tar -x --numeric-owner -p -f ../tree.tar", at("tree"));
    expect(await sh(LIST, root)).toBe(await sh(LIST, at("tree")));
    expect(await sh(SUMS, root)).toBe(await sh(SUMS, at("tree")));
    expect(await sh("cat .odd data/replaced/d; ls data", root)).toBe(
      "file\nnew\nfifo\nkept\nmoved\nreplaced\nwith space\n",
    );
  }, 120_000);

  test("can be loaded again, runs, and is the same every time", async () => {
    const first = await (await appliance.fetch(`/images/${await idOf("oci-archive")}/save`)).bytes();
    const second = await (await appliance.fetch(`/images/${await idOf("oci-archive")}/save`)).bytes();
    expect(Bun.SHA256.hash(first, "hex")).toBe(Bun.SHA256.hash(second, "hex"));
    const { stdout, code } = await appliance.command(["image", "load", at("saved.tar")]);
    expect(code).toBe(0);
    const run_ = await execute(appliance, { image: stdout.trim(), command: "cat /.odd; ls /data/gone", shell: true });
    expect(run_.out).toBe("file\n");
    expect(run_.exit_code).not.toBe(0);
  });

  test("leaves no partial file when it cannot be written", async () => {
    const { code, stderr } = await appliance.command(["image", "save", "tag:oci-archive", "-o", "/nowhere/file"]);
    expect(code).toBe(1);
    expect(stderr).toBe("coppice image save: /nowhere/file cannot be written: ENOENT\n");
  });

  const idOf = async (tag: string): Promise<string> => {
    const [image] = (await (await appliance.fetch(`/images?tag=${tag}`)).json()) as { uuid: string }[];
    return image?.uuid ?? "";
  };
});
