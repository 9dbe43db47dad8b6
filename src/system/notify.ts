import { closeSync } from "node:fs";
import { sendDatagram, unixDatagramSocket } from "./unix-sockets.ts";

/** Beats in the time after which the service manager takes the service for dead. */
const BEATS_PER_TIMEOUT_COUNT = 3;

export interface ServiceManagerOptions {
  /** NOTIFY_SOCKET: path, or "@" and an abstract name; absent: nobody is told */
  readonly socket: string | undefined;
  /** WATCHDOG_USEC, in `microseconds` */
  readonly watchdogUs: string | undefined;
  /** WATCHDOG_PID: the process that the watchdog is meant for */
  readonly watchdogPid: string | undefined;
  /** called for what could not be told; the service goes on without */
  readonly onError: (error: unknown) => void;
}

/** Tells a service manager how the service is (sd_notify(3)); does nothing without one. */
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

  /** The service works. From now on it shows that it still does, for as long as `isAlive` says so. */
  ready(status: string, isAlive: () => boolean): void {
    this.#send(`READY=1\nSTATUS=${oneLine(status)}`);
    if (this.#intervalMs === null) return;
    this.#timer = setInterval(() => {
      if (isAlive()) this.#send("WATCHDOG=1");
    }, this.#intervalMs);
  }

  /** From now on it is the stop that has a time limit. */
  stopping(): void {
    this.#beatNoMore();
    this.#send("STOPPING=1\nSTATUS=stopping");
  }

  [Symbol.dispose](): void {
    this.#beatNoMore();
    if (this.#fd !== null) closeSync(this.#fd);
    this.#fd = null;
  }

  #beatNoMore(): void {
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
