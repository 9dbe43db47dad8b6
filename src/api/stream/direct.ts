/** Chunks that can be ended before the first one is requested. */
export interface Endable extends AsyncIterable<Uint8Array<ArrayBuffer>> {
  return(): Promise<unknown>;
}

/** Bun's stream that writes to the socket directly; the page is checked with the types of browsers, which lack it. */
export const DirectStream = ReadableStream as unknown as new (
  source: Bun.DirectUnderlyingSource<Uint8Array>,
) => ReadableStream<Uint8Array>;

/**
 * A body of chunks that may reuse one buffer: each is copied to the socket before the next is requested, and none is
 * requested while the client does not read. `held` is disposed when the body ends or is cancelled.
 */
export function directStream(chunks: Endable, held?: Disposable): ReadableStream<Uint8Array> {
  let isCancelled = false;
  return new DirectStream({
    type: "direct",
    async pull(controller) {
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
