import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { Appliance } from "../../support/appliance/appliance.ts";
import { busyboxImage, pushImage } from "../../support/images/images.ts";
import { Registry } from "../../support/images/registry.ts";
import { until } from "../../support/waiting.ts";

setDefaultTimeout(240_000);

/* Variables and the working directory of images, and imports that find an image again, over the interface that uses them. */

const owned = new AsyncDisposableStack();
let registry: Registry;
let appliance: Appliance;
let reference: string;
let base: string;

const ENV = ["PATH=/opt/tools:/bin", "LANG=C.UTF-8", "SPACED=a b = c", "BROKEN", "EMPTY="];

beforeAll(async () => {
  registry = owned.use(await Registry.start());
  reference = await pushWith("defaults:1", { Env: ENV, WorkingDir: "/kept", User: "12", Cmd: ["x"] });
  appliance = owned.use(await Appliance.start({ registries: [registry.host] }));
  base = await imported(reference);
}, 240_000);
afterAll(async () => await owned.disposeAsync(), 60_000);

/** Pushes busybox with this part of the config, and a layer that makes the image distinct. */
async function pushWith(name: string, config: object, marker = name): Promise<string> {
  const { layers } = await busyboxImage();
  const own = [{ path: "marker", content: marker }];
  return await pushImage(registry, name, {
    layers: [...layers, own],
    config: { os: "linux", architecture: "amd64", config },
  });
}

type Json = Record<string, never>;
async function call(method: string, path: string, body?: object): Promise<Json> {
  const headers = { authorization: `Bearer ${appliance.token}`, "content-type": "application/json" };
  const init = body === undefined ? { method, headers } : { method, headers, body: JSON.stringify(body) };
  const response = await fetch(`${appliance.url}/contree/v1${path}`, init);
  const text = await response.text();
  if (!response.ok) throw new Error(`${method} ${path} answered ${response.status}: ${text}`);
  return text === "" ? ({} as Json) : (JSON.parse(text) as Json);
}

async function imported(url: string, more: object = {}): Promise<string> {
  const { uuid } = await call("POST", "/images/import", { registry: { url }, ...more });
  const { status, error, result } = await appliance.finished(uuid as unknown as string);
  if (status !== "SUCCESS") throw new Error(JSON.stringify(error));
  return String(result?.["image"]);
}

interface Ran {
  readonly image: string;
  readonly out: string;
}

/** Runs a command to its end. It keeps its image unless the request says otherwise. */
async function ran(image: string, command: string, more: object = {}): Promise<Ran> {
  const { uuid } = await call("POST", "/instances", { image, command, shell: true, ...more });
  const { status, error, result } = await appliance.finished(uuid as unknown as string);
  if (status !== "SUCCESS") throw new Error(JSON.stringify(error));
  const { content } = (result as unknown as { stdout: { content: string } }).stdout;
  return { image: String(result?.["image"]), out: content };
}

/** The environment of a command, without what every command has. */
async function environment(image: string, more: object = {}): Promise<Record<string, string>> {
  const { out } = await ran(image, "busybox env", { disposable: true, ...more });
  const entries = out
    .trim()
    .split("\n")
    .map((line) => [line.slice(0, line.indexOf("=")), line.slice(line.indexOf("=") + 1)]);
  const { HOSTNAME: _host, PWD: _pwd, SHLVL: _level, OLDPWD: _old, ...rest } = Object.fromEntries(entries);
  return rest;
}

describe("a re-import", () => {
  test("of an unchanged digest is the same image, with each tag; under /v1 it is another one", async () => {
    expect(await imported(reference, { tag: "first" })).toBe(base);
    expect(await imported(reference, { tag: "second" })).toBe(base);
    for (const tag of ["first", "second"]) {
      const response = await fetch(`${appliance.url}/contree/v1/inspect/?tag=${tag}`, {
        headers: { authorization: `Bearer ${appliance.token}` },
      });
      expect([tag, ((await response.json()) as { uuid: string }).uuid]).toEqual([tag, base]);
    }
    const other = await appliance.importImage(reference);
    expect(other).not.toBe(base);
    expect(await imported(reference)).toBe(base);
    expect((await appliance.fetch(`/images/${other}`, { method: "DELETE" })).status).toBe(204);
  });

  test("of another digest with the same name is another image", async () => {
    const moved = await pushWith("moving:1", { Env: ["A=1"] }, "one");
    const one = await imported(moved);
    await pushWith("moving:1", { Env: ["A=1"] }, "two");
    const two = await imported(moved);
    expect(two).not.toBe(one);
    // Only the config differs.
    await pushWith("moving:1", { Env: ["A=2"] }, "two");
    const three = await imported(moved);
    expect(new Set([one, two, three]).size).toBe(3);
    expect(await environment(three)).toMatchObject({ A: "2" });
    expect(await environment(two)).toMatchObject({ A: "1" });
  });

  test("makes an image with its variables when the one before was deleted, without pulling its layers", async () => {
    const url = await pushWith("deleted:1", { Env: ["KEPT=yes"] });
    const image = await imported(url);
    // A child keeps the layer.
    const { image: child } = await ran(image, "touch /child");
    expect((await appliance.fetch(`/images/${image}`, { method: "DELETE" })).status).toBe(204);
    const layers = (await readdir(join(appliance.dataDir, "layers"))).sort();
    const again = await imported(url);
    expect([image, child]).not.toContain(again);
    expect((await readdir(join(appliance.dataDir, "layers"))).sort()).toEqual(layers);
    expect(await environment(again)).toMatchObject({ KEPT: "yes" });
  });
});

