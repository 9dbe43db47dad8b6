import { describe, expect, test } from "bun:test";
import { readJson } from "../../../src/api/body/body.ts";
import { BodyRooms } from "../../../src/api/body/room.ts";
import { Accounts } from "../../../src/domain/account/accounts.ts";
import type { AccountLimit } from "../../../src/domain/account/limits.ts";
import type { AccountId } from "../../../src/domain/ids.ts";
import { alice, bob } from "../../support/database.ts";
import { failureOf, throwing } from "../../support/failures.ts";

const MIB = 1_048_576;
const carol = "carol" as AccountId;
const never = new AbortController().signal;

/** Memory for bodies within these bounds. */
function roomOf(change: Partial<AccountLimit> = {}) {
  const bounds = { total: 10, max: 6, spare: 0, waitingMax: 100, ...change };
  const accounts = new Accounts({ bodies: bounds });
  const take = (account: AccountId, size: number, signal: AbortSignal) =>
    accounts.wait(account, "bodies", { size, waitingSize: Math.min(size, MIB), signal });
  return { take };
}

/** Whether each request was granted, in the order of the calls, after a turn for each. */
async function grants(requests: readonly Promise<Disposable>[]): Promise<boolean[]> {
  const pending = Promise.resolve(null);
  await new Promise((resolve) => setImmediate(resolve));
  return await Promise.all(requests.map(async (take) => (await Promise.race([take, pending])) !== null));
}

describe("memory for bodies", () => {
  test("is shared by accounts, each with a limit, and granted in the order of the requests", async () => {
    const room = roomOf();
    const requests = [
      room.take(alice, 4, never),
      room.take(alice, 4, never),
      room.take(bob, 5, never),
      room.take(bob, 1, never),
      room.take(carol, 1, never),
    ];
    // The last byte is not for accounts that have much.
    expect(await grants(requests)).toEqual([true, false, true, false, true]);
    (await requests[2])?.[Symbol.dispose]();
    expect(await grants(requests)).toEqual([true, false, true, true, true]);
    const [first] = await Promise.all([requests[0]]);
    first?.[Symbol.dispose]();
    first?.[Symbol.dispose]();
    expect(await grants(requests)).toEqual([true, true, true, true, true]);
  });

  test("is left for later accounts by those that request all they can get", async () => {
    const room = roomOf({ total: 256, max: 64 });
    const accounts = ["a", "b", "c", "d", "e", "f"] as AccountId[];
    const counts: number[] = [];
    for (const account of accounts) {
      const requests = Array.from({ length: 64 }, () => room.take(account, 1, never));
      counts.push((await grants(requests)).filter((isGranted) => isGranted).length);
    }
    expect(counts).toEqual([64, 64, 64, 32, 16, 8]);
  });

  test("is not granted to small bodies before a large one that came first", async () => {
    const room = roomOf({ max: 10 });
    const requests = [room.take(alice, 4, never), room.take(bob, 9, never), room.take(alice, 1, never)];
    expect(await grants(requests)).toEqual([true, false, false]);
    (await requests[0])?.[Symbol.dispose]();
    expect(await grants(requests)).toEqual([true, true, true]);
  });

  test("is granted to a single body beyond every limit", async () => {
    const room = roomOf();
    const requests = [room.take(alice, 100, never), room.take(bob, 1, never)];
    expect(await grants(requests)).toEqual([true, false]);
  });

  test("is awaited while the client stays, for a limited time", async () => {
    const room = roomOf({ waitMsMax: 20 });
    using _held = await room.take(alice, 6, never);
    const left = new AbortController();
    const gone = room.take(alice, 6, left.signal);
    left.abort(new Error("left"));
    expect(await throwing(gone)).toThrow("left");
    expect(await failureOf(room.take(alice, 6, never))).toMatchObject({ code: "too_many_requests" });
    const free = room.take(bob, 4, never);
    expect(await grants([free])).toEqual([true]);
  });

  test("is refused at once when too much of an account waits, since the server reads the beginning of each body", async () => {
    const room = roomOf({ total: 20, waitingMax: 6 });
    const requests = [room.take(alice, 6, never), room.take(alice, 4, never), room.take(alice, 2, never)];
    const refused = { code: "too_many_requests" };
    expect(await failureOf(room.take(alice, 1, never))).toMatchObject(refused);
    expect(await grants([...requests, room.take(bob, 4, never)])).toEqual([true, false, false, true]);
    (await requests[0])?.[Symbol.dispose]();
    expect(await grants([...requests, room.take(alice, 5, never)])).toEqual([true, true, true, false]);
    const large = roomOf({ total: 64 * MIB, max: 32 * MIB, waitingMax: 2 * MIB });
    const bodies = Array.from({ length: 3 }, () => large.take(alice, 32 * MIB, never));
    expect(await failureOf(large.take(alice, 32 * MIB, never))).toMatchObject(refused);
    expect(await grants(bodies)).toEqual([true, false, false]);
  });

  test("is separate for large and small bodies: neither delays the other", async () => {
    const bounds = { total: 4 * MIB, max: 2 * MIB, spare: 0, waitingMax: 4 * MIB };
    const accounts = new Accounts({ bodies: bounds, largeBodies: bounds, uploads: bounds, inputs: bounds });
    const rooms = new BodyRooms(accounts, () => undefined);
    const sizes = [2 * MIB, MIB, MIB, MIB + 1, MIB];
    const requests = sizes.map((bytes) => rooms.take(alice, bytes, never));
    expect(await grants(requests)).toEqual([true, true, true, false, false]);
    (await requests[0])?.[Symbol.dispose]();
    expect(await grants(requests)).toEqual([true, true, true, true, false]);
    const uploads = [MIB, MIB, 0].map((bytes) => rooms.receive(alice, bytes, never));
    expect(await grants(uploads)).toEqual([true, true, false]);
    for (const upload of uploads) (await upload)[Symbol.dispose]();
    expect(await grants([100 * MIB, 1].map((bytes) => rooms.receive(alice, bytes, never)))).toEqual([true, false]);
  });

  test("is garbage-collected after much was released, and when no more bodies arrive", async () => {
    const { promise, resolve } = Promise.withResolvers<void>();
    const rooms = new BodyRooms(new Accounts(), resolve);
    (await rooms.take(alice, 40 * MIB, never))[Symbol.dispose]();
    await promise;
  });
});

