import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { createHash } from "node:crypto";
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { type Appliance, text } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { running } from "../../support/runs.ts";
import { until } from "../../support/waiting.ts";

const owned = new AsyncDisposableStack();
let appliance: Appliance;
let reference: string;
let base: string;

beforeAll(async () => {
  // Merged layers are made in the background, and these tests count layers.
  const setup = await BusyboxAppliance.start({ flags: ["--layers-merged-share", "0"], tag: "busybox" });
  ({ appliance, reference, image: base } = owned.use(setup));
}, 120_000);

afterAll(async () => {
  await owned.disposeAsync();
}, 60_000);

const result = (operation: { result?: unknown }) => operation.result as unknown as Record<string, unknown>;
const imageOf = (operation: { result?: unknown }) => String(result(operation)["image"]);
const list = async (image: string, path: string) => {
  const response = await appliance.fetch(`/inspect/${image}/list?path=${encodeURIComponent(path)}`);
  expect(response.status).toBe(200);
  return ((await response.json()) as { items: { name: string }[] }).items.map((item) => item.name).sort();
};
const download = async (image: string, path: string) =>
  await appliance.fetch(`/inspect/${image}/download?path=${encodeURIComponent(path)}`);

describe("an image", () => {
  test("is imported, tagged, and read without a machine", async () => {
    const images = (await (await appliance.fetch("/images?tag=busy")).json()) as { uuid: string; tag: string }[];
    expect(images).toHaveLength(1);
    expect(images[0]).toMatchObject({ uuid: base, tag: "busybox" });
    expect(await list(base, "/")).toEqual(expect.arrayContaining(["bin", "etc", "proc", "root", "tmp"]));
    const busybox = await (await download(base, "/bin/busybox")).bytes();
    const original = await readFile("/bin/busybox");
    expect(createHash("sha256").update(busybox).digest("hex")).toBe(
      createHash("sha256").update(original).digest("hex"),
    );
  });

  test("imported again reuses its layer and becomes another image", async () => {
    const before = (await readdir(join(appliance.dataDir, "layers"))).length;
    const again = await appliance.importImage(reference);
    expect(again).not.toBe(base);
    expect((await readdir(join(appliance.dataDir, "layers"))).length).toBe(before);
    expect(await list(again, "/bin")).toContain("busybox");
  });
});

