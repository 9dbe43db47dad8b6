import { ReadableStream as WebStream } from "node:stream/web";
import { createGzip } from "node:zlib";
import type { Reply } from "./reply.ts";

type Chunks = AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>;

/**
 * A body of chunks that may reuse one buffer: each is copied to the socket before the next is requested, and none is
 * requested while the client does not read. `held` is disposed when the body ends or is cancelled.
 */
export function directStream(chunks: Chunks, held?: Disposable): ReadableStream<Uint8Array> {
  let isCancelled = false;
  return new ReadableStream<Uint8Array>({
    type: "direct",
    async pull(controller: ReadableStreamDirectController) {
      using _held = held;
      for await (const chunk of chunks) {
        await controller.write(chunk);
        await controller.flush();
        if (isCancelled) return;
      }
      controller.close();
    },
    async cancel() {
      isCancelled = true;
      using _held = held;
      await chunks.return();
    },
  });
}

/**
 * A body that requests the next chunk when the client reads. When the client disconnects, `onCancel` is called first, so
 * that a pending chunk can end, and then `chunks` is ended. `held` is disposed when the body ends, fails or is cancelled.
 */
export function pullStream(
  chunks: AsyncIterator<Uint8Array, unknown, undefined>,
  { held, onCancel }: { readonly held?: Disposable | undefined; readonly onCancel?: () => void },
): ReadableStream<Uint8Array> {
  const iterator: AsyncIterator<Uint8Array> = {
    async next() {
      using ending = new DisposableStack();
      ending.use(held);
      const step = await chunks.next();
      if (step.done === true) return { done: true, value: undefined };
      ending.move();
      return step;
    },
    async return() {
      using _held = held;
      onCancel?.();
      await chunks.return?.();
      return { done: true, value: undefined };
    },
  };
  return WebStream.from({ [Symbol.asyncIterator]: () => iterator });
}

/** Text is collected to chunks of this size, in characters. */
const CHUNK_CHARACTERS = 65_536;

/**
 * A reply of text that may be too long to be in memory at once. A short text is sent in one piece. `held` is disposed when
 * the text ends, fails or is cancelled.
 */
export async function streamed(contentType: string, parts: AsyncGenerator<string>, held?: Disposable): Promise<Reply> {
  using undo = new DisposableStack();
  undo.use(held);
  const headers = { "content-type": contentType, "cache-control": "no-store" };
  const first = await gather(parts);
  if (first.done) return { status: 200, headers, body: first.text };
  undo.move();
  const encoder = new TextEncoder();
  let pending = first.text;
  const next = async (): Promise<IteratorResult<Uint8Array>> => {
    const text = pending === "" ? (await gather(parts)).text : pending;
    pending = "";
    return text === "" ? { done: true, value: undefined } : { done: false, value: encoder.encode(text) };
  };
  const body = pullStream({ next, return: () => parts.return(undefined) as Promise<never> }, { held });
  return { status: 200, headers, body };
}

async function gather(parts: AsyncGenerator<string>): Promise<{ text: string; done: boolean }> {
  let text = "";
  while (text.length < CHUNK_CHARACTERS) {
    const step = await parts.next();
    if (step.done === true) return { text, done: true };
    text += step.value;
  }
  return { text, done: false };
}

/** Fast rather than small, because a client waits for the result. */
const GZIP_LEVEL = 4;

/** Compresses chunks. It reads ahead of its reader by zlib's buffers only. */
export async function* gzipChunks(chunks: Chunks): Chunks {
  const gzip = createGzip({ level: GZIP_LEVEL });
  const fed = feed(chunks, gzip);
  // The failure is thrown by the loop below; this keeps it from counting as an unhandled rejection.
  fed.catch((error) => gzip.destroy(error));
  for await (const chunk of gzip) yield chunk as Uint8Array<ArrayBuffer>;
  await fed;
}

async function feed(chunks: Chunks, gzip: ReturnType<typeof createGzip>): Promise<void> {
  for await (const chunk of chunks) {
    if (gzip.destroyed) return;
    // The callback is called when zlib has taken the bytes: the buffer may be reused then.
    await new Promise<void>((resolve) => {
      gzip.once("close", resolve);
      gzip.write(chunk, () => {
        gzip.off("close", resolve);
        resolve();
      });
    });
  }
  gzip.end();
}
