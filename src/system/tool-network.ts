import { closeSync, openSync, statfsSync } from "node:fs";
import type { TCPSocketListener, TCPSocketListenOptions } from "bun";
import { bringLoopbackUp, enterNetwork, LibcError, unshareNetwork } from "./libc.ts";

/** Where the service's unit has one made, since the service itself lacks the privilege to bring a loopback up. */
export const PREPARED_NETWORK = "/run/coppice/network";
const OWN_NETWORK = "/proc/thread-self/ns/net";
/** Kind of file system that namespaces are files of. */
const NSFS_MAGIC = 0x6e736673;

/**
 * A network for programs that this process starts: nothing but a loopback that is up. This process puts sockets into
 * it, and what connects to them is all that a program in there can reach. It is made at its first use, and ends with
 * this process and those programs.
 */
export class ToolNetwork implements Disposable {
  readonly #prepared: string;
  #fd: number | null = null;

  constructor(prepared = PREPARED_NETWORK) {
    this.#prepared = prepared;
  }

  /**
   * File that other processes can enter it by.
   * @throws Error when it can neither be made nor was prepared
   */
  get path(): string {
    return `/proc/${process.pid}/fd/${this.#open()}`;
  }

  /**
   * Listens in there; the connections are served here.
   * @throws Error as `path` does, and as Bun.listen does
   */
  listen<Data>(options: TCPSocketListenOptions<Data>): TCPSocketListener<Data> {
    const fd = this.#open();
    // A socket stays in the network that its thread was in when it was made, and Bun.listen makes it at once.
    using _home = comeBack();
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

/** Null where this process may not bring a loopback up. */
function makeNetwork(): number | null {
  using _home = comeBack();
  unshareNetwork();
  try {
    bringLoopbackUp();
  } catch (error) {
    if (error instanceof LibcError && error.code === "EPERM") return null;
    throw error;
  }
  return openSync(OWN_NETWORK, "r");
}

/** @throws Error that names the path and says why it is no network */
export function openPrepared(path: string): number {
  try {
    if (statfsSync(path).type !== NSFS_MAGIC) throw new Error("nothing is mounted on this file");
    return openSync(path, "r");
  } catch (error) {
    const why = (error as Error).message;
    throw new Error(`no network for tools can be made, and none was prepared as ${path}: ${why}`, { cause: error });
  }
}

/**
 * Disposal puts this thread back where it is now. Nothing may wait in between: other work would be misplaced. Nothing may
 * start a thread either: it would stay in the other network.
 */
function comeBack(): Disposable {
  const home = openSync(OWN_NETWORK, "r");
  return {
    [Symbol.dispose]: () => {
      try {
        enterNetwork(home);
      } catch {
        // Nothing that this process did from here on would reach anybody: a new one has to take over.
        process.kill(process.pid, "SIGKILL");
      }
      closeSync(home);
    },
  };
}