describe("a run inherits", () => {
  test("the variables of the image with a shell, and PATH without one", async () => {
    expect(await environment(base)).toEqual({
      ...{ PATH: "/opt/tools:/bin", LANG: "C.UTF-8", SPACED: "a b = c", EMPTY: "", HOME: "/root" },
    });
    expect(await environment(base, { env: { LANG: "de", NEW: "1", SPACED: null } })).toEqual({
      ...{ PATH: "/opt/tools:/bin", LANG: "de", NEW: "1", EMPTY: "", HOME: "/root" },
    });
    expect(await environment(base, { command: "busybox", args: ["env"], shell: false, env: { NEW: "1" } })).toEqual({
      ...{ PATH: "/opt/tools:/bin", NEW: "1", HOME: "/root" },
    });
  });

  test("no directory of the config, and starts at the root", async () => {
    expect((await ran(base, "pwd", { disposable: true })).out).toBe("/\n");
    expect((await ran(base, "pwd", { disposable: true, cwd: "/made/here" })).out).toBe("/made/here\n");
  });

  test("nothing under /v1", async () => {
    const { result } = await appliance.finished(
      await appliance.spawn({
        image: base,
        command: "pwd; env | sort",
        shell: true,
        disposable: true,
        hostname: "box",
      }),
    );
    const { content } = (result as unknown as { stdout: { content: string } }).stdout;
    expect(content).not.toContain("LANG");
    expect(content).toStartWith("/root\n");
  });

  test("the shell that SHELL names", async () => {
    const shell = "ln -s busybox /bin/other; printf '#!/bin/sh\\necho own \"$@\"' > /bin/own; chmod +x /bin/own";
    const { image } = await ran(base, shell, { env: { SHELL: "/bin/sh" } });
    expect((await ran(image, "hi", { env: { SHELL: "/bin/own" }, disposable: true })).out).toBe("own -c hi\n");
    const kept = await ran(image, "true", { env: { SHELL: "/bin/sh" }, preserve_env: true });
    expect(kept.image).not.toBe(image);
  });
});

