import { closeSync, openSync, statfsSync } from "node:fs";
import type { TCPSocketListener, TCPSocketListenOptions } from "bun";
import { bringLoopbackUp, enterNetwork, LibcError, unshareNetwork } from "./libc.ts";

/** Namespace that the service's unit prepares, because the service lacks the privilege to bring a loopback up. */
export const PREPARED_NETWORK = "/run/coppice/network";
const OWN_NETWORK = "/proc/thread-self/ns/net";
/** Type of the file system of namespaces. */
const NSFS_MAGIC = 0x6e736673;

/**
 * A network for programs that this process starts. It has nothing but a loopback interface. Programs in it can reach only
 * the sockets that this process opens there. It is created at its first use, and ends with this process and those programs.
 */
export class ToolNetwork implements Disposable {
  readonly #prepared: string;
  #fd: number | null = null;

  constructor(prepared = PREPARED_NETWORK) {
    this.#prepared = prepared;
  }

  /**
   * File through which other processes can enter the network.
   * @throws Error when the network can neither be created nor was prepared
   */
  get path(): string {
    return `/proc/${process.pid}/fd/${this.#open()}`;
  }

  /**
   * Listens in the network. This process serves the connections.
   * @throws Error like `path` and like Bun.listen
   */
  listen<Data>(options: TCPSocketListenOptions<Data>): TCPSocketListener<Data> {
    const fd = this.#open();
    // A socket belongs to the network of the thread that creates it, and Bun.listen creates it synchronously.
    using _home = restoreNetworkLater();
    enterNetwork(fd);
    return Bun.listen(options);
  }

  [Symbol.dispose](): void {
    if (this.#fd !== null) closeSync(this.#fd);
    this.#fd = null;
  }

  #open(): number {
    this.#fd ??= makeNetwork() ?? openPrepared(this.#prepared);
    return this.#fd;
  }
}

/** Null when this process may not bring a loopback up. */
function makeNetwork(): number | null {
  using _home = restoreNetworkLater();
  unshareNetwork();
  try {
    bringLoopbackUp();
  } catch (error) {
    if (error instanceof LibcError && error.code === "EPERM") return null;
    throw error;
  }
  return openSync(OWN_NETWORK, "r");
}

/** Opens a prepared network. @throws Error that names the path and the reason */
export function openPrepared(path: string): number {
  try {
    if (statfsSync(path).type !== NSFS_MAGIC) throw new Error("nothing is mounted on this file");
    return openSync(path, "r");
  } catch (error) {
    const why = (error as Error).message;
    throw new Error(`cannot create a network for tools, and none was prepared at ${path}: ${why}`, { cause: error });
  }
}

/**
 * Disposal returns this thread to its present network. Until then nothing may wait, because other work would run in the
 * wrong network, and nothing may start a thread, because it would stay there.
 */
function restoreNetworkLater(): Disposable {
  const home = openSync(OWN_NETWORK, "r");
  return {
    [Symbol.dispose]: () => {
      try {
        enterNetwork(home);
      } catch {
        // In the wrong network this process is useless; a new one must take over.
        process.kill(process.pid, "SIGKILL");
      }
      closeSync(home);
    },
  };
}
