import { connect, createServer, type Server, type Socket } from "node:net";

/** A relay on loopback in front of a service, which cuts connections after a number of the service's bytes. */
export class CuttingRelay implements AsyncDisposable {
  /** bytes after which the next connections are cut; later connections stay */
  readonly cuts: number[];
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();

  private constructor(target: URL, cuts: readonly number[]) {
    this.cuts = [...cuts];
    this.#server = createServer((socket) => this.#relay(socket, target));
  }

  static async open(url: string, cuts: readonly number[]): Promise<CuttingRelay> {
    const relay = new CuttingRelay(new URL(url), cuts);
    await new Promise<void>((resolve) => relay.#server.listen(0, "127.0.0.1", resolve));
    return relay;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as { port: number }).port}`;
  }

  /** Cuts all current connections; later ones stay. */
  cutAll(): void {
    for (const socket of this.#sockets) socket.destroy();
    this.#sockets.clear();
  }

  #relay(socket: Socket, { hostname, port }: URL): void {
    const service = connect({ host: hostname, port: Number(port) });
    let leftBytes = this.cuts.shift() ?? Number.POSITIVE_INFINITY;
    const cut = () => {
      socket.destroy();
      service.destroy();
    };
    for (const one of [socket, service]) {
      this.#sockets.add(one);
      one.on("error", cut);
      one.on("close", cut);
    }
    socket.on("data", (bytes) => void service.write(bytes));
    service.on("data", (bytes) => {
      const passed = (bytes as Buffer).subarray(0, leftBytes);
      leftBytes -= passed.byteLength;
      socket.write(passed, () => {
        if (leftBytes === 0) cut();
      });
    });
    if (leftBytes === 0) cut();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    await new Promise<void>((resolve) => this.#server.close(() => resolve()));
  }
}
