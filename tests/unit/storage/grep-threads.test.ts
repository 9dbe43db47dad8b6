import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { rmSync } from "node:fs";
import { Accounts } from "../../../src/domain/account/accounts.ts";
import { ACCOUNT_LIMITS } from "../../../src/domain/account/limits.ts";
import type { GuestPath } from "../../../src/domain/tree/guest-path.ts";
import { type GrepRequest, grep } from "../../../src/storage/tree/grep.ts";
import { GrepThreads } from "../../../src/storage/tree/grep-threads.ts";
import type { LayerFiles } from "../../../src/storage/tree/open-layers.ts";
import { failureOf, throwing } from "../../support/failures.ts";
import { filesOpenBelow, makeLayer, testDirectory } from "../../support/images/layer-files.ts";
import { pause } from "../../support/waiting.ts";

const LAYERS_COUNT = 5;
const TEXT = Buffer.alloc(4 * 1_048_576, "a line with a needle\n");

const directory = testDirectory("grep-threads");
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const layers: LayerFiles[] = [];
beforeAll(async () => {
  for (let n = 0; n < LAYERS_COUNT; n++) {
    const extents = [[0, 0, TEXT.length]] as const;
    layers.push(await makeLayer(directory, [{ path: `f${n}`, type: "f", size: BigInt(TEXT.length), extents }], TEXT));
  }
}, 60_000);

const request = (pattern: string): GrepRequest => ({
  ...{ layers, paths: ["/" as GuestPath], patterns: [pattern], matchCase: "sensitive", globs: [] },
  ...{ limit: 10, fileLimit: null, before: 0, after: 0, ranges: false },
});
const never = new AbortController().signal;

test("searches leave no file open, however they end", async () => {
  const all = await grepThreads.run(request("no such text"), never);
  expect(all).toMatchObject({ bounds: [], fileCount: LAYERS_COUNT });
  expect(all.lines.numbers).toHaveLength(0);
  expect((await grepThreads.run(request("needle"), never)).bounds).toEqual(["limit"]);
  expect(await throwing(grepThreads.run(request("(("), never))).toThrow("pattern is not valid");
  const missing = { ...request("needle"), paths: ["/none" as GuestPath] };
  expect(await throwing(grepThreads.run(missing, never))).toThrow("no such file");
  expect(filesOpenBelow(directory)).toEqual([]);
}, 60_000);

test("a search without a waiting caller ends by itself, and leaves no file open", async () => {
  for (const delayMs of [0, 10, 50, 100]) {
    const left = new AbortController();
    const search = grepThreads.run(request("(a|l|w)+ no such text"), left.signal);
    const outcome = search.then(
      () => "finished",
      (error: unknown) => (error as Error).message,
    );
    await pause("the search has come further each time", delayMs);
    left.abort(new Error("left"));
    expect(["finished", "left"]).toContain(await outcome);
    expect(filesOpenBelow(directory)).toEqual([]);
  }
}, 60_000);

/** Needs a thousand times as long for each character as an ordinary pattern, and never matches. */
const SLOW_PATTERN = "a[ab]{998}[^abc]";

const grepThreads = new GrepThreads(new Accounts());

describe("the slowest pattern and text", () => {
  let slow: LayerFiles;

  beforeAll(async () => {
    const random = new Uint32Array(64);
    let text = "";
    while (text.length < 8 * 1_048_576) {
      crypto.getRandomValues(random);
      for (const word of random) text += word.toString(2).padStart(32, "0").replaceAll("0", "a").replaceAll("1", "b");
      text += "\n";
    }
    const bytes = Buffer.from(text);
    const extents = [[0, 0, bytes.length]] as const;
    slow = await makeLayer(directory, [{ path: "slow", type: "f", size: BigInt(bytes.length), extents }], bytes);
  }, 60_000);

  const slowRequest = (): GrepRequest => ({ ...request(SLOW_PATTERN), layers: [slow] });

  test("end at the next line when the caller has left", async () => {
    let askedCount = 0;
    const cancellation = {
      throwIfAborted: () => {
        if (++askedCount === 20) throw new Error("left");
      },
    };
    expect(await throwing(grep(slowRequest(), cancellation))).toThrow("left");
  });

  test("search no more of a line than takes a second", async () => {
    const line = Buffer.alloc(60_000, "ab");
    const extents = [[0, 0, line.length]] as const;
    const layer = await makeLayer(directory, [{ path: "f", type: "f", size: BigInt(line.length), extents }], line);
    const search = (pattern: string) => grep({ ...request(pattern), layers: [layer] }, never);
    expect((await search(SLOW_PATTERN)).bounds).toEqual(["line_length"]);
    expect((await search("c")).bounds).toEqual([]);
  });

  test("hold files and layers until the thread has closed them", async () => {
    const threads = new GrepThreads(new Accounts(), 1);
    const { promise: released, resolve } = Promise.withResolvers<void>();
    const search = threads.run(slowRequest(), never, { held: { [Symbol.dispose]: resolve } });
    expect(await failureOf(search)).toMatchObject({ code: "unavailable" });
    await released;
    expect(filesOpenBelow(directory)).toEqual([]);
  });

  test("drop callers that have left from the queue", async () => {
    const threads = new GrepThreads(new Accounts());
    const running = [new AbortController(), new AbortController()];
    const outcomes = running.map(({ signal }) => threads.run(slowRequest(), signal).catch(() => "ended"));
    const left = new AbortController();
    const waiting = threads.run(slowRequest(), left.signal).catch((error: Error) => error.message);
    left.abort(new Error("left"));
    expect(await Promise.race([waiting, ...outcomes])).toBe("left");
    for (const one of running) one.abort();
    expect(await Promise.all(outcomes)).toEqual(["ended", "ended"]);
    expect(filesOpenBelow(directory)).toEqual([]);
  });

  test("delay an account by no more than one search of each other account at a time", async () => {
    const threads = new GrepThreads(new Accounts());
    const stop = new AbortController();
    const order: string[] = [];
    const quickRequest = { ...request("no such text"), layers: layers.slice(0, 1) };
    const searched = async (owner: string, signal: AbortSignal) => {
      const search = signal === never ? quickRequest : slowRequest();
      await threads.run(search, signal, { owner }).catch(() => undefined);
      order.push(owner);
    };
    const running = [stop, stop].map(({ signal }) => searched("busy", signal));
    const waiting = Array.from({ length: ACCOUNT_LIMITS.waitingSearches.max }, () => searched("busy", never));
    const refused = { code: "too_many_requests" };
    expect(await failureOf(threads.run(request("no"), never, { owner: "busy" }))).toMatchObject(refused);
    const other = searched("other", never);
    stop.abort();
    await Promise.all([...running, other]);
    // Two of the busy account ran, and at most two more began before the other's turn was over.
    expect(order.indexOf("other")).toBeLessThan(5);
    await Promise.all(waiting);
    expect(filesOpenBelow(directory)).toEqual([]);
  }, 60_000);
});