describe("a run that keeps", () => {
  test("variables makes an image that has them, and so have those made from it", async () => {
    const kept = await ran(base, "true", {
      env: { NEW: "1", LANG: "", SPACED: null, EMPTY: "full" },
      preserve_env: true,
    });
    expect(kept.image).not.toBe(base);
    const variables = { PATH: "/opt/tools:/bin", EMPTY: "full", NEW: "1", HOME: "/root" };
    expect(await environment(kept.image)).toEqual(variables);
    const child = await ran(kept.image, "echo file > /file", { env: { ONLY_HERE: "1" } });
    expect(child.image).not.toBe(kept.image);
    expect(await environment(child.image)).toEqual(variables);
    // The same again changes nothing.
    expect((await ran(kept.image, "true", { env: { NEW: "1" }, preserve_env: true })).image).toBe(kept.image);
    expect((await ran(kept.image, "true")).image).toBe(kept.image);
  });

  test("its directory makes an image whose commands start there", async () => {
    const kept = await ran(base, "echo here > file", { cwd: "/work/dir", preserve_cwd: true });
    expect((await ran(kept.image, "pwd; cat file", { disposable: true })).out).toBe("/work/dir\nhere\n");
    const child = await ran(kept.image, "echo more > other");
    expect((await ran(child.image, "ls", { disposable: true })).out).toBe("file\nother\n");
    // A directory that already exists changes no file.
    const root = await ran(kept.image, "true", { cwd: "/", preserve_cwd: true });
    expect((await ran(root.image, "pwd", { disposable: true })).out).toBe("/\n");
  });

  test("variables alone makes an image that shares the layer of its parent", async () => {
    const layers = async () =>
      (await readdir(join(appliance.dataDir, "layers"))).filter((name) => name.endsWith(".disk"));
    const before = (await layers()).sort();
    const kept = await ran(base, "exit 3", { env: { A: "1" }, preserve_env: true });
    const more = await ran(kept.image, "true", { env: { B: "2" }, preserve_env: true });
    expect((await layers()).sort()).toEqual(before);
    const diff = (await (await appliance.fetch(`/images/${more.image}/diff`)).json()) as unknown;
    expect(diff).toMatchObject({ items: [], against: kept.image });
    for (const id of [kept.image, more.image]) {
      expect((await appliance.fetch(`/images/${id}`, { method: "DELETE" })).status).toBe(204);
    }
    expect(await environment(base)).toHaveProperty("LANG");
    expect((await layers()).sort()).toEqual(before);
  });

  test("variables keeps them over a restart, in a checkpoint, and in an archive that is imported again", async () => {
    const { image } = await ran(base, "true", {
      env: { SAVED: "y es" },
      preserve_env: true,
      cwd: "/srv",
      preserve_cwd: true,
    });
    const sleeping = await appliance.spawn({ image, command: "sleep 1000", shell: true });
    while (
      ((await (await appliance.fetch(`/operations/${sleeping}`)).json()) as { status: string }).status === "PENDING"
    );
    const checkpoint = await checkpointOf(sleeping);
    await appliance.fetch(`/operations/${sleeping}`, { method: "DELETE" });
    expect(await environment(checkpoint)).toMatchObject({ SAVED: "y es" });
    const saved = await (await appliance.fetch(`/images/${image}/save`)).bytes();
    await appliance.down();
    await appliance.up();
    expect(await environment(image)).toMatchObject({ SAVED: "y es", LANG: "C.UTF-8" });
    const file = (await (await appliance.fetch("/files", { method: "POST", body: saved })).json()) as { uuid: string };
    const loaded = (await (await appliance.post("/images/load", { file: file.uuid })).json()) as { uuid: string };
    const { result, error } = await appliance.finished(loaded.uuid);
    expect(error).toBeUndefined();
    const back = String(result?.["image"]);
    expect(await environment(back)).toMatchObject({ SAVED: "y es", LANG: "C.UTF-8" });
    expect((await ran(back, "pwd", { disposable: true })).out).toBe("/srv\n");
  });
});

test("an additional process inherits from the image, not from the command", async () => {
  const { image } = await ran(base, "true", {
    env: { KEPT: "1" },
    preserve_env: true,
    cwd: "/srv",
    preserve_cwd: true,
  });
  const request = { image, command: "sleep 1000", shell: true, env: { OWN: "x" }, cwd: "/tmp", disposable: true };
  const { uuid } = await call("POST", "/instances", request);
  await running(uuid as unknown as string);
  const process = async (more: object) => {
    const path = `/operations/${uuid}/subprocesses`;
    const { spid } = await call("POST", path, { command: "pwd; echo $KEPT $OWN $LANG", shell: true, ...more });
    let out = "";
    await until("the process has ended", async () => {
      const process = (await call("GET", `${path}/${spid}`)) as unknown as {
        state: { exit_code: number };
        stdout: { value: string };
      };
      out = process.stdout.value;
      return process.state.exit_code === 0;
    });
    return out;
  };
  expect(await process({})).toBe("/srv\n1 C.UTF-8\n");
  expect(await process({ env: { LANG: "de" }, cwd: "/" })).toBe("/\n1 de\n");
  await call("DELETE", `/operations/${uuid}`);
});

/** Waits until the command of an instance runs. */
async function running(id: string): Promise<void> {
  await until("the command runs", async () => {
    const events = (await (
      await appliance.fetch(`/operations/${id}/events`, { headers: { accept: "application/json" } })
    ).json()) as { type: string }[];
    return events.some(({ type }) => type === "spawn");
  });
}

async function checkpointOf(instance: string): Promise<string> {
  await running(instance);
  const response = await appliance.post(`/instances/${instance}/checkpoint`, {});
  expect(response.status).toBe(202);
  const { uuid } = (await response.json()) as { uuid: string };
  return String((await appliance.finished(uuid)).result?.["image"]);
}

test("requests of instances and imports stay readable, without secrets", async () => {
  const env = { TOKEN: "canary-secret-value" };
  const { uuid } = await call("POST", "/instances", {
    ...{ image: base, command: "true", shell: true, env, disposable: true },
    stdin: { value: "canary-stdin", encoding: "ascii" },
  });
  await appliance.finished(uuid as unknown as string);
  const { metadata } = await call("GET", `/operations/${uuid}`);
  expect(metadata).toMatchObject({ command: "true", shell: true, image: base, disposable: true } as never);
  expect(JSON.stringify(metadata)).not.toContain("canary");
});
