import { readdir } from "node:fs/promises";
import { join } from "node:path";
import type { Database } from "../../db/database.ts";
import {
  allMemoryImages,
  deleteMemoryImage,
  deleteMemoryImageOf,
  existingMemoryImages,
  type MemoryImageRow,
  memoryImageBytes,
  memoryImageOf,
  type NewMemoryImage,
  setMemoryProblem,
} from "../../db/sandboxes/memory-images.ts";
import type { SandboxRow } from "../../db/sandboxes/rows.ts";
import type { Accounts } from "../../domain/account/accounts.ts";
import { ApiError } from "../../domain/errors.ts";
import type { AccountId, MemoryImageId, OperationId, SandboxId } from "../../domain/ids.ts";
import type { Log } from "../../log.ts";
import { requireSpace } from "../../storage/free-space.ts";
import type { DataLayout } from "../../storage/layout.ts";
import { removeTrees } from "../../system/scratch.ts";
import { allocatedBytes } from "../../system/sparse.ts";
import { untilAborted } from "../../system/waiting.ts";
import { DamagedMemoryError, NotResumableError } from "../../vm/machine-end.ts";
import { syncAgent } from "../../vm/templates.ts";
import type { Disk, ForkPoint } from "../../vm/vmm.ts";
import { takeForkPoint } from "../instance/forks/fork-point.ts";
import { withoutReaders } from "../instance/forks/suspended.ts";
import type { RunningInstance } from "../instance/running-instance.ts";
import type { ResumableInstance, RunningInstances } from "../instance/running-instances.ts";
import type { ForkedMachines } from "../machines/machine-source.ts";
import { Compressions } from "./compressions.ts";
import { disksOf, readImage, unfinishedPath, writeImage } from "./image-files.ts";

/** Wait for machines before a check, in `milliseconds`. */
const CHECK_MS_MAX = 10_000;

export interface MemoryImagesOptions {
  readonly db: Database;
  readonly layout: DataLayout;
  readonly log: Log;
  readonly accounts: Pick<Accounts, "limits">;
  readonly instances: RunningInstances;
  readonly machines: ForkedMachines;
  /** disk space that must be left free */
  readonly diskReserveBytes: number;
  /** limit of all images together, in `bytes` */
  readonly memoryImagesBytes: number;
}

/** The memory of a running sandbox at one instant, on the disk. Its machine is paused, and its agent held. */
export interface KeptMemory extends AsyncDisposable {
  readonly image: NewMemoryImage;
  readonly record: ResumableInstance;
  /** The instance ends and the image is published, both by the operation. Otherwise disposal continues the instance. */
  handOver(operationId: OperationId): void;
}

/** An image from which a machine is made. Disposal frees its memory when that machine has ended. */
export interface OpenedMemory extends AsyncDisposable {
  readonly point: ForkPoint;
  readonly record: ResumableInstance;
  readonly disks: readonly Disk[];
  /** To be called before the machine runs, after which the image is useless. @throws ApiError `conflict` when it is gone */
  consume(): void;
}

/** The kept memory of paused sandboxes: files, rows, limits, and their removal. */
export class MemoryImages implements AsyncDisposable {
  readonly #options: MemoryImagesOptions;
  readonly #compressions: Compressions;
  /** sizes of images that have no row yet; 0 until it is known */
  readonly #unpublished = new Map<MemoryImageId, { readonly accountId: AccountId; bytes: number }>();
  readonly #handedOver = new Map<OperationId, () => void>();
  #sweeping: Promise<void> = Promise.resolve();
  /** settles when the last fork point is gone: each takes as much of the daemon's memory as its guest may have */
  #lastPoint: Promise<unknown> = Promise.resolve();
  #mayHaveFiles = true;

  private constructor(options: MemoryImagesOptions) {
    this.#options = options;
    this.#compressions = new Compressions(options);
  }

  /** Removes what a former process has left. To be called before any sandbox is paused or resumed. */
  static async open(options: MemoryImagesOptions): Promise<MemoryImages> {
    const images = new MemoryImages(options);
    await images.#recover();
    return images;
  }

