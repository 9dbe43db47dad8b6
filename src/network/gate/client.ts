import { isIP } from "node:net";
import type { Accounts } from "../../domain/account/accounts.ts";
import { ApiError } from "../../domain/errors.ts";
import type { NamedHosts } from "../../domain/network.ts";
import type { Log } from "../../log.ts";
import { hasRoute } from "../../system/libc.ts";
import { sleepUnlessAborted, withinTime } from "../../system/waiting.ts";
import { addressBytes } from "../addresses.ts";
import { type Gate, type GateConnection, GateError, type GateRequest, type LookupOptions } from "../gate.ts";
import { HostNetwork } from "../host-network.ts";
import { bypassesProxy, type SiteProxy } from "../site-proxy.ts";
import { GateGoneError, request } from "./connection.ts";
import { CHECKED, type CheckRequest, type Lookup, type ProxyRequest, type Request } from "./messages.ts";
import { type GateHost, type GateProcess, startGateProcess } from "./process.ts";

export interface GateSettings {
  /** name servers, as `setServers` of node:dns takes them; empty for those of the host */
  readonly resolvers: readonly string[];
  /** null when this host reaches the outside by itself */
  readonly proxy: SiteProxy | null;
  /** hosts that are reached without the proxy */
  readonly proxyBypass: NamedHosts;
}

export interface GateOptions extends Omit<GateHost, "launcher"> {
  readonly accounts: Accounts;
  /** host path of the launcher, when it is known */
  readonly launcher: (signal: AbortSignal) => Promise<string>;
  readonly settings: GateSettings;
  readonly log: Log;
  /** the process ends after this time without use, in `milliseconds`; default: two minutes */
  readonly idleMs?: number;
  readonly host?: HostNetwork;
}

const LOCALHOST = ["127.0.0.1", "::1"] as const;
const IDLE_MS = 120_000;
/** Longer than the sum of the process's own limits: for names, addresses, and the site's proxy. */
const CONNECT_MS_MAX = 75_000;
const LOOKUP_MS_MAX = 15_000;
const CHECK_MS_MAX = 20_000;
/** How long a check waits for the process. */
const START_MS_MAX = 3000;
const EXIT_MS_MAX = 1000;
/** The least time between two starts. */
const RESTART_PAUSE_MS = 1000;

/** Runs the process while it is used: from the first connection until some time after the last. */
export class GateClient implements Gate {
  readonly #options: GateOptions;
  readonly #host: HostNetwork;
  #process: Promise<GateProcess> | null = null;
  #running: GateProcess | null = null;
  /** the last process that the daemon stopped */
  #stopped: GateProcess | null = null;
  #startedAt = Number.NEGATIVE_INFINITY;
  #uses = 0;
  #idle: Timer | null = null;
  #ownPorts: readonly number[] = [];
  readonly #over = new AbortController();

  constructor(options: GateOptions) {
    this.#options = options;
    this.#host = options.host ?? new HostNetwork();
  }

  /** pid of the process' launcher; null while there is none */
  get pid(): number | null {
    return this.#running?.pid ?? null;
  }

  residentBytes(): number {
    return this.#running?.residentBytes() ?? 0;
  }

  /** Sets the ports of the daemon's listeners, which cannot be reached through the gate. */
  protectPorts(ports: readonly number[]): void {
    this.#ownPorts = ports;
  }

  async connect(request: GateRequest, signal: AbortSignal): Promise<GateConnection> {
    const { destination, reach, serverName, idleMs } = request;
    const use = this.#use(request.account);
    const proxy = this.#proxyTo(destination.host);
    try {
      const message: Request = {
        op: "connect",
        destination,
        reach,
        serverName,
        idleMs,
        lookup: this.#lookupOf(destination.host, reach.anyAddress),
        own: this.#host.own,
        ownPorts: this.#ownPorts,
        proxy,
      };
      const { connection } = await this.#request(message, CONNECT_MS_MAX, signal);
      connection.isProxied = proxy !== null;
      void connection.ended.then(() => use[Symbol.dispose]());
      return connection;
    } catch (error) {
      use[Symbol.dispose]();
      throw proxy === null && error instanceof GateError ? withRoute(error) : error;
    }
  }

  async resolve(name: string, signal: AbortSignal, options?: LookupOptions): Promise<boolean> {
    try {
      await this.lookup(name, signal, options);
      return true;
    } catch (error) {
      if (error instanceof GateError && error.verdict === "no_such_name") return false;
      throw error;
    }
  }

