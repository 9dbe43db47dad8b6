import { Duplex } from "node:stream";
import { connect } from "node:tls";
import type { GuestConnection } from "../../ingress/upstream.ts";
import { withinTime } from "../../system/waiting.ts";
import { E2bError } from "./errors.ts";

/** Time for a program to agree on TLS, in `milliseconds`. */
const HANDSHAKE_MS = 15_000;

/**
 * Speaks TLS to a program of a guest. Its certificate is not checked: a guest can have any, and the connection leads to no
 * other.
 * @param name the host by which the program may choose its certificate
 * @throws E2bError 502 when the program does not speak TLS; the connection is reset then
 */
export async function tlsConnection(connection: GuestConnection, name: string): Promise<GuestConnection> {
  const socket = connect({ socket: duplexOf(connection), rejectUnauthorized: false, servername: name });
  const closed = new Promise<false>((resolve) => void socket.once("close", () => resolve(false)));
  const secure = new Promise<true>((resolve) => void socket.once("secureConnect", () => resolve(true)));
  // The close event follows.
  socket.on("error", () => undefined);
  if (!(await withinTime(Promise.race([secure, closed]), HANDSHAKE_MS, () => false))) {
    socket.destroy();
    throw new E2bError(502, "the program on this port does not speak TLS");
  }
  return {
    async *chunks() {
      for await (const chunk of socket) yield chunk as Buffer;
    },
    write: async (bytes) => {
      if (!socket.writable) return false;
      if (socket.write(bytes)) return true;
      return await Promise.race([closed, new Promise<true>((resolve) => socket.once("drain", () => resolve(true)))]);
    },
    end: async () => void socket.end(),
    reset: () => void socket.destroy(),
  };
}

/** A connection as a stream of node; its end resets the connection. */
function duplexOf(connection: GuestConnection): Duplex {
  const chunks = connection.chunks();
  return new Duplex({
    read() {
      chunks.next().then(
        ({ done, value }) => void this.push(done === true ? null : value),
        (error: Error) => void this.destroy(error),
      );
    },
    write(chunk: Buffer, _encoding, done) {
      connection.write(chunk).then((isSent) => done(isSent ? null : new Error("the guest reads no more")), done);
    },
    final(done) {
      connection.end().then(() => done(), done);
    },
    destroy(error, done) {
      connection.reset();
      done(error);
    },
  });
}