  /**
   * Keeps the memory of a running instance.
   * @throws ApiError `insufficient_storage` with the figures, `conflict`; as `takeForkPoint` does. The instance continues then.
   */
  async keep(
    { accountId }: Pick<SandboxRow, "accountId">,
    { id: instanceId, imageId }: { readonly id: OperationId; readonly imageId: MemoryImageRow["imageId"] },
    signal: AbortSignal,
  ): Promise<KeptMemory> {
    const { layout, instances, diskReserveBytes } = this.#options;
    await using stack = new AsyncDisposableStack();
    const claim = instances.claim(instanceId, "pause");
    stack.use(claim);
    const instance = instances.find(instanceId);
    const id = Bun.randomUUIDv7() as MemoryImageId;
    const directory = this.directoryOf(id);
    const place = { accountId, bytes: 0 };
    this.#unpublished.set(id, place);
    this.#mayHaveFiles = true;
    stack.defer(() => {
      this.#unpublished.delete(id);
      return this.sweep();
    });
    this.#requireRoom(accountId, 0);
    using turn = new DisposableStack();
    turn.use(await this.#turn(signal));
    const forked = await takeForkPoint(this.#options, { instanceId, copiesCount: 1, after: "ends", signal });
    if (instance === null) throw new Error("an instance that is claimed has no machine");
    await using undo = new AsyncDisposableStack();
    undo.defer(() => continueInstance(instance));
    // It must not run while the image is written: its files would no longer be those of the same instant.
    await instance.machine.pause();
    const { memoryBytes, savedBytes } = forked.point;
    {
      await using _owned = forked;
      const sizeBytes = savedBytes + (await allocatedBytes(forked.scratchPath));
      this.#requireRoom(accountId, sizeBytes);
      requireSpace(layout.root, diskReserveBytes + savedBytes);
      place.bytes = sizeBytes;
      const machineDirectory = instance.machine.directory;
      place.bytes = await writeImage(directory, { ...forked, record: withoutReaders(forked.record), machineDirectory });
    }
    turn.dispose();
    const image: NewMemoryImage = { id, accountId, imageId, sizeBytes: place.bytes, memoryBytes };
    const own = undo.move();
    const owned = stack.move();
    let isHandedOver = false;
    return {
      image,
      record: forked.record,
      handOver: (operationId) => {
        isHandedOver = true;
        this.#handedOver.set(operationId, () => void owned.disposeAsync().then(() => this.#compressions.begin(id)));
      },
      [Symbol.asyncDispose]: async () => {
        if (isHandedOver) return;
        await own.disposeAsync();
        await owned.disposeAsync();
      },
    };
  }

  /** To be called when an operation has ended, after its publication. */
  settle(operationId: OperationId): void {
    this.#handedOver.get(operationId)?.();
    this.#handedOver.delete(operationId);
  }

  /** Checks what can be checked without reading the memory. @throws ApiError `not_resumable` with the reason */
  async check(image: MemoryImageRow): Promise<void> {
    requireWhole(image);
    const signal = AbortSignal.timeout(CHECK_MS_MAX);
    await this.#explained(image, async () => {
      await readImage(this.directoryOf(image.id));
      try {
        await this.#options.machines.checkFork(this.directoryOf(image.id), signal);
      } catch (error) {
        // No machine can run yet. The operation checks it again.
        if (!signal.aborted) throw error;
      }
    });
  }

