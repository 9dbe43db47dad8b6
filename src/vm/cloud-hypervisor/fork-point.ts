import { writeSync } from "node:fs";
import { mkdir, open, readFile, rename, rm, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { type Static, Type } from "@sinclair/typebox";
import { PROTOCOL_VERSION } from "../agent/protocol.ts";
import { forkManifest, isZero, readForkFile, readForkManifest, type SavedFile, writeForkFiles } from "../fork-files.ts";
import { hashOf, hostProcessor } from "../host-processor.ts";
import { hasLandlock } from "../jail/landlock.ts";
import { textOf } from "../jail/machine-files.ts";
import { DamagedMemoryError, NotResumableError, VmmError } from "../machine-end.ts";
import { UseCount } from "../use-count.ts";
import type { ForkPoint, MachineRecord, MachineShape } from "../vmm.ts";
import { buildDiskConfig, buildVmConfig, JAIL_DIRECTORY } from "./config.ts";
import {
  type MachinePlace,
  makeHoles,
  placeSnapshot,
  removeSnapshot,
  STATE_BYTES_MAX,
  takeSnapshot,
} from "./snapshot.ts";

const CONFIG = "config.json";
const STATE = "state.json";
const MEMORY = "memory-ranges";
const FILE_MODE = 0o444;
/** Length of a configuration with all disks, in characters; one disk has some hundred. */
const CONFIG_TEXT_MAX = 524_288;

const manifest = Type.Composite([
  forkManifest,
  Type.Object({
    origin: Type.Object({
      cloudHypervisor: Type.String({ maxLength: 100 }),
      processor: Type.String({ maxLength: 200 }),
      /** hash of everything else that defines the machine */
      machine: Type.String({ maxLength: 100 }),
      agentProtocol: Type.Integer(),
    }),
    disks: Type.Array(
      Type.Object({ serial: Type.String({ pattern: "^[A-Z0-9]{1,20}$" }), node: Type.String({ maxLength: 64 }) }),
      { maxItems: 1024 },
    ),
    slotsCount: Type.Integer({ minimum: 0, maximum: 1024 }),
    config: Type.String({ maxLength: CONFIG_TEXT_MAX }),
  }),
]);
type Origin = Static<typeof manifest>["origin"];

/** The parts of a machine's record that belong to its memory. */
type ForkedRecord = Pick<MachineRecord, "version" | "disks" | "nextLun">;

interface ForkPointParts {
  readonly directory: string;
  readonly shape: MachineShape;
  readonly record: ForkedRecord;
  readonly pausedMs: number;
  readonly copiedBytes: number;
  /** size of the state of the devices */
  readonly stateBytes: number;
  /** resolves when zeros of the memory are holes, which may take seconds; default: they are */
  readonly holes?: Promise<void>;
}

/** A fork point of Cloud Hypervisor: a snapshot in a directory of its own, whose files no longer change. */
export class CloudHypervisorForkPoint implements ForkPoint {
  readonly shape: MachineShape;
  readonly record: ForkedRecord;
  /** The memory lies on the disk, and each copy has its own. */
  readonly memoryBytes = 0;
  readonly released: Promise<void>;
  readonly pausedMs: number;
  readonly copiedBytes: number;
  readonly savedBytes: number;
  readonly #directory: string;
  readonly #holes: Promise<void>;
  readonly #uses = new UseCount();
  #isGone = false;

  private constructor({ directory, shape, record, pausedMs, copiedBytes, stateBytes, holes }: ForkPointParts) {
    this.#directory = directory;
    this.shape = shape;
    this.record = record;
    this.pausedMs = pausedMs;
    this.copiedBytes = copiedBytes;
    this.savedBytes = shape.memoryBytes + stateBytes;
    this.#holes = holes ?? Promise.resolve();
    this.released = this.#uses.released.then(() => this.#remove());
  }

  /**
   * Takes over the snapshot that the VMM of a running machine has written to `directory`.
   * @throws VmmError when it is not the snapshot of this machine
   */
  static async take({
    directory,
    vmsDirectory,
    ...parts
  }: Omit<ForkPointParts, "copiedBytes" | "stateBytes" | "holes"> & {
    readonly vmsDirectory: string;
  }): Promise<CloudHypervisorForkPoint> {
    const { shape, record } = parts;
    await takeSnapshot(directory, shape.memoryBytes);
    requireConfig(await readFile(join(directory, CONFIG), "utf8"), shape, record.disks);
    const own = join(vmsDirectory, Bun.randomUUIDv7());
    await rename(directory, own);
    const { size: stateBytes } = await stat(join(own, STATE));
    // The caller holds the guest's stream until this returns.
    const holes = makeHoles(own);
    const sizes = { copiedBytes: shape.memoryBytes, stateBytes };
    return new CloudHypervisorForkPoint({ ...parts, directory: own, ...sizes, holes });
  }

  /** Reads what `save` wrote. @param version of the host's program @throws NotResumableError */
  static async load(from: string, vmsDirectory: string, version: string): Promise<CloudHypervisorForkPoint> {
    const saved = await checkFork(from, version);
    const { shape, config, disks, slotsCount } = saved;
    const directory = join(vmsDirectory, Bun.randomUUIDv7());
    await mkdir(directory, { mode: 0o700 });
    await using undo = new AsyncDisposableStack();
    undo.defer(() => removeSnapshot(directory));
    await writeFile(join(directory, CONFIG), config, { mode: FILE_MODE, flag: "wx" });
    await loadFile(from, "state", { saved: saved.state, bytesMax: STATE_BYTES_MAX }, join(directory, STATE));
    await loadFile(from, "memory", { saved: saved.memory, bytesMax: shape.memoryBytes }, join(directory, MEMORY));
    undo.move();
    const record = { version, disks, nextLun: slotsCount };
    const { sizeBytes: stateBytes } = saved.state;
    return new CloudHypervisorForkPoint({ directory, shape, record, pausedMs: 0, copiedBytes: 0, stateBytes });
  }

  /** Counts a copy, until the result is disposed of. @throws Error after disposal */
  use(): Disposable {
    if (this.#isGone) throw new Error("the saved machine is gone");
    return this.#uses.use();
  }

  /** Links the snapshot into the directory of a copy's VMM. */
  async placeIn(machine: MachinePlace): Promise<void> {
    await this.#holes;
    await placeSnapshot(this.#directory, machine);
  }

  async save(directory: string): Promise<void> {
    using _used = this.use();
    const config = await readFile(join(this.#directory, CONFIG), "utf8");
    await using memory = await open(join(this.#directory, MEMORY), "r");
    await using state = await open(join(this.#directory, STATE), "r");
    const { shape, record } = this;
    const origin = originOf(shape, record.version);
    await writeForkFiles(directory, "cloud-hypervisor", {
      ...{ origin, shape, disks: record.disks, slotsCount: record.nextLun, config },
      memory: { fd: memory.fd, sizeBytes: (await memory.stat()).size },
      state: { fd: state.fd, sizeBytes: (await state.stat()).size },
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#isGone = true;
    this.#uses.leave();
    if (!this.#uses.isInUse) await this.released;
  }

  async #remove(): Promise<void> {
    await this.#holes;
    await rm(this.#directory, { recursive: true, force: true });
  }
}

/**
 * Compares a saved fork point with this host, without reading its memory.
 * @param version of the host's program
 * @throws NotResumableError
 */
export async function checkFork(directory: string, version: string): Promise<Static<typeof manifest>> {
  const saved = await readForkManifest(directory, "cloud-hypervisor", manifest);
  const { shape, origin, config, disks } = saved;
  const reason = difference(origin, originOf(shape, version));
  if (reason !== null) throw new NotResumableError(reason);
  try {
    requireConfig(config, shape, disks);
  } catch (cause) {
    throw new DamagedMemoryError("the description of its memory is missing or damaged", { cause });
  }
  return saved;
}

/** Copies a file of a saved fork point to `path`; zeros become holes. */
async function loadFile(
  directory: string,
  file: "memory" | "state",
  limits: { readonly saved: SavedFile; readonly bytesMax: number },
  path: string,
): Promise<void> {
  await using target = await open(path, "wx", FILE_MODE);
  await readForkFile(directory, file, limits, (chunk, offset) => {
    if (!isZero(chunk)) writeSync(target.fd, chunk, 0, chunk.byteLength, offset);
  });
  await target.truncate(limits.saved.sizeBytes);
}

/** The origin of a fork point that is saved here, and of those that can be loaded here. */
function originOf(shape: MachineShape, version: string): Origin {
  const config = [buildVmConfig(shape, hasLandlock()), buildDiskConfig("L00", true, 0), buildDiskConfig("S", false, 1)];
  const machine = hashOf(config.map((part) => JSON.stringify(part)));
  return { cloudHypervisor: version, processor: hostProcessor(), machine, agentProtocol: PROTOCOL_VERSION };
}

/** Why a fork point cannot be loaded; null when it can. */
function difference(saved: Origin, here: Origin): string | null {
  if (saved.cloudHypervisor !== here.cloudHypervisor) {
    return `Cloud Hypervisor v${saved.cloudHypervisor} saved its memory, and this host has v${here.cloudHypervisor}`;
  }
  if (saved.processor !== here.processor) return "its memory was saved on a host with another processor";
  if (saved.agentProtocol !== here.agentProtocol) {
    return `its agent speaks version ${saved.agentProtocol} of the protocol, and this release speaks ${here.agentProtocol}`;
  }
  if (saved.machine !== here.machine) return "its memory was saved by a release with other virtual machines";
  return null;
}

/**
 * Checks the configuration in a snapshot. The VMM that wrote it may be in the power of its guest, and those of the copies
 * follow it.
 * @throws VmmError when it lacks a protection, or has other disks than the machine
 */
function requireConfig(text: string, shape: MachineShape, disks: MachineRecord["disks"]): void {
  const config = parseConfig(text);
  const { cpus, memory, landlock_enable: landlock } = config;
  const isShape = cpus?.["boot_vcpus"] === shape.vcpus && memory?.["size"] === shape.memoryBytes;
  const isProtected = cpus?.["nested"] === false && landlock === hasLandlock();
  const places = (config.disks ?? []).map((disk) => `${textOf(disk?.["id"])} ${textOf(disk?.["path"])}`);
  const expected = disks.map(({ serial, node }) => `${node} ${JAIL_DIRECTORY}/${serial}`);
  const hasDisks = places.sort().join("\n") === expected.sort().join("\n");
  if (!isShape || !isProtected || !hasDisks) throw new VmmError("the snapshot is not one of this machine");
}

type Fields = Readonly<Record<string, unknown>> | undefined;
interface SnapshotConfig {
  readonly cpus?: Fields;
  readonly memory?: Fields;
  readonly landlock_enable?: unknown;
  readonly disks?: readonly Fields[];
}

function parseConfig(text: string): SnapshotConfig {
  if (text.length > CONFIG_TEXT_MAX) throw new VmmError("the configuration in the snapshot is too long");
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    throw new VmmError("the configuration in the snapshot is not JSON", { cause });
  }
  const { disks } = (typeof value === "object" && value !== null ? value : {}) as SnapshotConfig;
  return { ...(value as SnapshotConfig | null), disks: Array.isArray(disks) ? disks : [] };
}
