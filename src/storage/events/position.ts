import { FILE_MAGIC } from "./record.ts";

/** Distance of two entries of an index, in `bytes`. */
const INDEX_STEP_BYTES = 65_536;

/** The id of an event and its offset in the log, in `bytes`. */
export interface EventPosition {
  readonly id: number;
  readonly offset: number;
}

/** The first position of a plain log. */
export const FIRST_POSITION: EventPosition = { id: 0, offset: FILE_MAGIC.byteLength };

/** Positions of some events of a growing log, so that a reader can start near a given event. */
export class PositionIndex {
  #positions: EventPosition[];

  /** @param positions in their order, at least one; events before the first one cannot be read */
  constructor(positions: readonly EventPosition[] = [FIRST_POSITION]) {
    this.#positions = [...positions];
  }

  /** Adds the position of an event that follows all added ones. */
  add(position: EventPosition): void {
    const last = this.#positions.at(-1) ?? FIRST_POSITION;
    if (position.offset - last.offset >= INDEX_STEP_BYTES) this.#positions.push(position);
  }

  /** Removes the positions before an offset in the log, which must be that of an event. */
  forgetBefore({ id, offset }: EventPosition): void {
    this.#positions = [{ id, offset }, ...this.#positions.filter((position) => position.offset > offset)];
  }

  /** The last position at or before the event `id`, or else the first one. */
  before(id: number): EventPosition {
    let low = 0;
    for (let high = this.#positions.length; high - low > 1; ) {
      const middle = (low + high) >> 1;
      if ((this.#positions[middle]?.id ?? 0) <= id) low = middle;
      else high = middle;
    }
    return this.#positions[low] ?? FIRST_POSITION;
  }
}
