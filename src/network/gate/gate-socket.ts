import type { Socket } from "bun";

export interface GateSocketEvents {
  data(bytes: Uint8Array): void;
  /** the connection has ended, or could not be made */
  close(): void;
}

/**
 * A socket to the process. Bun's sockets leave less memory behind than those of node:net, and queue nothing; the frames wait
 * here, and credit limits them to a window.
 */
export class GateSocket {
  #socket: Socket | null = null;
  #unsent: Uint8Array[] = [];
  #isEnding = false;

  /** Connects to a path. Bytes that are written earlier are sent then. */
  constructor(path: string, events: GateSocketEvents) {
    const connecting = Bun.connect({
      unix: path,
      socket: {
        open: (socket) => {
          this.#socket = socket;
          this.#flush();
        },
        data: (_, bytes) => events.data(bytes),
        drain: () => this.#flush(),
        close: () => events.close(),
        // The close event follows.
        error: () => undefined,
      },
    });
    connecting.catch(() => events.close());
  }

  write(bytes: Uint8Array): void {
    this.#unsent.push(bytes);
    this.#flush();
  }

  /** Ends the connection when everything is sent. */
  end(): void {
    this.#isEnding = true;
    this.#flush();
  }

  #flush(): void {
    const socket = this.#socket;
    if (socket === null) return;
    // One call for a header and its data.
    const bytes = this.#unsent.length === 1 ? this.#unsent[0] : Buffer.concat(this.#unsent);
    this.#unsent = [];
    if (bytes !== undefined && bytes.byteLength > 0) {
      const sentBytes = socket.write(bytes);
      // A closed socket reports that by its event.
      if (sentBytes >= 0 && sentBytes < bytes.byteLength) this.#unsent = [bytes.subarray(sentBytes)];
    }
    if (this.#isEnding && this.#unsent.length === 0) socket.end();
  }
}