  async lookup(name: string, signal: AbortSignal, { named = false, account = null }: LookupOptions = {}) {
    if (isIP(name) !== 0) return [name];
    if (this.#proxyTo(name) !== null) return null;
    using _use = this.#use(account);
    const lookup = this.#lookupOf(name, named);
    const { connection, addresses } = await this.#request({ op: "lookup", lookup }, LOOKUP_MS_MAX, signal);
    connection.reset();
    return addresses;
  }

  /** the name servers that are asked, as `setServers` of node:dns takes them */
  get servers(): readonly string[] {
    const { resolvers } = this.#options.settings;
    return resolvers.length > 0 ? resolvers : this.#host.servers;
  }

  /** the site's proxy; null when this host reaches the outside by itself */
  get proxy(): Pick<SiteProxy, "host" | "port"> | null {
    return this.#options.settings.proxy;
  }

  /** Whether a name server gives any answer. @throws GateError when it cannot be asked */
  async nameServerAnswers(server: string): Promise<boolean> {
    return (await this.#check({ server })) === null;
  }

  /** The fault of the site's proxy; null when it accepts requests. @throws GateError when it cannot be asked */
  async proxyFault(): Promise<string | null> {
    const { proxy } = this.#options.settings;
    return proxy === null ? null : await this.#check({ proxy: { ...proxy, lookup: this.#lookupOf(proxy.host, true) } });
  }

  /** The fault of a name server or the proxy. @throws GateError when the process cannot be asked */
  async #check(what: CheckRequest["what"]): Promise<string | null> {
    using _use = this.#use(null);
    await withinTime(this.#started(), START_MS_MAX, () => {
      // The launcher, which also starts this process, is not known before a VMM was chosen.
      throw new GateError("timed_out", "the connecting process has not started");
    });
    try {
      const { connection } = await this.#request({ op: "check", what }, CHECK_MS_MAX, this.#over.signal);
      connection.reset();
      return null;
    } catch (error) {
      if (!(error instanceof GateError)) throw error;
      if (error.verdict === CHECKED.fine) return null;
      if (error.verdict === CHECKED.faulty) return error.message;
      throw error;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#over.abort();
    await this.#stop();
  }

  async #request(message: Request, limitMs: number, signal: AbortSignal) {
    const process = await this.#started();
    try {
      return await request(process.path, message, { limitMs, signal });
    } catch (error) {
      // The process may have ended for another reason than this request; its exit is reported a moment later.
      const isGone =
        error instanceof GateGoneError && (await withinTime(process.exited, EXIT_MS_MAX, () => null)) !== null;
      if (!isGone) throw error;
    }
    this.#forget(process);
    return await request((await this.#started()).path, message, { limitMs, signal });
  }

  #lookupOf(host: string, named: boolean): Lookup {
    // No name server is asked for this name (RFC 6761).
    const hostsFile = host === "localhost" ? LOCALHOST : named ? this.#host.addressesOf(host) : null;
    return { host, servers: this.servers, hostsFile };
  }

  #proxyTo(host: string): ProxyRequest | null {
    const { proxy, proxyBypass } = this.#options.settings;
    if (proxy === null || bypassesProxy(host, proxyBypass)) return null;
    return { ...proxy, lookup: this.#lookupOf(proxy.host, true) };
  }

  /** Counts a use until disposal. @throws GateError `limited` */
  #use(account: string | null): Disposable {
    if (this.#over.signal.aborted) throw new GateError("unreachable", "the daemon stops");
    const place = this.#place(account);
    this.#uses += 1;
    if (this.#idle !== null) clearTimeout(this.#idle);
    this.#idle = null;
    let isUsed = true;
    return {
      [Symbol.dispose]: () => {
        if (!isUsed) return;
        isUsed = false;
        place[Symbol.dispose]();
        this.#uses -= 1;
        if (this.#uses === 0) this.#endLater();
      },
    };
  }

  #place(account: string | null): Disposable {
    try {
      return this.#options.accounts.take(account, "connections");
    } catch (error) {
      throw error instanceof ApiError ? new GateError("limited", error.message) : error;
    }
  }

  #endLater(): void {
    this.#idle = setTimeout(() => void this.#stop(), this.#options.idleMs ?? IDLE_MS);
    this.#idle.unref();
  }

  /** The process; starts it when there is none. @throws GateError `unreachable` when that fails */
  async #started(): Promise<GateProcess> {
    this.#process ??= this.#start();
    return await this.#process;
  }

  async #start(): Promise<GateProcess> {
    const pauseMs = this.#startedAt + RESTART_PAUSE_MS - performance.now();
    if (pauseMs > 0) await sleepUnlessAborted(pauseMs, this.#over.signal);
    this.#startedAt = performance.now();
    try {
      const launcher = await this.#options.launcher(this.#over.signal);
      const process = await startGateProcess({ ...this.#options, launcher });
      this.#running = process;
      void this.#watch(process);
      return process;
    } catch (error) {
      this.#process = null;
      const reason = (error as Error).message;
      throw new GateError("unreachable", `the connecting process cannot be started: ${reason}`);
    }
  }

  /** Releases the resources of a process that has ended by itself. */
  async #watch(process: GateProcess): Promise<void> {
    const { code, signal } = await process.exited;
    // It was stopped.
    if (this.#stopped === process) return;
    this.#forget(process);
    const stderr = process.stderrTail();
    this.#options.log.warn("the connecting process has ended; its connections are lost", { code, signal, stderr });
    await process[Symbol.asyncDispose]();
  }

  /** Returns whether it was the present process. */
  #forget(process: GateProcess): boolean {
    if (this.#running !== process) return false;
    this.#running = null;
    this.#process = null;
    return true;
  }

  async #stop(): Promise<void> {
    if (this.#idle !== null) clearTimeout(this.#idle);
    // A start that is under way ends first.
    const process = await this.#process?.catch(() => null);
    if (process === null || process === undefined || !this.#forget(process)) return;
    this.#stopped = process;
    await process[Symbol.asyncDispose]();
  }
}

/** Distinguishes a host without a route from one that refuses: Bun reports both as refused, and the process cannot ask the kernel. */
function withRoute(error: GateError): GateError {
  const { verdict, addresses } = error;
  if (verdict !== "refused" || addresses.some((address) => hasRoute(addressBytes(address)))) return error;
  return new GateError("unreachable", "no route to it", addresses);
}
