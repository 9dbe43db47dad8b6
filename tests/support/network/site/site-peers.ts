import { createServer, type Server, type Socket } from "node:net";

/** Ports of the peers; no server listens on `closed`. */
export const PEER_PORTS = { echo: 7, drain: 9, reset: 20, mute: 21, sum: 22, closed: 23 } as const;

/**
 * Plain servers: `echo` returns what it receives; `drain` reads all and sends nothing; `reset` resets after the first bytes;
 * `mute` accepts, and neither reads nor writes; `sum` sends the number of received bytes after their end.
 */
export class Peers implements AsyncDisposable {
  /** accepted connections, by the name of the peer */
  readonly accepted: Record<string, number> = {};
  /** open connections of all peers */
  readonly open = new Set<Socket>();
  readonly #servers: Server[] = [];

  static async start(address: string): Promise<Peers> {
    await using stack = new AsyncDisposableStack();
    const peers = stack.use(new Peers());
    await peers.#listen(address, "echo", (socket) => void socket.pipe(socket));
    await peers.#listen(address, "drain", (socket) => void socket.resume());
    await peers.#listen(address, "reset", (socket) => void socket.once("data", () => socket.resetAndDestroy()));
    await peers.#listen(address, "mute", (socket) => void socket.pause());
    await peers.#listen(address, "sum", (socket) => {
      let count = 0;
      socket.on("data", (chunk) => {
        count += chunk.length;
      });
      socket.on("end", () => socket.end(`${count}\n`));
    });
    stack.move();
    return peers;
  }

  async #listen(address: string, name: keyof typeof PEER_PORTS, serve: (socket: Socket) => void): Promise<void> {
    this.accepted[name] = 0;
    const server = createServer({ allowHalfOpen: true }, (socket) => {
      this.accepted[name] = (this.accepted[name] ?? 0) + 1;
      this.open.add(socket);
      socket.on("close", () => this.open.delete(socket));
      // A peer that was reset has an error, but the tests look at the other side.
      socket.on("error", () => undefined);
      serve(socket);
    });
    this.#servers.push(server);
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    server.once("error", reject);
    server.listen({ host: address, port: PEER_PORTS[name], backlog: 1024 }, resolve);
    await promise;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const socket of this.open) socket.destroy();
    await Promise.all(this.#servers.map((server) => new Promise((resolve) => server.close(resolve))));
  }
}
