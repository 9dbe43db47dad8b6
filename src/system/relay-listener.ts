import type { Socket } from "bun";
import { type End, newEnd, RELAY } from "./relay.ts";
import type { ToolNetwork } from "./tool-network.ts";

/** skopeo has six layers in flight. */
const CONNECTIONS_COUNT_MAX = 64;

export interface RelayListenOptions {
  readonly hostname: string;
  /** 0 for any */
  readonly port: number;
  /** Is told of every connection, and gives what takes its bytes before it is joined to another. */
  readonly begin: (socket: Socket<End>) => End["early"];
}

/** Disposal cuts all connections, too. */
export interface RelayListener extends Disposable {
  readonly port: number;
}

/** Listens in the network for tools, for connections that are to be joined to others. */
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
        ends.delete(socket);
        const { peer } = socket.data;
        // Whoever would not even take the request shall not hold the connection.
        if (peer !== null && peer.data.unsent !== null) peer.terminate();
        RELAY.close?.(socket, error);
      },
    },
  });
  return {
    port: listener.port,
    [Symbol.dispose]: () => {
      listener.stop(true);
      for (const socket of ends) {
        socket.data.peer?.terminate();
        socket.terminate();
      }
    },
  };
}
