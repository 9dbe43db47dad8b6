import type { Socket } from "bun";
import type { ToolNetwork } from "../../system/tool-network.ts";
import type { GateConnection } from "../gate.ts";
import { listenToRelay } from "./listener.ts";
import { type End, join } from "./relay.ts";
import type { FailedConnection } from "./socks.ts";

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
  options: {
    /** Connects to the endpoint on the host. All forwards of an endpoint do so in the same way. */
    readonly connect: () => Promise<GateConnection>;
    readonly onFailure: (failure: FailedConnection) => void;
  },
): Disposable | null {
  const { connect, onFailure } = options;
  const ofNetwork = forwards.get(network) ?? new Map<string, Forward>();
  forwards.set(network, ofNetwork);
  const key = address.includes(":") ? `[${address}]:${port}` : `${address}:${port}`;
  const forward = ofNetwork.get(key) ?? listen(network, { address, port }, { host: key, connect });
  if (forward === null) return null;
  ofNetwork.set(key, forward);
  forward.onFailure.add(onFailure);
  return {
    [Symbol.dispose]: () => {
      forward.onFailure.delete(onFailure);
      if (forward.onFailure.size > 0) return;
      ofNetwork.delete(key);
      forward.stop();
    },
  };
}

function listen(
  network: ToolNetwork,
  { address, port }: LoopbackEndpoint,
  { host, connect }: { readonly host: string; readonly connect: () => Promise<GateConnection> },
): Forward | null {
  const onFailure: Forward["onFailure"] = new Set();
  const connectAndJoin = async (socket: Socket<End>): Promise<void> => {
    try {
      void join(socket, await connect());
    } catch (error) {
      for (const tell of onFailure) tell({ host, error });
      socket.terminate();
    }
  };
  const begin = (socket: Socket<End>): (() => void) => {
    socket.pause();
    void connectAndJoin(socket);
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
