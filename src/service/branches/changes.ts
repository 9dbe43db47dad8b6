import { branchImagesOf } from "../../db/branches/branch-images.ts";
import { branchOperationsOf } from "../../db/branches/branch-operations.ts";
import type { AccountId, ImageId, OperationId } from "../../domain/ids.ts";
import { Pacer } from "../../storage/pacer.ts";
import type { AccountChange } from "../../supervisor/account-changes.ts";
import type { Principal, ServiceParts } from "../parts.ts";
import { Ancestry, withLines } from "./branches.ts";
import { type Change, type ChangeStream, RESYNC, WaitingChanges } from "./change-stream.ts";

/** Largest number of changes that wait to be read. */
const WAITING_COUNT_MAX = 1000;
/** Changes within this time are sent together, in `milliseconds`. */
const COLLECT_MS = 20;
/** Rows that are read in one turn of the event loop. */
const ROWS_COUNT = 32;

type Parts = Pick<ServiceParts, "accounts" | "db" | "changes" | "log">;

/** The streams of changes of all accounts. */
export class ChangeFeeds {
  readonly #parts: Parts;
  readonly #feeds = new Map<AccountId, Feed>();

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  /**
   * Opens a stream, until disposal.
   * @param signal ends a wait for changes
   * @throws ApiError `too_many_requests`
   */
  open({ accountId }: Principal, signal: AbortSignal): ChangeStream {
    const place = this.#parts.accounts.take(accountId, "changeStreams");
    const feed = this.#feeds.get(accountId) ?? new Feed(this.#parts, accountId, () => this.#feeds.delete(accountId));
    this.#feeds.set(accountId, feed);
    return feed.open(signal, place);
  }
}

/** The shared part of one account's streams: it reads the rows of a change once. It listens while it has streams. */
class Feed {
  readonly #parts: Parts;
  readonly #accountId: AccountId;
  readonly #streams = new Set<WaitingChanges>();
  readonly #operations = new Set<OperationId>();
  readonly #images = new Set<ImageId>();
  readonly #deleted = new Set<ImageId>();
  readonly #listening: DisposableStack = new DisposableStack();
  #isReading = false;
  #isStopped = false;
  /** number of times that changes were left out */
  #resyncs = 0;

  constructor(parts: Parts, accountId: AccountId, onLeave: () => void) {
    this.#parts = parts;
    this.#accountId = accountId;
    this.#listening.defer(onLeave);
    const listener = { changed: (change: AccountChange) => this.#changed(change), stopped: () => this.#stop() };
    this.#listening.use(parts.changes.listen(accountId, listener));
  }

  open(signal: AbortSignal, place: Disposable): ChangeStream {
    const stream: WaitingChanges = new WaitingChanges(signal, () => {
      place[Symbol.dispose]();
      if (this.#streams.delete(stream) && this.#streams.size === 0) this.#listening.dispose();
    });
    this.#streams.add(stream);
    if (this.#isStopped) stream.stop();
    return stream;
  }

  #stop(): void {
    this.#isStopped = true;
    for (const stream of this.#streams) stream.stop();
  }

  #changed(change: AccountChange): void {
    if (change.type === "operation") this.#operations.add(change.id);
    else if (change.type === "image") this.#images.add(change.id);
    else {
      this.#images.delete(change.id);
      this.#deleted.add(change.id);
    }
    if (this.#operations.size + this.#images.size + this.#deleted.size > WAITING_COUNT_MAX) this.#resync();
    if (this.#isReading) return;
    this.#isReading = true;
    setTimeout(() => void this.#read(), COLLECT_MS);
  }

  /** Drops the changes that were not read yet, and sends a `resync` to the clients. */
  #resync(): void {
    this.#operations.clear();
    this.#images.clear();
    this.#deleted.clear();
    this.#resyncs += 1;
    for (const stream of this.#streams) stream.push(RESYNC);
  }

  /** Reads changed rows until none is left; never throws. */
  async #read(): Promise<void> {
    const pacer = new Pacer({ owner: `changes ${this.#accountId}`, throwIfAborted: () => undefined });
    try {
      while (this.#streams.size > 0 && this.#operations.size + this.#images.size + this.#deleted.size > 0) {
        await pacer.yield();
        const resyncs = this.#resyncs;
        const changes = await this.#take(pacer);
        // After a resync, rows that were read before it would restore objects that have since ended or been deleted.
        if (changes.length === 0 || resyncs !== this.#resyncs) continue;
        for (const stream of this.#streams) stream.push(changes);
      }
    } catch (error) {
      this.#parts.log.error("cannot read the changed rows", { account: this.#accountId, error });
      this.#resync();
    }
    this.#isReading = false;
  }

  /** The next changes: images before the operations that made them. */
  async #take(pacer: Pacer): Promise<readonly Change[]> {
    const { db } = this.#parts;
    const operations = await withLines(db, branchOperationsOf(db, this.#accountId, removeFirst(this.#operations)));
    const resultIds = operations.flatMap(({ resultId }) => resultId ?? []);
    const ids = [...new Set([...resultIds, ...removeFirst(this.#images)])];
    const ancestry = new Ancestry(db, pacer);
    const changes: Change[] = [];
    for (const node of branchImagesOf(db, this.#accountId, ids)) {
      changes.push({ type: "image", image: await ancestry.of(node) });
    }
    for (const operation of operations) changes.push({ type: "operation", operation });
    for (const id of removeFirst(this.#deleted)) changes.push({ type: "deleted", id });
    return changes;
  }
}

/** Removes the first ids from a set, and returns them. */
function removeFirst<Id>(ids: Set<Id>): Id[] {
  const first: Id[] = [];
  for (const id of ids) {
    if (first.length === ROWS_COUNT) break;
    first.push(id);
    ids.delete(id);
  }
  return first;
}
