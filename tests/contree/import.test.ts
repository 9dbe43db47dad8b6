import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { CONTREE, Contree, contreeError } from "../support/contree/contree.ts";
import { ran } from "../support/contree/runs.ts";
import { busyboxImage, pushBusybox, pushImage } from "../support/images/images.ts";
import { Registry } from "../support/images/registry.ts";

const CREDENTIALS = { username: "user", password: "pass-of-the-registry" };

let contree: Contree;
let host = "";
/** asks for credentials */
let guarded: Registry;

beforeAll(async () => {
  guarded = await Registry.start({ credentials: CREDENTIALS });
  contree = await Contree.start({ registries: [guarded.host] });
  host = contree.registry.host;
});
afterAll(async () => {
  await contree[Symbol.asyncDispose]();
  await guarded[Symbol.asyncDispose]();
});

const submit = (body: unknown) => contree.call("POST", "/images/import", { json: body });
/** Imports an image, and returns it. */
const imported = async (url: string, more: Record<string, unknown> = {}): Promise<string> => {
  const answer = await submit({ registry: { url }, ...more });
  expect(answer.status).toBe(201);
  const { status, result } = await contree.appliance.finished(answer.json.uuid);
  expect(status).toBe("SUCCESS");
  return (result as unknown as { image: string }).image;
};
const push = (name: string, content: string) =>
  pushImage(contree.registry, name, { layers: [[{ path: "content", content }]] });
const tagsOf = async (image: string): Promise<string[]> => {
  const { json } = await contree.call("GET", `/images?uuid=${image}&tagged`);
  return json.images.map(({ tag }: { tag: string }) => tag).sort();
};
const contentOf = async (image: string): Promise<string> =>
  (await contree.call("GET", `/inspect/${image}/download?path=/content`)).text;

