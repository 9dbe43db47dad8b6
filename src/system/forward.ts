import type { Socket } from "bun";
import { connectToAny, type End, join } from "./relay.ts";
import { listenToRelay } from "./relay-listener.ts";
import type { FailedConnection } from "./socks.ts";
import type { ToolNetwork } from "./tool-network.ts";

export interface LoopbackEndpoint {
  /** a loopback address */
  readonly address: string;
  readonly port: number;
}

interface Forward {
  readonly onFailure: Set<(failure: FailedConnection) => void>;
  stop(): void;
}

/** By network and endpoint: programs that run at the same time share the forwards that both need. */
const forwards = new WeakMap<ToolNetwork, Map<string, Forward>>();

/**
 * Makes an endpoint on this host's loopback reachable in the network for tools, under the same address and port, until
 * disposal. Returns null when that network cannot have the address or port.
 */
export function forwardLoopback(
  network: ToolNetwork,
  { address, port }: LoopbackEndpoint,
  onFailure: (failure: FailedConnection) => void,
): Disposable | null {
  const known = forwards.get(network) ?? new Map<string, Forward>();
  forwards.set(network, known);
  const key = address.includes(":") ? `[${address}]:${port}` : `${address}:${port}`;
  const forward = known.get(key) ?? listen(network, { address, port }, key);
  if (forward === null) return null;
  known.set(key, forward);
  forward.onFailure.add(onFailure);
  return {
    [Symbol.dispose]: () => {
      forward.onFailure.delete(onFailure);
      if (forward.onFailure.size > 0) return;
      known.delete(key);
      forward.stop();
    },
  };
}

function listen(network: ToolNetwork, { address, port }: LoopbackEndpoint, host: string): Forward | null {
  const onFailure: Forward["onFailure"] = new Set();
  const connect = async (socket: Socket<End>): Promise<void> => {
    try {
      const peer = await connectToAny([address], port);
      if (socket.data.closed) peer.terminate();
      else join(socket, peer);
    } catch (error) {
      for (const tell of onFailure) tell({ host, error });
      socket.terminate();
    }
  };
  const begin = (socket: Socket<End>): (() => void) => {
    socket.pause();
    void connect(socket);
    return () => undefined;
  };
  try {
    const listener = listenToRelay(network, { hostname: address, port, begin });
    return { onFailure, stop: () => listener[Symbol.dispose]() };
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code ?? "";
    // The host has no IPv6, or the port is privileged.
    if (["EADDRNOTAVAIL", "EAFNOSUPPORT", "EACCES"].includes(code)) return null;
    throw error;
  }
}
