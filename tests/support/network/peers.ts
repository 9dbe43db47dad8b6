import { createServer, type Server, type Socket } from "node:net";

/** A server on the loopback that records what it receives. */
export interface Peer extends AsyncDisposable {
  readonly port: number;
  /** connections so far, the last one last */
  readonly sockets: Socket[];
  /** bytes of all connections so far */
  readonly received: () => Buffer;
}

/** @param serve handles a connection; the socket stays half open after the client's end */
export async function peer(serve: (socket: Socket) => void = () => undefined): Promise<Peer> {
  const sockets: Socket[] = [];
  const chunks: Buffer[] = [];
  const server = createServer({ allowHalfOpen: true }, (socket) => {
    sockets.push(socket);
    socket.on("error", () => undefined);
    socket.on("data", (chunk: Buffer) => chunks.push(chunk));
    serve(socket);
  });
  const port = await listening(server);
  return {
    port,
    sockets,
    received: () => Buffer.concat(chunks),
    [Symbol.asyncDispose]: async () => {
      for (const socket of sockets) socket.destroy();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

async function listening(server: Server): Promise<number> {
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const address = server.address();
  if (address === null || typeof address === "string") throw new Error("the server has no port");
  return address.port;
}

/** Answers `hello` with the bytes that it received, after the client's end. */
export function echo(socket: Socket): void {
  let text = "";
  socket.on("data", (chunk: Buffer) => {
    text += chunk.toString();
  });
  socket.on("end", () => socket.end(`got ${text}`));
}
