import type { Socket } from "bun";
import type { ToolNetwork } from "../../system/tool-network.ts";
import { type End, newEnd, RELAY } from "./relay.ts";

/** Limit of connections; skopeo transfers six layers at a time. */
const CONNECTIONS_COUNT_MAX = 64;

export interface RelayListenOptions {
  readonly hostname: string;
  /** 0 for any free port */
  readonly port: number;
  /** Called with each connection. Returns the handler of its bytes until it is joined to another. */
  readonly begin: (socket: Socket<End>) => End["early"];
}

/** A listening socket in the network for tools. Disposal also closes all of its connections. */
export interface RelayListener extends Disposable {
  readonly port: number;
}

/** Listens in the network for tools for connections that will be joined to others. */
export function listenToRelay(network: ToolNetwork, { hostname, port, begin }: RelayListenOptions): RelayListener {
  const ends = new Set<Socket<End>>();
  const listener = network.listen<End>({
    hostname,
    port,
    socket: {
      ...RELAY,
      open(socket) {
        if (ends.size >= CONNECTIONS_COUNT_MAX) {
          socket.data = newEnd(() => undefined);
          return void socket.terminate();
        }
        ends.add(socket);
        socket.data = newEnd(begin(socket));
      },
      close(socket, error) {
        RELAY.close?.(socket, error);
        const { peer } = socket.data;
        if (peer === null) return void ends.delete(socket);
        // Its connection counts until it has ended as well.
        void peer.ended.then(() => ends.delete(socket));
      },
    },
  });
  return {
    port: listener.port,
    [Symbol.dispose]: () => {
      listener.stop(true);
      for (const socket of ends) {
        socket.data.peer?.reset();
        socket.terminate();
      }
    },
  };
}
