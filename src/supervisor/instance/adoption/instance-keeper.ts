import { join } from "node:path";
import type { AccountId } from "../../../domain/ids.ts";
import type { Log } from "../../../log.ts";
import { PROTOCOL_VERSION } from "../../../vm/agent/protocol.ts";
import { homePaths } from "../../../vm/jail/jailed-vmm.ts";
import { VmmError } from "../../../vm/machine-end.ts";
import type { Machine } from "../../../vm/vmm.ts";
import { FORMAT_NUMBER, hostBootId, type InstanceRecord } from "../../survivors/instance-record.ts";
import { writeRecordFile } from "../../survivors/record-file.ts";

/** Counters of a network change all the time; a crash loses at most those of so many `milliseconds`. */
const UPDATE_MS = 5000;

/** Common parts of the keepers of all instances. */
export interface KeeperParts {
  readonly vmsDirectory: string;
  /** version of the service */
  readonly daemon: string;
  readonly assets: () => Promise<{ readonly hash: string }>;
  readonly log: Log;
}

/** Where the machine of a record comes from. */
type Origin = Pick<InstanceRecord, "format" | "bootId" | "daemon" | "protocol" | "assets">;
/** The fields of a record that its keeper does not know by itself. */
export type KeptFacts = Omit<InstanceRecord, keyof Origin | "accountId" | "machine">;

/**
 * Keeps the record of one instance on disk, so that its machine can outlive this process. The record is not synced: a power
 * failure ends the machine, too. Disposal ends the updates; the file goes with the directory of the machine.
 */
export class InstanceKeeper implements Disposable {
  readonly #parts: KeeperParts;
  readonly #accountId: AccountId;
  /** null before `keep` */
  #kept: { readonly path: string; readonly make: () => InstanceRecord | null } | null = null;
  #timer: Timer | null = null;
  #isOver = false;

  constructor(parts: KeeperParts, accountId: AccountId) {
    this.#parts = parts;
    this.#accountId = accountId;
  }

  /** Version of the service. */
  get daemon(): string {
    return this.#parts.daemon;
  }

  /** True when the machine outlives this process. */
  get isKept(): boolean {
    return this.#kept !== null && !this.#isOver;
  }

  /**
   * Writes the record, and lets the machine outlive this process from then on. Does nothing for machines that cannot.
   * @param facts returns the present state
   * @throws Error of the file system; VmmError when the machine has ended
   */
  async keep(machine: Machine, facts: () => KeptFacts): Promise<void> {
    if (machine.record === undefined || machine.outlive === undefined) return;
    const { hash: assets } = await this.#parts.assets();
    const [format, protocol] = [FORMAT_NUMBER, PROTOCOL_VERSION] as const;
    this.#begin(machine, { format, bootId: hostBootId(), daemon: this.daemon, protocol, assets }, facts);
    this.#write();
    await machine.outlive();
  }

  /** Continues to keep the record of a machine that has outlived another process. */
  resume(machine: Machine, { format, bootId, daemon, protocol, assets }: Origin, facts: () => KeptFacts): void {
    this.#begin(machine, { format, bootId, daemon, protocol, assets }, facts);
  }

  /** To be called after a change. The file has it when this returns, unless the disk is full: then the one before stays. */
  update(): void {
    clearTimeout(this.#timer ?? undefined);
    this.#timer = null;
    try {
      this.#write();
    } catch (error) {
      // The machine has ended, and its directory may be gone: its record is of no use any more.
      if (error instanceof VmmError || (error as NodeJS.ErrnoException).code === "ENOENT") return;
      this.#parts.log.warn("the record of an instance cannot be written", { error });
    }
  }

  /** To be called after a change of a counter: the file has it soon. */
  updateSoon(): void {
    if (this.#kept !== null && !this.#isOver) this.#timer ??= setTimeout(() => this.update(), UPDATE_MS);
  }

  [Symbol.dispose](): void {
    this.#isOver = true;
    clearTimeout(this.#timer ?? undefined);
  }

  #begin(machine: Machine, origin: Origin, facts: () => KeptFacts): void {
    const make = (): InstanceRecord | null => {
      const record = machine.record?.();
      return record === undefined ? null : { ...origin, accountId: this.#accountId, ...facts(), machine: record };
    };
    this.#kept = { path: homePaths(join(this.#parts.vmsDirectory, machine.id)).record, make };
  }

  #write(): void {
    const record = this.#isOver ? null : (this.#kept?.make() ?? null);
    if (record === null || this.#kept === null) return;
    writeRecordFile(this.#kept.path, JSON.stringify(record));
  }
}