describe("a JSON body", () => {
  const request = (body: ReadableStream<Uint8Array> | string, headers: Record<string, string> = {}) =>
    new Request("http://localhost/", { method: "POST", body, headers });
  const chunked = (chunks: readonly (string | null)[], onCancel: () => void = () => undefined) => {
    const queue = [...chunks];
    return new ReadableStream<Uint8Array>({
      pull(controller) {
        const chunk = queue.shift();
        // null is the end.
        if (chunk === null) return new Promise<void>(() => undefined);
        if (chunk === undefined) controller.close();
        else controller.enqueue(Buffer.from(chunk));
        return undefined;
      },
      cancel: onCancel,
    });
  };
  /** Records the requests for memory. */
  const asking = (limitBytes = 8 * MIB) => {
    const requested: number[] = [];
    return { requested, options: { limitBytes, makeRoom: async (bytes: number) => void requested.push(bytes) } };
  };

  test("that is small needs no room, with or without a length", async () => {
    const { requested, options } = asking();
    expect(await readJson(request('{"a":1}', { "content-length": "7" }), options)).toEqual({ a: 1 });
    expect(await readJson(request(chunked(['{"a"', ":", '"é"}'])), options)).toEqual({ a: "é" });
    expect(requested).toEqual([]);
  });

  test("that is large requests its length before it is read, or the limit if it has no length", async () => {
    const { requested, options } = asking();
    const text = JSON.stringify("x".repeat(3 * MIB));
    expect(await readJson(request(text, { "content-length": String(text.length) }), options)).toHaveLength(3 * MIB);
    const pieces = Array.from({ length: 4 }, (_, index) => text.slice(index * MIB, (index + 1) * MIB));
    expect(await readJson(request(chunked(pieces)), options)).toHaveLength(3 * MIB);
    expect(requested).toEqual([text.length, MIB, 8 * MIB]);
  });

  test("just beyond the small size also requests room", async () => {
    const { requested, options } = asking();
    const text = JSON.stringify("x".repeat(MIB / 32));
    await readJson(request(text, { "content-length": String(text.length) }), options);
    await readJson(request(chunked([text])), options);
    await readJson(request(chunked([text])), { ...options, limitBytes: MIB / 2 });
    expect(requested).toEqual([text.length, MIB, MIB / 2]);
  });

  test("with many values also requests room for them before it is parsed", async () => {
    const { requested, options } = asking();
    const text = JSON.stringify(Array.from({ length: 4096 }, () => 1));
    expect(await readJson(request(text, { "content-length": String(text.length) }), options)).toHaveLength(4096);
    expect(requested).toEqual([4096 * 64]);
  });

  test("with too many values is refused before its end has arrived", async () => {
    const { promise: cancelled, resolve } = Promise.withResolvers<void>();
    const { options } = asking();
    const endless = request(chunked(["[", "0,".repeat(131_073), null], resolve));
    expect(await failureOf(readJson(endless, options))).toMatchObject({ code: "validation_error" });
    await cancelled;
  });

  test("that gets no room is not read", async () => {
    let read = 0;
    const body = new ReadableStream<Uint8Array>({ pull: () => void read++ }, { highWaterMark: 0 });
    const makeRoom = () => Promise.reject(new Error("no room"));
    const large = request(body, { "content-length": String(2 * MIB) });
    expect(await throwing(readJson(large, { limitBytes: 8 * MIB, makeRoom }))).toThrow("no room");
    expect(read).toBe(0);
  });

  test("that is too long is refused, also without a length", async () => {
    const { options } = asking(2 * MIB);
    const piece = "x".repeat(MIB);
    const refused = { code: "payload_too_large" };
    expect(await failureOf(readJson(request(chunked([piece, piece, "x"])), options))).toMatchObject(refused);
    const announced = request("x", { "content-length": String(3 * MIB) });
    expect(await failureOf(readJson(announced, options))).toMatchObject(refused);
  });

  test("that is small is also aborted when it arrives slowly", async () => {
    const { promise: cancelled, resolve } = Promise.withResolvers<void>();
    const slow = request(chunked(["[", null], resolve));
    expect(await failureOf(readJson(slow, { limitBytes: 8192, smallMsMax: 10 }))).toMatchObject({
      code: "validation_error",
      message: expect.stringContaining("slowly"),
    });
    await cancelled;
  });

  test("that holds its room for too long is aborted", async () => {
    const { options } = asking();
    const { promise: cancelled, resolve } = Promise.withResolvers<void>();
    const body = chunked(["[", " ".repeat(2 * MIB), null], resolve);
    const late = readJson(request(body), { ...options, msMax: () => 10 });
    expect(await failureOf(late)).toMatchObject({
      code: "validation_error",
      message: expect.stringContaining("slowly"),
    });
    await cancelled;
  });
});
