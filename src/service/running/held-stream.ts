import type { GuestEntry } from "../../domain/tree/guest-file.ts";

/** A stream that must be disposed of when it was read. */
export interface HeldStream<T> extends Disposable {
  readonly items: AsyncGenerator<T, void, undefined>;
}

/** A file that is being read. */
export interface ReadGuestFile extends HeldStream<Uint8Array> {
  readonly entry: GuestEntry;
}

/** A stream whose first item has arrived, so that its errors are those of the request. */
export async function begun<T>(items: AsyncGenerator<T, void, undefined>, held: Disposable): Promise<HeldStream<T>> {
  using undo = new DisposableStack();
  undo.use(held);
  const first = await items.next();
  const owned = undo.move();
  const dispose = () => owned.dispose();
  return { items: resumed(first, items), [Symbol.dispose]: () => void items.return().then(dispose, dispose) };
}

async function* resumed<T>(
  first: IteratorResult<T, void>,
  items: AsyncGenerator<T, void, undefined>,
): AsyncGenerator<T, void, undefined> {
  if (first.done === true) return;
  yield first.value;
  yield* items;
}
