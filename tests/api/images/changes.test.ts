import { afterAll, afterEach, beforeAll, describe, expect, test } from "bun:test";
import { connect, type Socket } from "node:net";
import { readChanges } from "../../../src/client/branches.ts";
import { Client } from "../../../src/client/client.ts";
import { ResponseError } from "../../../src/client/errors.ts";
import type { Change } from "../../../src/client/types.ts";
import { ACCOUNT_LIMITS } from "../../../src/domain/account/limits.ts";
import type { AccountId, ImageId, OperationId } from "../../../src/domain/ids.ts";
import { Api } from "../../support/api/api.ts";
import type { LayerFixture } from "../../support/api/layers.ts";
import { heldTest } from "../../support/api/program.ts";
import { turns, until } from "../../support/waiting.ts";

const FILES: readonly LayerFixture[] = [{ path: "f", type: "f", content: "f" }];
const RESYNC: Change = { type: "resync" };

let api: Api;
beforeAll(async () => {
  api = await Api.start();
});
afterAll(() => api[Symbol.asyncDispose]());

let accounts = 0;
const followers: Follower[] = [];
afterEach(async () => {
  for (const follower of followers.splice(0)) await follower.leave();
});

/** Follows changes, and stores those that have arrived. */
class Follower {
  readonly seen: Change[] = [];
  readonly #left = new AbortController();
  readonly #over: Promise<unknown>;

