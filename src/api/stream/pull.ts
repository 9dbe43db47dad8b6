import { ReadableStream as WebStream } from "node:stream/web";

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
  return WebStream.from({ [Symbol.asyncIterator]: () => iterator }) as unknown as ReadableStream<Uint8Array>;
}
