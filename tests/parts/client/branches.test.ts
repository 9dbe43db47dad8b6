import { afterEach, beforeEach, expect, test } from "bun:test";
import { readBranches } from "../../../src/client/branches.ts";
import { Client } from "../../../src/client/client.ts";
import { AnswerError, ResponseError } from "../../../src/client/errors.ts";
import { errorReply, ScriptedAppliance } from "../../support/cli/cli.ts";
import { failureOf, throwing } from "../../support/failures.ts";

const ROWS = [
  { type: "operation", uuid: "o", kind: "instance", status: "PENDING", about: "é😀", created_at: "t" },
  { type: "image", uuid: "i", created_at: "t", size_bytes: 1, kind: "image_import", operation: "o" },
  { type: "end", older: false },
];
const TEXT = ROWS.map((row) => `${JSON.stringify(row)}\n`).join("");

let appliance: ScriptedAppliance;
let client: Client;
beforeEach(() => {
  appliance = new ScriptedAppliance();
  client = new Client({ url: appliance.environment["COPPICE_URL"] ?? "", token: "t" });
});
afterEach(() => appliance[Symbol.asyncDispose]());

const answers = (pieces: readonly Uint8Array[]) => {
  const left = [...pieces];
  appliance.answer = () => {
    const body = new ReadableStream<Uint8Array>({
      pull(controller) {
        const piece = left.shift();
        if (piece === undefined) controller.close();
        else controller.enqueue(piece);
      },
    });
    return new Response(body, { headers: { "content-type": "application/x-ndjson" } });
  };
};
const rows = async (options = {}) => (await Array.fromAsync(readBranches(client, options))).flat();

test("rows are read whole, wherever the stream is cut", async () => {
  answers([...Buffer.from(TEXT)].map((byte) => Uint8Array.of(byte)));
  expect(await rows({ limit: 2, before: "x" })).toEqual(ROWS as never);
  expect(appliance.seen.at(-1)?.path).toBe("/branches?limit=2&before=x");
});

test("an answer without its end is an error, after the rows that came", async () => {
  answers([Buffer.from(TEXT.slice(0, TEXT.lastIndexOf("{")))]);
  const rows: unknown[] = [];
  const reading = (async () => {
    for await (const some of readBranches(client)) rows.push(...some);
  })();
  expect(await failureOf(reading)).toBeInstanceOf(AnswerError);
  expect(rows).toEqual(ROWS.slice(0, 2));
});

test("a refusal is thrown, and so is the reason of a signal", async () => {
  appliance.answer = () => errorReply(429, "too_many_requests", "busy");
  expect(await failureOf(rows())).toBeInstanceOf(ResponseError);
  expect(await throwing(rows({ signal: AbortSignal.abort(new RangeError("left")) }))).toThrow("left");
});