  constructor(token: string) {
    followers.push(this);
    const client = new Client({ url: api.url, token });
    this.#over = (async () => {
      for await (const change of readChanges(client, { signal: this.#left.signal })) this.seen.push(change);
    })().catch((error: unknown) => error);
  }

  /** Waits for the connection; no change after that is missed. */
  static async of(token: string): Promise<Follower> {
    const follower = new Follower(token);
    await until("it is connected", () => follower.seen.length > 0);
    expect(follower.seen.splice(0)).toEqual([RESYNC]);
    return follower;
  }

  /** Waits until there are this many changes, and removes them. */
  async take(count: number): Promise<Change[]> {
    await until(`${count} changes have come`, () => this.seen.length >= count);
    return this.seen.splice(0);
  }

  /** The error that ended it; undefined when the service ended it. */
  get over(): Promise<unknown> {
    return this.#over;
  }

  async leave(): Promise<void> {
    this.#left.abort(new Error("left"));
    await this.#over;
  }
}

async function someone(scopes: readonly string[] = ["*"]) {
  const account = `someone-${++accounts}` as AccountId;
  const token = await api.issue(account, scopes);
  return { account, token, follow: () => Follower.of(token) };
}

describe("images", () => {
  test("that get and lose tags are reported, also the one that loses a tag to another", async () => {
    const { account, token, follow } = await someone();
    const [first, second] = [
      await api.addImage([FILES], { account, tag: "t", at: 1 }),
      await api.addImage([FILES], { account, at: 2 }),
    ];
    const follower = await follow();
    await api.call("PATCH", `/v1/images/${second}/tag`, { token, json: { tag: "t" } });
    const row = { type: "image", size_bytes: expect.any(Number), operation: expect.any(String), kind: "image_import" };
    expect(await follower.take(2)).toEqual([
      { ...row, uuid: first, created_at: "1970-01-01T00:00:00.001Z" },
      { ...row, uuid: second, created_at: "1970-01-01T00:00:00.002Z", tag: "t" },
    ] as never);
    await api.call("DELETE", `/v1/images/${second}/tag`, { token });
    expect(await follower.take(1)).toEqual([{ ...row, uuid: second, created_at: expect.any(String) }] as never);
  });

  test("that are deleted are reported, and no later change has a row of them", async () => {
    const { account, token, follow } = await someone();
    const image = await api.addImage([FILES], { account });
    const follower = await follow();
    await Promise.all([
      api.call("PATCH", `/v1/images/${image}/tag`, { token, json: { tag: "t" } }),
      api.call("DELETE", `/v1/images/${image}`, { token }),
    ]);
    const deleted: Change = { type: "deleted", uuid: image };
    await until("the deletion is reported", () => follower.seen.some((change) => Bun.deepEquals(change, deleted)));
    // Changes of another image arrive after everything about this one.
    const other = await api.addImage([FILES], { account });
    await api.call("DELETE", `/v1/images/${other}`, { token });
    const of = (uuid: string) => follower.seen.filter((change) => "uuid" in change && change.uuid === uuid);
    await until("the next one is reported", () => of(other).length > 0);
    expect(of(image).at(-1)).toEqual(deleted);
  });

  test("of another account are not reported", async () => {
    const [one, other] = [await someone(), await someone()];
    const [own, foreign] = [await api.addImage([FILES], one), await api.addImage([FILES], other)];
    const follower = await one.follow();
    await api.call("DELETE", `/v1/images/${foreign}`, { token: other.token });
    await api.call("DELETE", `/v1/images/${own}`, { token: one.token });
    expect(await follower.take(1)).toEqual([{ type: "deleted", uuid: own }]);
  });
});

describe("operations", () => {
  heldTest("are reported when they are accepted, start and end, with the image that they made", async () => {
    const { account, token, follow } = await someone();
    const image = await api.addImage([FILES], { account });
    const follower = await follow();
    const json = { image, command: "make" };
    const id = (await api.call("POST", "/v1/instances", { token, json })).json.uuid as OperationId;
    const row = { type: "operation", uuid: id, kind: "instance", image, about: "make", created_at: expect.any(String) };
    expect(await follower.take(1)).toEqual([{ ...row, status: "PENDING" }] as never);
    api.operations.start(id);
    const started = { ...row, started_at: expect.any(String) };
    expect(await follower.take(1)).toEqual([{ ...started, status: "EXECUTING" }] as never);
    const result = await api.addRun(image, FILES, { account, origin: { command: ["make"], exitCode: 0 } });
    await follower.take(1);
    api.operations.succeed(id, { exit_code: 0, image: result });
    const ended = { ...started, status: "SUCCESS", finished_at: expect.any(String), result };
    expect(await follower.take(2)).toEqual(
      [{ type: "image", uuid: result, parent: image, about: "make", exit_code: 0, kind: "instance" }, ended].map(
        (change) => expect.objectContaining(change),
      ) as never,
    );
  });

  heldTest("are not for a token that may not read them", async () => {
    const { account, follow } = await someone(["images:read", "images:delete"]);
    const image = await api.addImage([FILES], { account });
    const follower = await follow();
    api.operations.insert(account, "image_import");
    api.parts.changes.report(account, { type: "deleted", id: image });
    expect(await follower.take(1)).toEqual([{ type: "deleted", uuid: image }]);
  });
});

describe("a stream", () => {
  test("of an account beyond the limit is refused, until another has left", async () => {
    const { token, follow } = await someone();
    const first = await follow();
    for (let n = 1; n < ACCOUNT_LIMITS.changeStreams.max; n++) await follow();
    const refused = await new Follower(token).over;
    expect([refused instanceof ResponseError, (refused as ResponseError).code]).toEqual([true, "too_many_requests"]);
    const other = await someone();
    await other.follow();
    await first.leave();
    await until("there is room", async () => {
      const next = new Follower(token);
      await until(
        "it is accepted or refused",
        async () => next.seen.length > 0 || (await Promise.race([next.over, turns(3)])) !== undefined,
      );
      return next.seen.length > 0;
    });
  });

  heldTest("reports more changes than it stores by a resync", async () => {
    const { account, follow } = await someone();
    const follower = await follow();
    const images = Array.from({ length: 5000 }, () => Bun.randomUUIDv7() as ImageId);
    for (const id of images) api.parts.changes.report(account, { type: "deleted", id });
    await until("the last one has come", () =>
      follower.seen.some((change) => "uuid" in change && change.uuid === images.at(-1)),
    );
    expect(follower.seen.filter(({ type }) => type === "resync").length).toBeGreaterThan(0);
    expect(follower.seen.length).toBeLessThan(2000);
  });

  heldTest("that is not read costs a bounded amount, and starts again with a resync", async () => {
    const { account, token } = await someone();
    const socket = connect(Number(new URL(api.url).port), "127.0.0.1");
    socket.write(`GET /v1/changes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${token}\r\n\r\n`);
    let text = await textUntil(socket, "", ({ length }) => length > 0);
    socket.pause();
    const count = 60_000;
    const images = Array.from({ length: count }, () => Bun.randomUUIDv7() as ImageId);
    for (let at = 0; at < count; at += 500) {
      for (const id of images.slice(at, at + 500)) api.parts.changes.report(account, { type: "deleted", id });
      await turns(1);
    }
    socket.resume();
    text = await textUntil(socket, text, (all) => all.includes(images.at(-1) ?? ""));
    expect(text.split("event: resync").length).toBeGreaterThan(2);
    expect(text.split("event: deleted").length).toBeLessThan(count / 2);
    socket.destroy();
  });

  heldTest("ends when the service stops", async () => {
    const stopped = await Api.start();
    const client = new Client({ url: stopped.url, token: stopped.token });
    const seen: Change[] = [];
    for await (const change of readChanges(client)) {
      seen.push(change);
      stopped.parts.changes[Symbol.dispose]();
    }
    for await (const change of readChanges(client)) seen.push(change);
    expect(seen).toEqual([RESYNC, RESYNC]);
    await stopped[Symbol.asyncDispose]();
  });
});

/** Reads a connection until `isWanted` accepts the whole text. */
async function textUntil(socket: Socket, before: string, isWanted: (text: string) => boolean): Promise<string> {
  let text = before;
  const { promise, resolve } = Promise.withResolvers<void>();
  const take = (chunk: Buffer) => {
    text += chunk.toString("latin1");
    if (isWanted(text)) resolve();
  };
  socket.on("data", take);
  await promise;
  socket.off("data", take);
  return text;
}
