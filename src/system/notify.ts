import { closeSync } from "node:fs";
import { sendDatagram, unixDatagramSocket } from "./unix-sockets.ts";

/** Number of watchdog messages in the time after which the service manager considers the service dead. */
const BEATS_PER_TIMEOUT_COUNT = 3;

export interface ServiceManagerOptions {
  /** NOTIFY_SOCKET: a path, or "@" and an abstract name; undefined: there is no service manager */
  readonly socket: string | undefined;
  /** WATCHDOG_USEC, in `microseconds` */
  readonly watchdogUs: string | undefined;
  /** WATCHDOG_PID: the process that the watchdog watches */
  readonly watchdogPid: string | undefined;
  /** called when a message cannot be sent; the service continues */
  readonly onError: (error: unknown) => void;
}

/** Reports the state of the service to a service manager (sd_notify(3)). Does nothing without one. */
export class ServiceManager implements Disposable {
  readonly #socket: string | undefined;
  readonly #onError: (error: unknown) => void;
  readonly #intervalMs: number | null;
  #fd: number | null = null;
  #timer: NodeJS.Timeout | null = null;

  constructor({ socket, watchdogUs, watchdogPid, onError }: ServiceManagerOptions) {
    this.#socket = socket;
    this.#onError = onError;
    const us = Number(watchdogUs ?? Number.NaN);
    const isOurs = watchdogPid === undefined || Number(watchdogPid) === process.pid;
    this.#intervalMs = isOurs && Number.isFinite(us) && us > 0 ? us / 1000 / BEATS_PER_TIMEOUT_COUNT : null;
  }

  /** Reports that the service is ready, and from then on sends watchdog messages while `isAlive` returns true. */
  ready(status: string, isAlive: () => boolean): void {
    this.#send(`READY=1\nSTATUS=${oneLine(status)}`);
    if (this.#intervalMs === null) return;
    this.#timer = setInterval(() => {
      if (isAlive()) this.#send("WATCHDOG=1");
    }, this.#intervalMs);
  }

  /** Reports that the service is stopping, and ends the watchdog: the time limit of the stop applies from now on. */
  stopping(): void {
    this.#stopWatchdog();
    this.#send("STOPPING=1\nSTATUS=stopping");
  }

  [Symbol.dispose](): void {
    this.#stopWatchdog();
    if (this.#fd !== null) closeSync(this.#fd);
    this.#fd = null;
  }

  #stopWatchdog(): void {
    if (this.#timer !== null) clearInterval(this.#timer);
    this.#timer = null;
  }

  #send(message: string): void {
    if (this.#socket === undefined) return;
    try {
      this.#fd ??= unixDatagramSocket();
      sendDatagram(this.#fd, this.#socket, Buffer.from(message));
    } catch (error) {
      this.#onError(error);
    }
  }
}

function oneLine(text: string): string {
  return text.replaceAll("\n", " ");
}
