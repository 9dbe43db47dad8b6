import type { Socket, SocketHandler } from "bun";
import { withinTime } from "./waiting.ts";

/** Time limit for a connection to one address, in `milliseconds`. */
const CONNECT_MS_MAX = 10_000;

/** State of one end of a relayed connection. */
export interface End {
  /** the other end; null until they are joined */
  peer: Socket<End> | null;
  /** bytes that this end could not send yet; the other end is paused while there are any */
  unsent: Uint8Array | null;
  closed: boolean;
  /** handler of bytes that arrive before the ends are joined */
  readonly early: (socket: Socket<End>, chunk: Uint8Array) => void;
}

export function newEnd(early: End["early"]): End {
  return { peer: null, unsent: null, closed: false, early };
}

/** Passes the bytes and the end of each end of a connection to the other, at the speed of the slower one. */
export const RELAY: SocketHandler<End> = {
  data(socket, chunk) {
    const { peer, early } = socket.data;
    if (peer === null) early(socket, chunk);
    else if (!send(peer, chunk)) socket.pause();
  },
  drain(socket) {
    const { unsent, peer } = socket.data;
    if (unsent === null) return;
    socket.data.unsent = null;
    if (!send(socket, unsent)) return;
    if (peer === null || peer.data.closed) socket.end();
    else peer.resume();
  },
  close(socket) {
    const { peer } = socket.data;
    socket.data.closed = true;
    if (peer !== null && !peer.data.closed && peer.data.unsent === null) peer.end();
  },
  // The close event follows, which handles everything.
  error: () => undefined,
};

/** Returns false when the socket cannot send more now. */
function send(socket: Socket<End>, chunk: Uint8Array): boolean {
  const { unsent } = socket.data;
  if (unsent !== null) {
    socket.data.unsent = Buffer.concat([unsent, chunk]);
    return false;
  }
  const taken = socket.write(chunk);
  // A closed socket informs its peer.
  if (taken < 0 || taken >= chunk.byteLength) return true;
  socket.data.unsent = chunk.subarray(taken);
  return false;
}

/** Joins two sockets to one connection and resumes them. */
export function join(one: Socket<End>, other: Socket<End>): void {
  one.data.peer = other;
  other.data.peer = one;
  for (const [end, peer] of [
    [one, other],
    [other, one],
  ] as const) {
    if (end.data.closed) peer.end();
    else end.resume();
  }
}

/**
 * Connects to the first address that accepts.
 * @throws the error of the last address; `code` is the system's, ETIMEDOUT when it does not answer
 */
export async function connectToAny(addresses: readonly string[], port: number): Promise<Socket<End>> {
  let failure: unknown = Object.assign(new Error("there is no address to connect to"), { code: "EADDRNOTAVAIL" });
  for (const address of addresses) {
    try {
      return await connect(address, port);
    } catch (error) {
      failure = error;
    }
  }
  throw failure;
}

async function connect(hostname: string, port: number): Promise<Socket<End>> {
  const data = newEnd(() => undefined);
  // Paused until there is an end that can take the bytes.
  const handlers: SocketHandler<End> = { ...RELAY, open: (socket) => socket.pause() };
  const connecting = Bun.connect<End>({ hostname, port, data, socket: handlers });
  try {
    return await withinTime(connecting, CONNECT_MS_MAX, () => {
      throw Object.assign(new Error(`${hostname} does not answer`), { code: "ETIMEDOUT" });
    });
  } catch (error) {
    connecting.then(
      (socket) => socket.terminate(),
      // This connection failed as well; the caller gets the error of the time limit.
      () => undefined,
    );
    throw error;
  }
}
