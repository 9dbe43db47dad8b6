import type { LoadTarget } from "./load.ts";

const OK = "HTTP/1.1 200";

/** A follower of events with a very cheap client. Disposal disconnects it. */
export interface Follower extends Disposable {
  /** resolves when the server has closed the connection */
  readonly closed: Promise<void>;
}

/**
 * Follows the event stream of a plain HTTP server. Resolves when the stream has begun.
 * @param onBytes gets the bytes of the connection on arrival, with the framing of HTTP; they are valid during the call
 * @throws Error when the answer is not 200
 */
export async function follow({ url, headers }: LoadTarget, onBytes: (bytes: Buffer) => void): Promise<Follower> {
  const { hostname, port, pathname, search, host } = new URL(url);
  const fields = Object.entries({ host, accept: "text/event-stream", connection: "close", ...headers });
  const head = fields.map(([name, value]) => `${name}: ${value}\r\n`).join("");
  const begun = Promise.withResolvers<void>();
  const closed = Promise.withResolvers<void>();
  let hasBegun = false;
  const socket = await Bun.connect({
    hostname,
    port: Number(port),
    socket: {
      data(_, bytes) {
        if (!hasBegun) {
          hasBegun = true;
          if (bytes.toString("latin1", 0, OK.length) === OK) begun.resolve();
          else begun.reject(new Error(`no events: ${bytes.toString("latin1")}`));
        }
        onBytes(bytes);
      },
      close() {
        begun.reject(new Error("the server closed the connection of a follower"));
        closed.resolve();
      },
    },
  });
  socket.write(`GET ${pathname}${search} HTTP/1.1\r\n${head}\r\n`);
  await begun.promise;
  return { closed: closed.promise, [Symbol.dispose]: () => socket.terminate() };
}
