import type { Socket, SocketHandler } from "bun";
import type { GateConnection } from "../gate.ts";

/** State of the socket of a tool. */
export interface End {
  /** the connection to the outside; null until they are joined */
  peer: GateConnection | null;
  /** bytes that the tool has not read yet, and the callback for when it has */
  unsent: Uint8Array | null;
  sent: (() => void) | null;
  closed: boolean;
  /** handler of bytes that arrive before the ends are joined */
  readonly early: (socket: Socket<End>, chunk: Uint8Array) => void;
}

export function newEnd(early: End["early"]): End {
  return { peer: null, unsent: null, sent: null, closed: false, early };
}

/** Passes the bytes and the end of a tool's socket to its connection, at the speed of the slower one. */
export const RELAY: SocketHandler<End> = {
  data(socket, chunk) {
    const { peer, early } = socket.data;
    if (peer === null) early(socket, chunk);
    else void sendOut(socket, peer, chunk);
  },
  drain(socket) {
    const { unsent } = socket.data;
    if (unsent === null) return;
    socket.data.unsent = null;
    if (!send(socket, unsent)) return;
    socket.data.sent?.();
    socket.data.sent = null;
  },
  close(socket) {
    socket.data.closed = true;
    socket.data.sent?.();
    socket.data.peer?.end();
  },
  // The close event follows, which handles everything.
  error: () => undefined,
};

async function sendOut(socket: Socket<End>, peer: GateConnection, chunk: Uint8Array): Promise<void> {
  socket.pause();
  await peer.write(chunk);
  if (!socket.data.closed) socket.resume();
}

/** Returns false when the socket cannot send more now. */
function send(socket: Socket<End>, chunk: Uint8Array): boolean {
  const sentBytes = socket.write(chunk);
  // A closed socket reports that by its event.
  if (sentBytes < 0 || sentBytes >= chunk.byteLength) return true;
  socket.data.unsent = chunk.subarray(sentBytes);
  return false;
}

/** Joins a tool's socket and a connection, until one of them ends. */
export async function join(socket: Socket<End>, peer: GateConnection): Promise<void> {
  if (socket.data.closed) return void peer.reset();
  socket.data.peer = peer;
  socket.resume();
  for await (const chunk of peer.chunks()) {
    // The bytes for a tool that is gone are dropped; its connection ends when the other side does, or with the gate.
    if (socket.data.closed || send(socket, chunk)) continue;
    const { promise, resolve } = Promise.withResolvers<void>();
    socket.data.sent = resolve;
    await promise;
  }
  if (!socket.data.closed) socket.end();
  // Tools send nothing after the other side's end.
  peer.end();
}
