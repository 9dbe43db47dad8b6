import { rm } from "node:fs/promises";
import { join } from "node:path";
import { untilAborted, withinTime } from "../../system/waiting.ts";
import { createCopyFile, takeOverFile } from "../disk-copy.ts";
import { textOf } from "../jail/machine-files.ts";
import { VmmError } from "../machine-end.ts";
import type { DiskCopy, DiskCopyOptions, MachineExit } from "../vmm.ts";
import { type Qmp, QmpClosedError, type QmpEvent } from "./qmp.ts";

/** Longest part of QEMU's error text in an error message, in characters. */
const REASON_TEXT_MAX = 200;

/** Limit of the end of a cancelled copy, in `milliseconds`: writes under way may wait for the disk. */
const END_MS_MAX = 30_000;

/** Names of copies: of the job, of its node and of its file in the machine's directory. */
export const copyName = /^copy\d+$/;

/** Smallest unit of a copy, in `bytes`. It is the block size of the guest's file system, so that the copy keeps its holes. */
const GRANULARITY_BYTES = 4096;

/** The parts of a machine that a mirror needs. */
export interface MirroredMachine {
  readonly uid: number;
  readonly directory: string;
  readonly exited: Promise<MachineExit>;
  readonly qmp: Qmp;
}

/** A QEMU job that keeps a copy equal to its disk: QEMU completes a write of the guest only when both files have it. */
export class Mirror implements DiskCopy {
  readonly #machine: MirroredMachine;
  /** name of the job, of the copy's node and of its file in the machine's directory */
  readonly #name: string;
  readonly #path: string;
  readonly #pauseMsMax: number;
  readonly #ready = Promise.withResolvers<void>();
  readonly #completed = Promise.withResolvers<void>();
  readonly #owned = new AsyncDisposableStack();
  #isOver = false;

  private constructor(
    machine: MirroredMachine,
    name: string,
    { path, pauseMsMax }: Pick<DiskCopyOptions, "path" | "pauseMsMax">,
  ) {
    this.#machine = machine;
    this.#name = name;
    this.#path = path;
    this.#pauseMsMax = pauseMsMax;
    for (const { promise } of [this.#ready, this.#completed]) promise.catch(() => undefined);
    const over = new AbortController();
    this.#owned.defer(() => over.abort());
    untilAborted(machine.exited, over.signal).then(
      () => this.#fail("the machine ended"),
      () => undefined,
    );
  }

  /**
   * Starts a mirror and waits until the copy equals the disk.
   * @param node QEMU's name of the disk
   * @param listen passes QEMU's events to the handler until its result is disposed of
   * @throws VmmError when QEMU fails or ends; the reason of `signal`
   */
  static async open(
    machine: MirroredMachine,
    {
      node,
      name,
      listen,
      ...options
    }: DiskCopyOptions & {
      readonly node: string;
      readonly name: string;
      readonly listen: (handler: (event: QmpEvent) => void) => Disposable;
    },
  ): Promise<Mirror> {
    const { signal } = options;
    signal.throwIfAborted();
    const mirror = new Mirror(machine, name, options);
    await using undo = new AsyncDisposableStack();
    undo.use(mirror);
    mirror.#owned.use(listen((event) => mirror.#onEvent(event)));
    await mirror.#start(node, options);
    await untilAborted(mirror.#ready.promise, signal);
    // A small disk may be ready by the time of the abort, and then takes precedence.
    signal.throwIfAborted();
    undo.move();
    return mirror;
  }

  async #start(node: string, { serial, path }: Pick<DiskCopyOptions, "serial" | "path">): Promise<void> {
    const { directory, qmp } = this.#machine;
    const source = join(directory, serial);
    const name = join(directory, this.#name);
    this.#owned.defer(() => rm(name, { force: true }));
    await createCopyFile(this.#machine, { source, path, name });
    // The options of the disk: its flushes need not reach the host's disk either.
    const common = { cache: { direct: false, "no-flush": true }, discard: "unmap" };
    const file = { driver: "file", filename: `/vm/${this.#name}`, ...common };
    await qmp.execute("blockdev-add", { "node-name": this.#name, driver: "raw", file, ...common });
    this.#owned.defer(async () => {
      await this.#executeIfAlive("blockdev-del", { "node-name": this.#name });
    });
    await qmp.execute("blockdev-mirror", {
      "job-id": this.#name,
      device: node,
      target: this.#name,
      sync: "full",
      "copy-mode": "write-blocking",
      granularity: GRANULARITY_BYTES,
    });
    this.#owned.defer(() => this.#end());
  }

  async finish(): Promise<void> {
    // Cancelling a ready mirror without force completes it: the copy stays as the disk is now.
    const cancelled = this.#machine.qmp.execute("block-job-cancel", { device: this.#name });
    await withinTime(Promise.all([cancelled, this.#completed.promise]), this.#pauseMsMax, () => {
      throw new VmmError("the disk was not copied: its mirror did not end in time");
    });
  }

  async seal(): Promise<void> {
    await this[Symbol.asyncDispose]();
    await takeOverFile(this.#path);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#owned.disposeAsync();
  }

  /** Cancels a running job. QEMU deletes the node only after the job has ended. */
  async #end(): Promise<void> {
    if (this.#isOver) return;
    await this.#executeIfAlive("block-job-cancel", { device: this.#name, force: true });
    const over = this.#completed.promise.catch(() => undefined);
    // A job that does not end is that of a hostile monitor: its node stays.
    await withinTime(over, END_MS_MAX, () => this.#fail("it could not be cancelled"));
  }

  /** Executes a command. Ignores errors once the machine or the job has ended: nothing is left to clean up then. */
  async #executeIfAlive(command: string, args: Readonly<Record<string, unknown>>): Promise<void> {
    try {
      await this.#machine.qmp.execute(command, args);
    } catch (error) {
      if (!(error instanceof QmpClosedError) && !this.#isOver) throw error;
    }
  }

  #onEvent({ event, data }: QmpEvent): void {
    if (data["device"] !== this.#name) return;
    if (event === "BLOCK_JOB_READY") this.#ready.resolve();
    if (event === "BLOCK_JOB_CANCELLED") this.#fail("it was cancelled");
    if (event !== "BLOCK_JOB_COMPLETED") return;
    if (data["error"] !== undefined) this.#fail(textOf(data["error"]).slice(0, REASON_TEXT_MAX));
    this.#isOver = true;
    this.#ready.resolve();
    this.#completed.resolve();
  }

  #fail(reason: string): void {
    this.#isOver = true;
    const error = new VmmError(`the disk was not copied: ${reason}`);
    this.#ready.reject(error);
    this.#completed.reject(error);
  }
}
