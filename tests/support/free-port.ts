import { createServer } from "node:net";

/** Below the ports that the kernel assigns to any socket, and above those of well-known services. */
const PORT_MIN = 20_000;
const PORT_END = 32_768;

/** A port of 127.0.0.1 on which no process listens, and that the kernel assigns to no socket. */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = PORT_MIN + Math.floor(Math.random() * (PORT_END - PORT_MIN));
    if (await isFree(port)) return port;
  }
}

async function isFree(port: number): Promise<boolean> {
  const server = createServer();
  const { promise, resolve } = Promise.withResolvers<boolean>();
  server.on("error", () => resolve(false)).listen(port, "127.0.0.1", () => server.close(() => resolve(true)));
  return await promise;
}