describe("POST /images/import", () => {
  test("answers 201 with the operation, and an address of it that works", async () => {
    const reference = await push("plain:1", "plain");
    const answer = await submit({ registry: { url: `docker://${reference}` } });
    expect(answer.status).toBe(201);
    expect(answer.json).toEqual({ uuid: expect.any(String) });
    const location = new URL(answer.headers.get("location") ?? "", `${contree.appliance.url}${CONTREE}/images/import`);
    expect(location.pathname).toBe(`${CONTREE}/operations/${answer.json.uuid}`);
    await contree.appliance.finished(answer.json.uuid);
  });

  test("accepts an address with and without the scheme and the tag", async () => {
    await push("named:latest", "named");
    const images = [];
    for (const url of [`docker://${host}/named:latest`, `${host}/named`, `docker://${host}/named`]) {
      images.push(await imported(url));
    }
    expect(await contentOf(images[0] ?? "")).toBe("named");
    // The digest is the same every time.
    expect(new Set(images).size).toBe(1);
  });

  test("an unchanged digest returns the same image, and its tags stay", async () => {
    const reference = await push("again:1", "first");
    const first = await imported(reference, { tag: "again:1" });
    expect(await imported(reference, { tag: "again:latest" })).toBe(first);
    expect(await tagsOf(first)).toEqual(["again:1", "again:latest"]);
    expect(await imported(reference, { tag: null })).toBe(first);
    await push("again:1", "second");
    const second = await imported(reference, { tag: "again:latest" });
    expect(second).not.toBe(first);
    expect([await contentOf(first), await contentOf(second)]).toEqual(["first", "second"]);
    expect([await tagsOf(first), await tagsOf(second)]).toEqual([["again:1"], ["again:latest"]]);
  });

  test("the specified interface makes an image every time", async () => {
    const reference = await push("specified:1", "specified");
    const first = await contree.appliance.importImage(reference);
    expect(await contree.appliance.importImage(reference)).not.toBe(first);
  });

  test("another account does not get an image of this one", async () => {
    const reference = await push("private:1", "private");
    const first = await imported(reference);
    const token = await contree.appliance.createToken("another-account");
    const answer = await contree.call("POST", "/images/import", { json: { registry: { url: reference } }, token });
    const { result } = await contree.appliance.finished(answer.json.uuid, undefined, token);
    expect((result as unknown as { image: string }).image).not.toBe(first);
  });

  test("ignores null and empty credentials, null fields and unknown ones", async () => {
    const reference = await push("loose:1", "loose");
    for (const credentials of [null, {}, { username: "", password: "" }, { username: null, password: null }]) {
      const body = { registry: { url: reference, credentials, extra: 1 }, tag: null, timeout: null, result: null };
      const answer = await submit(body);
      expect(answer.status).toBe(201);
      expect((await contree.appliance.finished(answer.json.uuid)).status).toBe("SUCCESS");
    }
  });

  test("credentials open a registry that asks for them, and are shown nowhere", async () => {
    const url = `docker://${await pushBusybox(guarded, "guarded:1")}`;
    for (const [credentials, ended] of [
      [undefined, "FAILED"],
      [{ username: "", password: "" }, "FAILED"],
      [{ ...CREDENTIALS, password: "wrong" }, "FAILED"],
      [CREDENTIALS, "SUCCESS"],
    ] as const) {
      const answer = await submit({ registry: { url, credentials } });
      expect((await contree.appliance.finished(answer.json.uuid)).status).toBe(ended);
      const operation = await contree.call("GET", `/operations/${answer.json.uuid}`);
      expect(operation.text).not.toContain(CREDENTIALS.password);
    }
    expect(contree.appliance.log).not.toContain(CREDENTIALS.password);
  });

  test("the variables are kept for shells; entry point, command, user and directory are not", async () => {
    const config = {
      ...{ Env: ["PATH=/bin", "COLOUR=green", "EMPTY=", "malformed"], Entrypoint: ["/bin/false"], Cmd: ["x"] },
      ...{ User: "1:1", WorkingDir: "/etc", Labels: { a: "b" } },
    };
    const platform = { architecture: "amd64", os: "linux" };
    const spec = { ...(await busyboxImage()), config: { ...platform, config } };
    const image = await imported(await pushImage(contree.registry, "variables:1", spec));
    const request = { image, command: 'echo "$COLOUR,$EMPTY,$PATH"; id -u; pwd', shell: true };
    expect((await ran(contree, request)).out).toBe("green,,/bin\n0\n/\n");
    expect((await ran(contree, { image, command: "env" })).out).not.toContain("COLOUR");
  });

  test("a longer time-out than the longest one is not an error", async () => {
    const reference = await push("patient:1", "patient");
    await imported(reference, { timeout: 1_000_000 });
  });

  test.each([
    [{}, "registry"],
    [{ registry: "registry.example.net/a" }, "registry"],
    [{ registry: {} }, "url"],
    [{ registry: { url: "" } }, "url"],
    [{ registry: { url: 1 } }, "url"],
    [{ registry: { url: "https://registry.example.net/a" } }, "registry"],
    [{ registry: { url: "oci:///etc" } }, "registry"],
    [{ registry: { url: "docker://user:secret@registry.example.net/a" } }, "registry"],
    [{ registry: { url: "registry.example.net/a", credentials: "x" } }, "credentials"],
    [{ registry: { url: "registry.example.net/a", credentials: { username: 1 } } }, "username"],
    [{ registry: { url: "registry.example.net/a" }, tag: "" }, "tag"],
    [{ registry: { url: "registry.example.net/a" }, tag: "a//b" }, "tag"],
    [{ registry: { url: "registry.example.net/a" }, tag: "a".repeat(257) }, "tag"],
    [{ registry: { url: "registry.example.net/a" }, timeout: 0 }, "timeout"],
    [{ registry: { url: "registry.example.net/a" }, timeout: 1.5 }, "timeout"],
    [{ registry: { url: "registry.example.net/a" }, timeout: "60" }, "timeout"],
  ])("%j is 400, and the message names %s", async (body, field) => {
    const message = contreeError(await submit(body), 400, "validation_error");
    expect(message).toContain(field);
    expect(message).not.toContain("secret");
  });

  test("an image that does not exist ends FAILED", async () => {
    const answer = await submit({ registry: { url: `${host}/nothing:1` } });
    expect(answer.status).toBe(201);
    expect((await contree.appliance.finished(answer.json.uuid)).status).toBe("FAILED");
  });
});
