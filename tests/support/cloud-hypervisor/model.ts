import {
  closeSync,
  constants,
  existsSync,
  openSync,
  readFileSync,
  renameSync,
  statSync,
  symlinkSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { join } from "node:path";
import type { Control } from "./control.ts";

/** An answer other than success, with the status in the API description. */
export class Refusal extends Error {
  readonly status: number;

  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

export interface Disk {
  readonly path: string;
  readonly id: string;
  readonly serial?: string;
  readonly readonly?: boolean;
  readonly image_type?: string;
  readonly pci_segment?: number;
}

export interface VmConfig {
  readonly memory: { readonly size: number };
  readonly payload: { readonly kernel: string; readonly initramfs: string };
  readonly serial: { readonly mode: string; readonly socket?: string };
  readonly vsock: { readonly socket: string; readonly cid: number };
  readonly rng: { readonly src: string };
  readonly platform?: { readonly num_pci_segments?: number };
  readonly landlock_enable?: boolean;
  disks?: Disk[];
}

type State = "Created" | "Running" | "Shutdown" | "Paused";
type Answer = { readonly status: number; readonly body?: unknown };

/** Effects of the model on its environment. */
export interface Effects {
  event(source: string, event: string, properties?: Record<string, string>): void;
  openConsole(path: string): Promise<void>;
  openVsock(path: string): Promise<void>;
  closeVsock(): void;
  exit(): void;
  readonly snapshot: Control["snapshot"];
}

const NOT_CREATED = 404;
const WRONG_STATE = 405;
const DONE: Answer = { status: 204 };
const SERIAL_BYTES_MAX = 20;
const SEGMENT_DEVICES_COUNT = 32;
/** Host bridge, rng, vsock and pvpanic of the first segment, and a bridge on each of the others. */
const FIRST_SEGMENT_TAKEN_COUNT = 4;
const SEGMENT_TAKEN_COUNT = 1;
const STATE_FILE = "state.json";
const CONFIG_FILE = "config.json";
const MEMORY_FILE = "memory-ranges";
const ZEROS_BYTES = 8_388_608;

/**
 * The machine of one VMM: which calls are allowed in which state (the prerequisites of docs/api.md), and their effects on
 * files and sockets, which are real.
 */
export class MachineModel {
  readonly #effects: Effects;
  #state: State | null = null;
  #config: VmConfig | null = null;
  readonly #slots = new Map<number, number>();
  #openMemory: number | null = null;
  /** A thread reads all of the memory meanwhile, which may take long. */
  #restoresOnDemand = false;

  constructor(effects: Effects) {
    this.#effects = effects;
  }

  /** The guest and its devices, vsock among them, stand still while it is false. */
  get isRunning(): boolean {
    return this.#state === "Running";
  }

  /** Writes to the memory of a snapshot that it was to forget. */
  misbehave(): void {
    if (this.#openMemory !== null) writeSync(this.#openMemory, "changed", 0);
  }

  /** Ends the machine, if there is one. */
  end(): void {
    if (this.#state === "Running" || this.#state === "Paused") this.#shutdown();
  }

  async call(endpoint: string, body: unknown): Promise<Answer> {
    switch (endpoint) {
      case "vm.create":
        return await this.#create(body as VmConfig);
      case "vm.boot":
        return await this.#boot();
      case "vm.info":
        if (this.#state === null) throw new Refusal(NOT_CREATED, "VM is not created");
        return { status: 200, body: { config: this.#config, state: this.#state, memory_actual_size: 0 } };
      case "vm.pause":
        return this.#move("Running", "Paused", "pausing", "paused");
      case "vm.resume":
        return this.#move("Paused", "Running", "resuming", "resumed");
      case "vm.snapshot":
        return this.#snapshot((body as { destination_url: string }).destination_url);
      case "vm.restore":
        return await this.#restore(body as { source_url: string; memory_restore_mode?: string });
      case "vm.add-disk":
        return this.#addDisk(body as Disk);
      case "vm.remove-device":
        return this.#removeDevice((body as { id: string }).id);
      case "vm.shutdown":
        return this.#shutdown();
      case "vmm.shutdown":
        this.end();
        this.#effects.event("vmm", "shutdown");
        this.#effects.exit();
        return DONE;
      default:
        throw new Refusal(500, `the stand-in does not do ${endpoint}`);
    }
  }

  async #create(config: VmConfig): Promise<Answer> {
    if (this.#state !== null) throw new Refusal(500, "VM is already created");
    this.#config = config;
    await this.#openConsole(config);
    this.#state = "Created";
    return DONE;
  }

  async #openConsole({ serial }: VmConfig): Promise<void> {
    if (serial.mode !== "Socket") return;
    if (serial.socket === undefined) throw new Refusal(400, "a socket without a path");
    await this.#effects.openConsole(serial.socket);
  }

  async #boot(): Promise<Answer> {
    const config = this.#require("Created", "Shutdown");
    this.#effects.event("vm", "booting");
    for (const path of [config.payload.kernel, config.payload.initramfs, config.rng.src]) mustOpen(path, "read");
    await this.#effects.openVsock(config.vsock.socket);
    this.#state = "Running";
    this.#effects.event("vm", "booted");
    return DONE;
  }

  #move(from: State, to: State, before: string, after: string): Answer {
    this.#require(from);
    this.#effects.event("vm", before);
    this.#state = to;
    this.#effects.event("vm", after);
    return DONE;
  }

  #snapshot(url: string): Answer {
    if (this.#restoresOnDemand) throw new Refusal(500, "VM on-demand memory restore is still in progress");
    const config = this.#require("Paused");
    const directory = directoryOf(url);
    this.#effects.event("vm", "snapshotting");
    const create = { flag: "wx" };
    const { snapshot } = this.#effects;
    const unprotected = snapshot === "config" ? { landlock_enable: config.landlock_enable !== true } : {};
    writeFileSync(join(directory, CONFIG_FILE), JSON.stringify({ ...config, ...unprotected }), create);
    writeFileSync(join(directory, STATE_FILE), JSON.stringify({ saved: true }), create);
    if (snapshot === "link") {
      renameSync(join(directory, STATE_FILE), join(directory, "elsewhere"));
      symlinkSync(join(directory, "elsewhere"), join(directory, STATE_FILE));
    }
    // As long as the memory, so that a limit on the length of files applies. It ends with one byte; zeros are written, too.
    const memory = openSync(join(directory, MEMORY_FILE), "wx");
    writeSync(memory, new Uint8Array(ZEROS_BYTES), 0);
    writeSync(memory, Uint8Array.of(1), 0, 1, config.memory.size - (snapshot === "large" ? 0 : 1));
    if (snapshot === "open") this.#openMemory = memory;
    else closeSync(memory);
    this.#effects.event("vm", "snapshotted");
    return DONE;
  }

  async #restore({ source_url, memory_restore_mode }: { source_url: string; memory_restore_mode?: string }) {
    if (this.#state !== null) throw new Refusal(NOT_CREATED, "VM is already created");
    const directory = directoryOf(source_url);
    const config = JSON.parse(readFileSync(join(directory, CONFIG_FILE), "utf8")) as VmConfig;
    JSON.parse(readFileSync(join(directory, STATE_FILE), "utf8"));
    this.#effects.event("vm", "restoring");
    if (statSync(join(directory, MEMORY_FILE)).size !== config.memory.size) throw new Refusal(500, "torn memory");
    this.#restoresOnDemand = memory_restore_mode === "OnDemand";
    mustOpen(config.payload.initramfs, "read");
    for (const disk of config.disks ?? []) this.#plug(config, disk);
    this.#config = config;
    await this.#openConsole(config);
    await this.#effects.openVsock(config.vsock.socket);
    this.#state = "Paused";
    this.#effects.event("vm", "restored");
    return DONE;
  }

  #addDisk(disk: Disk): Answer {
    const config = this.#require("Created", "Running", "Paused");
    if (disk.serial !== undefined && disk.serial.length > SERIAL_BYTES_MAX) throw new Refusal(400, "serial too long");
    if (disk.image_type !== "Raw") throw new Refusal(400, "only raw disks are meant to be attached");
    const disks = config.disks ?? [];
    if (disks.some(({ id }) => id === disk.id)) throw new Refusal(409, `${disk.id} exists`);
    const slot = this.#plug(config, disk);
    config.disks = [...disks, disk];
    if (this.#state === "Created") return DONE;
    return { status: 200, body: { id: disk.id, bdf: `000${disk.pci_segment ?? 0}:00:${slot}.0` } };
  }

  /** Returns the slot of a disk on its PCI segment, in hexadecimal. */
  #plug(config: VmConfig, disk: Disk): string {
    mustOpen(disk.path, disk.readonly === true ? "read" : "write");
    const segment = disk.pci_segment ?? 0;
    if (segment >= (config.platform?.num_pci_segments ?? 1)) throw new Refusal(400, `no PCI segment ${segment}`);
    const usedCount = this.#slots.get(segment) ?? (segment === 0 ? FIRST_SEGMENT_TAKEN_COUNT : SEGMENT_TAKEN_COUNT);
    if (usedCount >= SEGMENT_DEVICES_COUNT) throw new Refusal(500, "no device slot on the PCI bus");
    this.#slots.set(segment, usedCount + 1);
    return usedCount.toString(16).padStart(2, "0");
  }

  #removeDevice(id: string): Answer {
    const config = this.#require("Running", "Paused");
    const disks = config.disks ?? [];
    if (!disks.some((disk) => disk.id === id)) throw new Refusal(NOT_CREATED, `no device ${id}`);
    config.disks = disks.filter((disk) => disk.id !== id);
    return DONE;
  }

  #shutdown(): Answer {
    this.#require("Running", "Paused");
    this.#effects.closeVsock();
    this.#state = "Shutdown";
    this.#effects.event("vm", "shutdown");
    return DONE;
  }

  #require(...states: State[]): VmConfig {
    if (this.#state === null || this.#config === null) throw new Refusal(NOT_CREATED, "VM is not created");
    if (!states.includes(this.#state)) throw new Refusal(WRONG_STATE, `VM is ${this.#state}`);
    return this.#config;
  }
}

function directoryOf(url: string): string {
  if (!url.startsWith("file://")) throw new Refusal(500, `could not extract a path from ${url}`);
  const path = url.slice("file://".length);
  if (!existsSync(path) || !statSync(path).isDirectory()) throw new Refusal(500, `${path} is not a directory`);
  return path;
}

function mustOpen(path: string, mode: "read" | "write"): void {
  closeSync(openSync(path, mode === "read" ? constants.O_RDONLY : constants.O_RDWR));
}
