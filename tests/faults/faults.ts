import { writeFile } from "node:fs/promises";
import { createConnection, type Socket } from "node:net";
import type { Appliance } from "../support/appliance/appliance.ts";
import type { SmallDisk } from "../support/appliance/small-disk.ts";
import { pause } from "../support/waiting.ts";
import type { Random } from "./load.ts";

const HOUR_SECONDS = 3600;
const FULL_MS_MAX = 4000;
const SLOW_CLIENTS_COUNT = 20;
/** A slow client leaves after at most this time, in any state. */
const SLOW_MS_MAX = 5000;

export interface FaultOptions {
  readonly appliance: Appliance;
  readonly disk: SmallDisk;
  readonly random: Random;
  /** file with the offset of the clock that the daemon sees */
  readonly clockFile: string;
  /** an image and a path in it, for slow readers */
  readonly readable: () => string;
}

/** The faults of a host, one at a time. */
export class Faults {
  readonly #options: FaultOptions;
  readonly #slow = new Set<Socket>();
  /** number of faults of each kind */
  readonly counts: Record<string, number> = {};

  constructor(options: FaultOptions) {
    this.#options = options;
  }

  /** Kills of the daemon and of monitors. */
  get kills(): number {
    return (this.counts["kill daemon"] ?? 0) + (this.counts["kill monitor"] ?? 0);
  }

  /** Causes one fault and ends it; returns its name. */
  async one(): Promise<string> {
    const { random } = this.#options;
    const faults: readonly [string, number, () => Promise<boolean>][] = [
      ["kill daemon", 5, () => this.#killDaemon()],
      ["kill monitor", 6, () => this.#killMonitor()],
      ["restart", 1, () => this.#restart()],
      ["full disk", 2, () => this.#fillDisk()],
      ["clock", 1, () => this.#moveClock()],
      ["slow clients", 2, () => this.#slowClients()],
    ];
    const all = faults.flatMap((fault) => Array<typeof fault>(fault[1]).fill(fault));
    const [name, , inject] = all[random.below(all.length)] as (typeof faults)[number];
    if (await inject()) this.counts[name] = (this.counts[name] ?? 0) + 1;
    return name;
  }

  /** Ends the effects of all faults. */
  async end(): Promise<void> {
    for (const socket of this.#slow) socket.destroy();
    await this.#options.disk.release();
    await writeFile(this.#options.clockFile, "+0");
  }

  async #killDaemon(): Promise<boolean> {
    const { appliance, disk, random } = this.#options;
    const isFull = random.below(5) === 0;
    if (isFull) await disk.fill(0);
    await pause("it is killed at any time", random.below(300));
    await appliance.down("SIGKILL");
    if (isFull) await disk.release();
    await appliance.up();
    return true;
  }

  async #restart(): Promise<boolean> {
    await this.#options.appliance.down("SIGTERM");
    await this.#options.appliance.up();
    return true;
  }

  /** Kills any monitor: one that runs a command, indexes an import, waits in the pool, or boots a template. */
  async #killMonitor(): Promise<boolean> {
    const pids = await this.#options.appliance.machinePids();
    const pid = pids[this.#options.random.below(Math.max(1, pids.length))];
    if (pid === undefined) return false;
    try {
      process.kill(pid, "SIGKILL");
      return true;
    } catch (error) {
      // It has ended by itself.
      if ((error as NodeJS.ErrnoException).code !== "ESRCH") throw error;
      return false;
    }
  }

  async #fillDisk(): Promise<boolean> {
    const { disk, random } = this.#options;
    await disk.fill(random.below(2) === 0 ? 0 : random.below(32) * 1_048_576);
    await pause("the disk stays full", random.below(FULL_MS_MAX));
    await disk.release();
    return true;
  }

  /** Moves the clock by up to two hours, forwards or back. */
  async #moveClock(): Promise<boolean> {
    const { clockFile, random } = this.#options;
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
      `GET /v1/inspect/${readable()}/archive?path=/ HTTP/1.1\r\n${head}\r\n`,
      `GET /v1/images/${readable()}/save HTTP/1.1\r\n${head}\r\n`,
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
