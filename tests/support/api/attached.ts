import { type Service, TestSocket } from "./socket.ts";

/** A client that is attached to a process. */
export class AttachedClient implements Disposable {
  readonly socket: TestSocket;

  private constructor(socket: TestSocket) {
    this.socket = socket;
  }

  /** @param path of the instance */
  static async open(
    service: Service,
    path: string,
    { query = "", spid = 1 }: { readonly query?: string; readonly spid?: number } = {},
  ): Promise<AttachedClient> {
    const options = { protocols: ["v4.channel.k8s.io", "v5.channel.k8s.io"] };
    return new AttachedClient(await TestSocket.open(service, `${path}/processes/${spid}/attach${query}`, options));
  }

  type(text: string): void {
    this.send(0, Buffer.from(text));
  }

  send(channel: number, payload: Uint8Array): void {
    this.socket.send(new Uint8Array([channel, ...payload]));
  }

  /** All bytes of a channel so far. */
  of(channel: number): Buffer {
    return Buffer.concat(this.socket.messages.filter(([first]) => first === channel).map((bytes) => bytes.subarray(1)));
  }

  /** Messages of the status channel so far. */
  get statuses(): Record<string, unknown>[] {
    const messages = this.socket.messages.filter(([first]) => first === 3);
    return messages.map((bytes) => JSON.parse(bytes.subarray(1).toString()));
  }

  async until(text: string): Promise<void> {
    await this.socket.until(() => this.of(1).includes(text));
  }

  [Symbol.dispose](): void {
    this.socket[Symbol.dispose]();
  }
}
