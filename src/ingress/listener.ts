import type { Socket } from "bun";
import { Shares } from "../domain/account/shares.ts";
import type { Log } from "../log.ts";
import { withinTime } from "../system/waiting.ts";
import { type ServeOptions, serve } from "./client.ts";
import { ClientSocket } from "./client-socket.ts";
import { TIMES, type Times } from "./times.ts";
import type { Upstream } from "./upstream.ts";

/** Connections of all clients. One address gets at most half of those that others leave, so that all find room. */
const CONNECTIONS_COUNT_MAX = 4096;
/** Grace period for requests when the listener is disposed, in `milliseconds`. */
const GRACE_MS_DEFAULT = 2000;

export interface IngressOptions {
  readonly host: string;
  /** 0: any free port */
  readonly port: number;
  /** paths of PEM files */
  readonly tls?: { readonly cert: string; readonly key: string };
  /** whether a reverse proxy is in front, whose X-Forwarded fields are true */
  readonly isBehindProxy: boolean;
  readonly upstream: Upstream;
  readonly log: Log;
  /** connections of all clients at a time; default: 4096 */
  readonly connectionsMax?: number;
  /** default: TIMES */
  readonly times?: Partial<Times>;
}

/** A listener for requests from outside to ports of sandboxes; disposal stops it. */
export class IngressListener implements AsyncDisposable {
  readonly #server: { readonly port: number; stop(closesConnections?: boolean): void };
  readonly #options: IngressOptions;
  readonly #times: Times;
  readonly #stopping = new AbortController();
  readonly #shares: Shares;
  readonly #serving = new Map<ClientSocket, Promise<void>>();
  /** clients without a request, those that have waited longest first */
  readonly #idle = new Set<ClientSocket>();

  /** Starts to listen. @throws Error with a `code` such as EADDRINUSE or EACCES */
  constructor(options: IngressOptions) {
    this.#options = options;
    this.#shares = new Shares({ total: options.connectionsMax ?? CONNECTIONS_COUNT_MAX });
    this.#times = { ...TIMES, ...options.times };
    const { host, port, tls } = options;
    this.#server = Bun.listen<ClientSocket>({
      hostname: host,
      port,
      ...(tls === undefined ? {} : { tls: { cert: Bun.file(tls.cert), key: Bun.file(tls.key) } }),
      socket: { ...ClientSocket.handlers, open: (socket) => this.#open(socket) },
    });
  }

  get port(): number {
    return this.#server.port;
  }

  /** Number of connections of clients. */
  get clientsCount(): number {
    return this.#serving.size;
  }

  /** Accepts no more connections, lets requests finish for `graceMs`, and then closes the remaining connections. */
  async stop(graceMs: number): Promise<void> {
    this.#stopping.abort();
    this.#server.stop();
    for (const client of this.#idle) client.reset();
    await withinTime(Promise.all(this.#serving.values()), graceMs, () => undefined);
    for (const client of this.#serving.keys()) client.reset();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop(GRACE_MS_DEFAULT);
  }

  #open(socket: Socket<ClientSocket>): void {
    const client = new ClientSocket(socket, this.#times.stallMs);
    socket.data = client;
    const use = this.#use(client);
    if (use === null) {
      client.reset();
      return;
    }
    client.gone.addEventListener("abort", () => use[Symbol.dispose](), { once: true });
    const { upstream, log, tls, isBehindProxy } = this.#options;
    const options: ServeOptions = {
      upstream,
      log,
      isTls: tls !== undefined,
      isBehindProxy,
      times: this.#times,
      idle: (waiting) => this.#wait(waiting),
      stopping: this.#stopping.signal,
    };
    const served = serve(client, options).then(() => void this.#serving.delete(client));
    this.#serving.set(client, served);
  }

  /** A connection's share; closes one without a request if there is no other way. */
  #use(client: ClientSocket): Disposable | null {
    // All connections of a reverse proxy have its address.
    const owner = this.#options.isBehindProxy ? null : ownerOf(client.address);
    const take = () => this.#shares.take(owner);
    const idle = () => [...this.#idle];
    const first = take();
    if (first !== null) return first;
    idle()
      .find(({ address }) => ownerOf(address) === owner)
      ?.reset();
    const second = take();
    if (second !== null || (owner !== null && this.#shares.heldBy(owner) > 0)) return second;
    idle()[0]?.reset();
    return take();
  }

  #wait(client: ClientSocket): Disposable {
    this.#idle.add(client);
    return { [Symbol.dispose]: () => void this.#idle.delete(client) };
  }
}

/** The owner of an address: an IPv6 network of 64 bits belongs to one client. */
export function ownerOf(address: string): string {
  if (!address.includes(":")) return address;
  const plain = /^::ffff:([0-9.]+)$/i.exec(address)?.[1];
  return plain ?? `${expanded(address).slice(0, 4).join(":")}::`;
}

function expanded(address: string): string[] {
  const [head = "", tail] = address.split("::");
  const groups = (text: string) => (text === "" ? [] : text.split(":"));
  const [first, last] = [groups(head), groups(tail ?? "")];
  return [...first, ...Array<string>(Math.max(0, 8 - first.length - last.length)).fill("0"), ...last];
}
