import { expect, test } from "bun:test";
import { directStream } from "../../../src/api/stream/direct.ts";
import { streamed } from "../../../src/api/stream/text.ts";
import { throwing } from "../../support/failures.ts";
import { turns } from "../../support/waiting.ts";

function hold(): { readonly held: Disposable; isHeld(): boolean } {
  let isHeld = true;
  return {
    held: {
      [Symbol.dispose]: () => {
        isHeld = false;
      },
    },
    isHeld: () => isHeld,
  };
}

test("a cancelled listing holds its layers until its reader has ended", async () => {
  const { held, isHeld } = hold();
  const blocked = Promise.withResolvers<void>();
  const reading = Promise.withResolvers<void>();
  const seen: boolean[] = [];
  async function* parts(): AsyncGenerator<string> {
    yield "x".repeat(100_000);
    reading.resolve();
    await blocked.promise;
    seen.push(isHeld());
    yield "rest";
  }
  const { body } = await streamed("text/plain", parts(), held);
  const reader = (body as ReadableStream<Uint8Array>).getReader();
  await reader.read();
  const next = reader.read();
  await reading.promise;
  const cancelled = reader.cancel();
  await turns();
  blocked.resolve();
  await cancelled;
  await next;
  expect([seen, isHeld()]).toEqual([[true], false]);
});

test("layers are also released when their reader fails at its end", async () => {
  const chunks = (async function* (): AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined> {
    yield new Uint8Array(1);
  })();
  chunks.return = () => Promise.reject(new Error("cannot end"));
  const direct = hold();
  expect(await throwing(directStream(chunks, direct.held).cancel())).toThrow("cannot end");
  expect(direct.isHeld()).toBe(false);
  const listing = hold();
  const parts: AsyncGenerator<string> = (async function* () {
    yield "x".repeat(100_000);
    yield "rest";
  })();
  parts.return = () => Promise.reject(new Error("cannot end"));
  const { body } = await streamed("text/plain", parts, listing.held);
  expect(await throwing((body as ReadableStream<Uint8Array>).cancel())).toThrow("cannot end");
  expect(listing.isHeld()).toBe(false);
});
