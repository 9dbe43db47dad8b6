import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { run } from "../../src/system/exec.ts";
import { Appliance } from "../support/appliance.ts";
import { pushBusybox } from "../support/images.ts";
import { Registry } from "../support/registry.ts";
import { execute, upload } from "../support/runs.ts";

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
  // No registry is known to the appliance.
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

  test("comes from standard input, too, and the same one takes no room again", async () => {
    const before = await readdir(join(appliance.dataDir, "layers"));
    const { code, stdout } = await appliance.command(["image", "load", "-"], await readFile(at("oci-archive")));
    expect(code).toBe(0);
    expect(stdout.trim()).toMatch(/^[0-9a-f-]{36}$/);
    expect(await readdir(join(appliance.dataDir, "layers"))).toEqual(before);
  });

  test("says in its lineage what it came from", async () => {
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
    expect((await appliance.leftovers()).filter((name) => name.startsWith("tmp/"))).toEqual([]);
  });

  test("of another account is not there", async () => {
    const file = await upload(appliance, await Bun.file(at("oci-archive")).bytes());
    const token = await appliance.createToken("stranger");
    const headers = { "content-type": "application/json" };
    const init = { method: "POST", headers, body: JSON.stringify({ file }) };
    expect((await appliance.fetch("/images/load", { ...init, token })).status).toBe(404);
    expect((await appliance.fetch("/images/load", init)).status).toBe(202);
  });
});
