import { createServer, type Server, type Socket } from "node:net";
import { LoopbackNames } from "./loopback-names.ts";

/** The behaviour of a server on a connection. */
export type Behaviour = (socket: Socket) => void;

/** TCP servers on the loopback, with names, that stand for the outside. */
export class Outside implements AsyncDisposable {
  readonly names: LoopbackNames;
  readonly #owned: AsyncDisposableStack;

  private constructor(names: LoopbackNames, owned: AsyncDisposableStack) {
    this.names = names;
    this.#owned = owned;
  }

  /** @param names that resolve to 127.0.0.1 */
  static async start(...names: readonly string[]): Promise<Outside> {
    await using stack = new AsyncDisposableStack();
    const server = stack.use(await LoopbackNames.start(new Set(names)));
    return new Outside(server, stack.move());
  }

  async serve(behaviour: Behaviour): Promise<OutsideServer> {
    const server = await OutsideServer.start(behaviour);
    this.#owned.use(server);
    return server;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#owned.disposeAsync();
  }
}

export class OutsideServer implements AsyncDisposable {
  readonly port: number;
  /** all connections so far */
  readonly sockets: Socket[];
  readonly #server: Server;

  private constructor(server: Server, sockets: Socket[]) {
    this.port = (server.address() as { port: number }).port;
    this.sockets = sockets;
    this.#server = server;
  }

  static async start(behaviour: Behaviour): Promise<OutsideServer> {
    const sockets: Socket[] = [];
    const server = createServer({ allowHalfOpen: true }, (socket) => {
      sockets.push(socket);
      socket.on("error", () => undefined);
      behaviour(socket);
    });
    await new Promise<void>((listens) => server.listen(0, "127.0.0.1", listens));
    return new OutsideServer(server, sockets);
  }

  /** Number of open connections. */
  get openCount(): number {
    return this.sockets.filter((socket) => !socket.destroyed).length;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const socket of this.sockets) socket.destroy();
    await new Promise<void>((closed) => this.#server.close(() => closed()));
  }
}

/** Sends nothing, and ends when the other side does. */
export const silent: Behaviour = (socket) => {
  socket.on("end", () => socket.end());
  socket.resume();
};

/** Answers each request with a body, then ends. */
export function http(body: (path: string) => string | Uint8Array): Behaviour {
  return (socket) => {
    let head = "";
    const onData = (chunk: Uint8Array): void => {
      head += Buffer.from(chunk).toString("latin1");
      if (!head.includes("\r\n\r\n")) return;
      socket.off("data", onData);
      const bytes = Buffer.from(body(head.split(" ")[1] ?? ""));
      socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${bytes.byteLength}\r\nConnection: close\r\n\r\n`);
      socket.end(bytes);
    };
    socket.on("data", onData);
  };
}
