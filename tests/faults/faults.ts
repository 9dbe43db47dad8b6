import { writeFile } from "node:fs/promises";
import { createConnection, type Socket } from "node:net";
import type { Appliance } from "../support/appliance/appliance.ts";
import type { SmallDisk } from "../support/appliance/small-disk.ts";
import { pause } from "../support/waiting.ts";
import { gatePids, instanceOf, kill, killCopier } from "./kills.ts";
import type { Random } from "./load.ts";

const HOUR_SECONDS = 3600;
const FULL_MS_MAX = 4000;
/** Longest wait for a program that lives for a moment. */
const HUNT_MS_MAX = 5000;
const SLOW_CLIENTS_COUNT = 20;
/** A slow client leaves after at most this time, in any state. */
const SLOW_MS_MAX = 5000;

/** A fault, and how often it happens, relative to the others. */
export type Weights = Partial<Record<FaultName, number>>;
type FaultName =
  | "kill daemon"
  | "abort daemon"
  | "kill monitor"
  | "kill gate"
  | "kill copier"
  | "restart"
  | "full disk"
  | "clock"
  | "slow clients";

/** The faults of a host on which no machine needs to outlive them. */
export const ALL_AT_ONCE: Weights = {
  ...{ "kill daemon": 5, "kill monitor": 6, "kill gate": 1, restart: 1, "full disk": 2, clock: 1, "slow clients": 2 },
};

export interface FaultOptions {
  readonly appliance: Appliance;
  readonly random: Random;
  readonly weights: Weights;
  /** the disk of the data directory */
  readonly disk?: SmallDisk;
  /** file with the offset of the clock that the daemon sees */
  readonly clockFile?: string;
  /** an image, for slow readers */
  readonly readable?: string;
  /** called before the daemon ends */
  readonly onOutage?: () => void;
  /** called before the process that connects to the outside is killed */
  readonly onGate?: () => void;
  /** called before a monitor is killed, with the instance whose machine it runs; null: none that is known */
  readonly onMonitor?: (instance: string | null) => void;
}

/** The faults of a host, one at a time. */
export class Faults {
  readonly #options: FaultOptions;
  readonly #slow = new Set<Socket>();
  /** number of faults of each kind */
  readonly counts: Partial<Record<FaultName, number>> = {};

  constructor(options: FaultOptions) {
    this.#options = options;
  }

  /** Kills of processes. */
  get kills(): number {
    const kills = Object.entries(this.counts).filter(([name]) => name.startsWith("kill") || name.startsWith("abort"));
    return kills.reduce((sum, [, count]) => sum + count, 0);
  }

  /** Ends of the daemon, wanted or not. */
  get outages(): number {
    const { "kill daemon": killed = 0, "abort daemon": aborted = 0, restart = 0 } = this.counts;
    return killed + aborted + restart;
  }

  /** Causes one fault and ends it; returns its name. */
  async one(): Promise<FaultName> {
    const { random, weights } = this.#options;
    const inject: Readonly<Record<FaultName, () => Promise<boolean>>> = {
      "kill daemon": () => this.#killDaemon("SIGKILL"),
      "abort daemon": () => this.#killDaemon("SIGABRT"),
      "kill monitor": () => this.#killMonitor(),
      "kill gate": () => this.#killGate(),
      "kill copier": () => killCopier(this.#options.appliance, HUNT_MS_MAX),
      restart: () => this.#restart(),
      "full disk": () => this.#fillDisk(),
      clock: () => this.#moveClock(),
      "slow clients": () => this.#slowClients(),
    };
    const all = Object.entries(weights).flatMap(([name, count]) => Array<FaultName>(count).fill(name as FaultName));
    const name = all[random.below(all.length)] as FaultName;
    if (await inject[name]()) this.counts[name] = (this.counts[name] ?? 0) + 1;
    return name;
  }

  /** Ends the effects of all faults. */
  async end(): Promise<void> {
    for (const socket of this.#slow) socket.destroy();
    const { disk, clockFile } = this.#options;
    await disk?.release();
    if (clockFile !== undefined) await writeFile(clockFile, "+0");
  }

  async #killDaemon(signal: "SIGKILL" | "SIGABRT"): Promise<boolean> {
    const { appliance, disk, random, onOutage } = this.#options;
    const isFull = random.below(5) === 0;
    if (isFull) await disk?.fill(0);
    await pause("it is killed at any time", random.below(300));
    onOutage?.();
    await appliance.down(signal);
    if (isFull) await disk?.release();
    await appliance.up();
    return true;
  }

  async #restart(): Promise<boolean> {
    const { appliance, onOutage } = this.#options;
    onOutage?.();
    await appliance.down("SIGTERM");
    await appliance.up();
    return true;
  }

  async #killGate(): Promise<boolean> {
    const { appliance, random, onGate } = this.#options;
    const pids = await gatePids(appliance);
    const pid = pids[random.below(Math.max(1, pids.length))];
    onGate?.();
    return pid !== undefined && kill(pid);
  }

  /** Kills any monitor: one that runs a command, indexes an import, waits in the pool, or boots a template. */
  async #killMonitor(): Promise<boolean> {
    const { appliance, random, onMonitor } = this.#options;
    const pids = await appliance.machinePids();
    const pid = pids[random.below(Math.max(1, pids.length))];
    if (pid === undefined) return false;
    onMonitor?.(await instanceOf(appliance, pid));
    return kill(pid);
  }

  async #fillDisk(): Promise<boolean> {
    const { disk, random } = this.#options;
    if (disk === undefined) return false;
    await disk.fill(random.below(2) === 0 ? 0 : random.below(32) * 1_048_576);
    await pause("the disk stays full", random.below(FULL_MS_MAX));
    await disk.release();
    return true;
  }

  /** Moves the clock by up to two hours, forwards or back. */
  async #moveClock(): Promise<boolean> {
    const { clockFile, random } = this.#options;
    if (clockFile === undefined) return false;
    // Never before the start: a token is not valid before it was issued.
    await writeFile(clockFile, `+${random.below(3) * HOUR_SECONDS}`);
    return true;
  }

  /** Clients with half a request, a slow body, or a download that they do not read. Each leaves at any time. */
  async #slowClients(): Promise<boolean> {
    const { appliance, random, readable } = this.#options;
    const { hostname, port } = new URL(appliance.url);
    const head = `Host: x\r\nAuthorization: Bearer ${appliance.token}\r\n`;
    const requests = [
      "GET /v1/oper",
      `GET /v1/operations HTTP/1.1\r\nHost: x\r\nAuthor`,
      `POST /v1/files HTTP/1.1\r\n${head}Content-Length: 1000000\r\n\r\nsome`,
      `POST /v1/instances HTTP/1.1\r\n${head}Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"image":`,
      `GET /v1/inspect/${readable}/archive?path=/ HTTP/1.1\r\n${head}\r\n`,
      `GET /v1/images/${readable}/save HTTP/1.1\r\n${head}\r\n`,
      `GET /v1/operations/${Bun.randomUUIDv7()}?wait=60 HTTP/1.1\r\n${head}\r\n`,
    ];
    for (let count = 0; count < SLOW_CLIENTS_COUNT; count++) {
      const socket = createConnection({ host: hostname, port: Number(port) });
      this.#slow.add(socket);
      // The daemon may be killed during the connection, and no process reads.
      socket.on("error", () => undefined).on("close", () => this.#slow.delete(socket));
      socket.pause();
      socket.write(requests[random.below(requests.length)] ?? "");
      void pause("the client stays", random.below(SLOW_MS_MAX)).then(() => socket.destroy());
    }
    return true;
  }
}
