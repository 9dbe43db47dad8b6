import type { Socket, SocketHandler } from "bun";
import { withinTime } from "./waiting.ts";

/** Time for one address to answer, in `milliseconds`. */
const CONNECT_MS_MAX = 10_000;

/** What a socket knows of the connection whose end it is. */
export interface End {
  /** the other end; null until it is there */
  peer: Socket<End> | null;
  /** what this end could not take yet; the other one is paused as long as there is any */
  unsent: Uint8Array | null;
  closed: boolean;
  /** takes what comes before there is a peer */
  readonly early: (socket: Socket<End>, chunk: Uint8Array) => void;
}

export function newEnd(early: End["early"]): End {
  return { peer: null, unsent: null, closed: false, early };
}

/** Passes the bytes of each end to the other, as fast as that takes them, and the end of one to the other. */
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
  // The close that follows does all there is to do.
  error: () => undefined,
};

/** False when the socket does not take more for now. */
function send(socket: Socket<End>, chunk: Uint8Array): boolean {
  const { unsent } = socket.data;
  if (unsent !== null) {
    socket.data.unsent = Buffer.concat([unsent, chunk]);
    return false;
  }
  const taken = socket.write(chunk);
  // Closed: it tells its peer.
  if (taken < 0 || taken >= chunk.byteLength) return true;
  socket.data.unsent = chunk.subarray(taken);
  return false;
}

/** Makes two sockets the ends of one connection, and lets them run. */
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
 * Connects to the first of these addresses that answers.
 * @throws the error of the last one; its `code` is that of the system, ETIMEDOUT when it does not answer
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
  // Nothing is read before there is an end that can take it.
  const handlers: SocketHandler<End> = { ...RELAY, open: (socket) => socket.pause() };
  const connecting = Bun.connect<End>({ hostname, port, data, socket: handlers });
  try {
    return await withinTime(connecting, CONNECT_MS_MAX, () => {
      throw Object.assign(new Error(`${hostname} does not answer`), { code: "ETIMEDOUT" });
    });
  } catch (error) {
    connecting.then(
      (socket) => socket.terminate(),
      // It failed as well, which is what this call says.
      () => undefined,
    );
    throw error;
  }
}
