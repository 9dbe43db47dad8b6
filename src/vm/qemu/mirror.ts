import { rm } from "node:fs/promises";
import { join } from "node:path";
import { untilAborted, withinTime } from "../../system/waiting.ts";
import { placeCopy, takeFile } from "../disk-copy.ts";
import { VmmError } from "../machine-end.ts";
import type { DiskCopy, DiskCopyOptions, MachineExit } from "../vmm.ts";
import { type Qmp, QmpClosedError, type QmpEvent } from "./qmp.ts";

/** What an error may show of a monitor's words. */
const REASON_TEXT_MAX = 200;

/** Of what a mirror copies at least: the block of the guest's file system, so that the copy has its holes. */
const GRANULARITY_BYTES = 4096;

/** What of its machine a mirror needs. */
export interface MirroredMachine {
  readonly uid: number;
  readonly directory: string;
  readonly exited: Promise<MachineExit>;
  readonly qmp: Qmp;
}

/** One job of QEMU's that keeps a copy of a disk equal to it: whatever the guest writes goes to both before it is answered. */
export class Mirror implements DiskCopy {
  readonly #machine: MirroredMachine;
  /** of the job, the node of the copy and its file in the machine's directory */
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
   * Begins a mirror and waits until the copy is equal. `listen` passes on the monitor's events until disposal.
   * @param node of the disk
   * @throws VmmError; the reason of the signal
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
    const mirror = new Mirror(machine, name, options);
    await using undo = new AsyncDisposableStack();
    undo.use(mirror);
    mirror.#owned.use(listen((event) => mirror.#onEvent(event)));
    await mirror.#start(node, options);
    await untilAborted(mirror.#ready.promise, options.signal);
    undo.move();
    return mirror;
  }

  async #start(node: string, { serial, path }: Pick<DiskCopyOptions, "serial" | "path">): Promise<void> {
    const { directory, qmp } = this.#machine;
    const source = join(directory, serial);
    const name = join(directory, this.#name);
    this.#owned.defer(() => rm(name, { force: true }));
    await placeCopy(this.#machine, { source, path, name });
    // As the disk itself is: what the host has taken is the host's to sync.
    const common = { cache: { direct: false, "no-flush": true }, discard: "unmap" };
    const file = { driver: "file", filename: `/vm/${this.#name}`, ...common };
    await qmp.execute("blockdev-add", { "node-name": this.#name, driver: "raw", file, ...common });
    this.#owned.defer(async () => {
      await this.#tell("blockdev-del", { "node-name": this.#name });
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
    // Not forced, a mirror that is ready ends as a copy of this instant.
    const cancelled = this.#machine.qmp.execute("block-job-cancel", { device: this.#name });
    await withinTime(Promise.all([cancelled, this.#completed.promise]), this.#pauseMsMax, () => {
      throw new VmmError("the disk was not copied: its mirror did not end in time");
    });
  }

  async seal(): Promise<void> {
    await this[Symbol.asyncDispose]();
    await takeFile(this.#path);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#owned.disposeAsync();
  }

  /** Ends a job that is not over, before its node can go. */
  async #end(): Promise<void> {
    if (this.#isOver) return;
    await this.#tell("block-job-cancel", { device: this.#name, force: true });
    await this.#completed.promise.catch(() => undefined);
  }

  /** A machine that is gone has no jobs and no nodes any more. */
  async #tell(command: string, args: Readonly<Record<string, unknown>>): Promise<void> {
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
    if (data["error"] !== undefined) this.#fail(String(data["error"]).slice(0, REASON_TEXT_MAX));
    this.#isOver = true;
    this.#ready.resolve();
    this.#completed.resolve();
  }

  #fail(why: string): void {
    this.#isOver = true;
    const error = new VmmError(`the disk was not copied: ${why}`);
    this.#ready.reject(error);
    this.#completed.reject(error);
  }
}