  /**
   * Reads the memory of a sandbox, which its caller has admitted.
   * @throws ApiError `not_resumable` with the reason, `conflict` when another request was faster
   */
  async open(sandboxId: SandboxId, id: MemoryImageId, signal: AbortSignal): Promise<OpenedMemory> {
    const { db, machines } = this.#options;
    const image = memoryImageOf(db, sandboxId);
    if (image?.id !== id) throw memoryGone();
    requireWhole(image);
    await this.#compressions.end(id);
    const directory = this.directoryOf(id);
    return await this.#explained(image, async () => {
      await using owned = new AsyncDisposableStack();
      const record = await readImage(directory);
      const point = owned.use(await machines.loadFork(directory, signal));
      const disks = await disksOf(directory, record);
      const kept = owned.move();
      return {
        ...{ point, record, disks },
        consume: () => {
          if (!db.transaction(() => deleteMemoryImage(db, image))) throw memoryGone();
        },
        [Symbol.asyncDispose]: () => kept.disposeAsync(),
      };
    });
  }

  /** Deletes the rows of images whose files are missing, as after a restore, and the files without a row. */
  async #recover(): Promise<void> {
    const { db, layout } = this.#options;
    const names = new Set<string>(await readdir(layout.memoryImages));
    for (const { id, sandboxId } of allMemoryImages(db)) if (!names.has(id)) deleteMemoryImageOf(db, sandboxId);
    await this.sweep();
    for (const { id } of allMemoryImages(db)) this.#compressions.begin(id);
  }

  /** Removes the files of images that have no row and will get none. Never throws. */
  sweep(): Promise<void> {
    if (!this.#mayHaveFiles) return this.#sweeping;
    this.#sweeping = this.#sweeping.then(() => this.#sweep());
    return this.#sweeping;
  }

  directoryOf(id: MemoryImageId): string {
    return join(this.#options.layout.memoryImages, id);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#compressions[Symbol.asyncDispose]();
    await this.#sweeping;
  }

  async #sweep(): Promise<void> {
    const { db, layout, log } = this.#options;
    try {
      const names = await readdir(layout.memoryImages);
      const existing = existingMemoryImages(db, names as MemoryImageId[]);
      const isKept = (name: string) => existing.has(name) || this.#isUnpublished(name);
      const orphans = names.filter((name) => !isKept(name));
      for (const name of orphans) await this.#compressions.end(name as MemoryImageId);
      await removeTrees(orphans.map((name) => join(layout.memoryImages, name)));
      this.#mayHaveFiles = names.length > orphans.length || this.#unpublished.size > 0;
    } catch (error) {
      log.warn("cannot remove the files of kept memory: the next pass tries again", { error });
    }
  }

  #isUnpublished(name: string): boolean {
    return [...this.#unpublished.keys()].some((id) => name === id || name === unfinishedPath(id));
  }

  /** Waits until no other instance has a fork point, and lets no other have one until disposal. @throws the reason of `signal` */
  async #turn(signal: AbortSignal): Promise<Disposable> {
    const before = this.#lastPoint;
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#lastPoint = before.then(() => promise);
    using undo = new DisposableStack();
    undo.defer(resolve);
    await untilAborted(before, signal);
    undo.move();
    return { [Symbol.dispose]: resolve };
  }

  /** @throws ApiError `insufficient_storage` when `bytes` more exceed a limit */
  #requireRoom(accountId: AccountId, bytes: number): void {
    const { db, accounts, memoryImagesBytes } = this.#options;
    const stored = memoryImageBytes(db, accountId);
    const unpublished = [...this.#unpublished.values()];
    const sum = (places: readonly { readonly bytes: number }[]) => places.reduce((all, place) => all + place.bytes, 0);
    const own = stored.own + sum(unpublished.filter((place) => place.accountId === accountId));
    const all = stored.all + sum(unpublished);
    const { max, refusal } = accounts.limits.memoryImages;
    if (own + bytes > max || own >= max) {
      throw full(refusal({ max, used: own }), { limit: max, used: own, bytes });
    }
    if (all + bytes > memoryImagesBytes || all >= memoryImagesBytes) {
      const message = `the service keeps ${all} bytes of memory of paused sandboxes already`;
      throw full(message, { limit: memoryImagesBytes, used: all, bytes });
    }
  }

  /** A reason that lasts is stored with the image. */
  async #explained<T>({ sandboxId, problem }: MemoryImageRow, work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (error) {
      if (!(error instanceof NotResumableError)) throw error;
      if (problem === null && error instanceof DamagedMemoryError)
        setMemoryProblem(this.#options.db, sandboxId, error.message);
      throw notResumable(error.message, error);
    }
  }
}

/** @throws ApiError `not_resumable` when it is known that the image cannot be resumed */
function requireWhole({ problem }: MemoryImageRow): void {
  if (problem !== null) throw notResumable(problem);
}

/** Ends the pause of a machine and the hold of its agent. An instance that does not continue fails. Never throws. */
async function continueInstance({ machine, agent, failure }: RunningInstance): Promise<void> {
  try {
    await machine.resume();
    if (agent.isHeld) await syncAgent(agent);
  } catch (error) {
    const message = `the instance did not continue after a copy: ${(error as Error).message}`;
    failure.abort(new ApiError("unavailable", message, {}, { cause: error }));
  }
}

function full(message: string, figures: Readonly<Record<string, number>>): ApiError {
  const advice = "pause it without memory, or end sandboxes that are paused with memory";
  return new ApiError("insufficient_storage", `${message}: ${advice}`, { reason: "memory_images_bytes", ...figures });
}

/** The error for memory that cannot be resumed. */
export function notResumable(reason: string, cause?: unknown): ApiError {
  const message = `the sandbox cannot continue with its memory: ${reason}; with memory false it starts from its files`;
  return new ApiError("not_resumable", message, { reason }, { cause });
}

function memoryGone(): ApiError {
  return new ApiError("conflict", "the memory of the sandbox is no longer kept");
}