describe("a run", () => {
  test("reports what its command did and captures what it changed", async () => {
    const response = await appliance.post("/instances", {
      image: "tag:busybox",
      command: 'echo out; echo err >&2; cat > /root/in; echo "$GREETING" > /root/greeting; pwd; hostname; exit 7',
      shell: true,
      env: { GREETING: "hello" },
      stdin: "from stdin",
      hostname: "box",
    });
    expect(response.status).toBe(201);
    const { uuid } = (await response.json()) as { uuid: string };
    expect(response.headers.get("location")).toBe(`/v1/operations/${uuid}`);
    const operation = await appliance.finished(uuid);
    expect(operation.status).toBe("SUCCESS");
    expect(result(operation)).toMatchObject({ exit_code: 7, timed_out: false, isolation: "vm-emulated" });
    expect(text(result(operation)["stdout"])).toBe("out\n/root\nbox\n");
    expect(text(result(operation)["stderr"])).toBe("err\n");
    expect(result(operation)["cpu_time_ms"]).toBeGreaterThan(0);
    expect(result(operation)["memory_bytes"]).toBeGreaterThan(0);
    const image = imageOf(operation);
    expect(image).not.toBe(base);
    expect(await (await download(image, "/root/in")).text()).toBe("from stdin");
    expect(await (await download(image, "/root/greeting")).text()).toBe("hello\n");
    expect((await download(base, "/root/greeting")).status).toBe(404);
  });

  test("accepts uploaded files with their modes", async () => {
    const body = "#!/bin/sh\necho ran with $#\n";
    const upload = await appliance.fetch("/files", { method: "POST", body });
    expect(upload.status).toBe(201);
    const { uuid } = (await upload.json()) as { uuid: string };
    const operation = await appliance.finished(
      await appliance.spawn({
        image: base,
        command: "/opt/tools/go",
        args: ["a", "b c"],
        files: { "/opt/tools/go": { uuid, mode: "0755" } },
      }),
    );
    expect(text(result(operation)["stdout"])).toBe("ran with 2\n");
  });

  test("without changes returns the image it ran on; a disposable one returns none", async () => {
    const layers = async () => (await readdir(join(appliance.dataDir, "layers"))).length;
    const before = await layers();
    expect(imageOf(await appliance.run(base, "true"))).toBe(base);
    const disposable = await appliance.run(base, "echo x > /root/x", { disposable: true });
    expect(disposable.status).toBe("SUCCESS");
    expect(result(disposable)["image"]).toBeUndefined();
    expect(await layers()).toBe(before);
  });

  test("sets its tag at its end, whatever its exit code; a run that fails or is disposable sets none", async () => {
    const tagged = async (name: string) =>
      ((await (await appliance.fetch(`/images?tag=${name}`)).json()) as { uuid: string }[]).map(({ uuid }) => uuid);
    const first = await appliance.run(base, "echo 1 > /root/step", { tag: "step" });
    expect(result(first)["tag"]).toBe("step");
    expect(await tagged("step")).toEqual([imageOf(first)]);
    const second = await appliance.run("tag:step", "echo 2 > /root/step; exit 3", { tag: "step" });
    expect(await tagged("step")).toEqual([imageOf(second)]);
    expect(await (await download(imageOf(second), "/root/step")).text()).toBe("2\n");
    // It changed no file: the image on which it ran stays tagged.
    const same = await appliance.run("tag:step", "true", { tag: "same" });
    expect(await tagged("same")).toEqual([imageOf(same)]);
    expect(await tagged("step")).toEqual([imageOf(second)]);

    const slow = await appliance.spawn({
      image: base,
      command: "echo 3 > /root/step; sleep 300",
      shell: true,
      tag: "step",
    });
    await running(appliance, slow);
    await appliance.fetch(`/operations/${slow}`, { method: "DELETE" });
    expect((await appliance.finished(slow)).status).toBe("CANCELLED");
    const disposable = { image: base, command: "true", tag: "step", disposable: true };
    const refused = await appliance.post("/instances", disposable);
    expect([refused.status, await refused.json()]).toMatchObject([
      400,
      { error: "validation_error", details: { field: "tag" } },
    ]);
    expect(await tagged("step")).toEqual([imageOf(second)]);
  }, 120_000);

  test("branches: of two runs on one image each has only its own change, and the parent has neither", async () => {
    const parent = imageOf(await appliance.run(base, "echo 1 > /root/shared"));
    const [left, right] = await Promise.all([
      appliance.run(parent, "echo left > /root/left; rm /root/shared"),
      appliance.run(parent, "echo right > /root/right; echo 2 >> /root/shared"),
    ]);
    expect(await list(imageOf(left), "/root")).toEqual(["left"]);
    expect(await list(imageOf(right), "/root")).toEqual(["right", "shared"]);
    expect(await list(parent, "/root")).toEqual(["shared"]);
    expect(await (await download(imageOf(right), "/root/shared")).text()).toBe("1\n2\n");
    const seen = await appliance.run(imageOf(left), "ls /root", { disposable: true });
    expect(text(result(seen)["stdout"])).toBe("left\n");
  });

  test("rolls back by naming an older image", async () => {
    const changed = imageOf(await appliance.run("tag:busybox", "echo broken > /etc/motd"));
    const tag = async (image: string) => {
      const headers = { "content-type": "application/json" };
      const body = JSON.stringify({ tag: "work" });
      expect((await appliance.fetch(`/images/${image}/tag`, { method: "PATCH", headers, body })).status).toBe(200);
    };
    await tag(changed);
    expect(text(result(await appliance.run("tag:work", "cat /etc/motd"))["stdout"])).toBe("broken\n");
    await tag(base);
    expect(result(await appliance.run("tag:work", "cat /etc/motd"))["exit_code"]).toBe(1);
  });

  test("works at the end of a chain of 20 runs", async () => {
    let image = base;
    for (let step = 0; step < 20; step++) {
      image = imageOf(await appliance.run(image, `echo ${step} >> /root/log; echo ${step} > /root/step-${step}`));
    }
    const last = await appliance.run(image, "cat /root/log | wc -l; ls /root | wc -l", { disposable: true });
    expect(text(result(last)["stdout"]).replaceAll(" ", "")).toBe("20\n21\n");
    expect(await list(image, "/root")).toHaveLength(21);
  }, 120_000);

  test("of 50 in a row leaves no process, descriptor, disk or cgroup behind", async () => {
    await appliance.run(base, "true", { disposable: true });
    const descriptors = async () => (await readdir(`/proc/${appliance.pid}/fd`)).length;
    const before = { layers: (await readdir(join(appliance.dataDir, "layers"))).length, fds: await descriptors() };
    for (let index = 0; index < 50; index++) {
      const operation = await appliance.run(base, `echo ${index} > /root/x`, { disposable: true });
      expect(operation.status).toBe("SUCCESS");
    }
    // The pool refills in the background; at most one waiting clone and one on its way remain.
    await until("only the pool is left", async () => (await appliance.leftovers()).length <= 2);
    await until("only its machines are left", async () => (await appliance.machinePids()).length <= 4);
    expect((await readdir(join(appliance.dataDir, "layers"))).length).toBe(before.layers);
    await until("no descriptor is left", async () => Math.abs((await descriptors()) - before.fds) <= 12);
  }, 180_000);
});
