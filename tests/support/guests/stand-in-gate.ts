import {
  type Gate,
  type GateConnection,
  type GateEnd,
  GateError,
  type GateRequest,
  type GateVerdict,
} from "../../../src/network/gate.ts";

/** An outer connection whose far end is the test. */
export class OuterConnection implements GateConnection {
  readonly request: GateRequest;
  readonly address = "203.0.113.5";
  readonly isProxied: boolean;
  /** bytes that the guest has sent */
  readonly written: Buffer[] = [];
  hasEnded = false;
  wasReset = false;
  /** while it is pending, the far end reads no more bytes */
  full: Promise<void> = Promise.resolve();
  readonly #inbox: Uint8Array[] = [];
  readonly #ended = Promise.withResolvers<GateEnd>();
  #changed = Promise.withResolvers<void>();
  #isOver = false;

  constructor(request: GateRequest, isProxied: boolean) {
    this.request = request;
    this.isProxied = isProxied;
  }

  get ended(): Promise<GateEnd> {
    return this.#ended.promise;
  }

  async *chunks(): AsyncGenerator<Uint8Array> {
    for (;;) {
      for (let chunk = this.#inbox.shift(); chunk !== undefined; chunk = this.#inbox.shift()) yield chunk;
      if (this.#isOver) return;
      await this.#changed.promise;
    }
  }

  async write(bytes: Uint8Array): Promise<void> {
    this.written.push(Buffer.from(bytes));
    await Promise.race([this.full, this.ended]);
  }

  end(): void {
    this.hasEnded = true;
    if (this.#isOver) this.#ended.resolve("ended");
  }

  reset(): void {
    this.wasReset = true;
    this.break("reset");
  }

  /** Sends bytes to the guest. */
  send(text: string | Uint8Array): void {
    this.#inbox.push(Buffer.from(text));
    this.#wake();
  }

  /** Ends the sending of the far end. */
  finish(): void {
    this.#isOver = true;
    if (this.hasEnded) this.#ended.resolve("ended");
    this.#wake();
  }

  /** Ends both directions at once. */
  break(how: Exclude<GateEnd, "ended">): void {
    this.#ended.resolve(how);
    this.#isOver = true;
    this.#wake();
  }

  #wake(): void {
    this.#changed.resolve();
    this.#changed = Promise.withResolvers();
  }
}

/** Replaces the connecting process. It resolves the names of `names`, and refuses as `failures` says. */
export class StandInGate implements Pick<Gate, "connect" | "resolve"> {
  readonly connections: OuterConnection[] = [];
  readonly resolved: string[] = [];
  names: ReadonlySet<string> = new Set();
  isProxied = false;
  failure: GateVerdict | Error | null = null;
  /** while it is pending, no request is answered */
  held: Promise<void> = Promise.resolve();

  async connect(request: GateRequest, signal: AbortSignal): Promise<OuterConnection> {
    const aborted = new Promise<never>((_, reject) => {
      if (signal.aborted) reject(signal.reason);
      signal.addEventListener("abort", () => reject(signal.reason));
    });
    await Promise.race([this.held, aborted]);
    this.#fail();
    const connection = new OuterConnection(request, this.isProxied);
    this.connections.push(connection);
    return connection;
  }

  async resolve(name: string): Promise<boolean> {
    this.resolved.push(name);
    await this.held;
    this.#fail();
    return this.names.has(name);
  }

  #fail(): void {
    if (this.failure === null) return;
    throw this.failure instanceof Error
      ? this.failure
      : new GateError(this.failure, "said by the test", ["203.0.113.9"]);
  }
}
