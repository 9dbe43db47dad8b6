import { createServer, type Server } from "node:net";

const PORTS = [80, 443];

/** One of this machine's own interfaces, although it looks public; see alone.sh. */
export const OWN_ADDRESS = "20.0.1.1";
/** Addresses of interfaces without a carrier and that are down, and in a range that is local. */
const MORE_OWN_ADDRESSES = ["20.0.1.2", "20.0.1.3", "20.0.2.77"];

/** Addresses that a guest may only reach by permission of the operator: one of each kind, and one that leads to it. */
export const FORBIDDEN = {
  v4: [
    ...["127.0.0.1", "127.7.7.7", "0.1.2.3", "10.0.7.5", "100.64.0.1", "172.16.0.1", "192.168.7.5", "169.254.7.7"],
    ...["169.254.169.254", "169.254.170.2", "168.63.129.16", "100.100.100.200", "192.0.0.192", "192.0.2.77"],
    ...["198.18.0.9", "198.51.100.7", "203.0.113.7", OWN_ADDRESS, ...MORE_OWN_ADDRESSES],
  ],
  v6: [
    ...["::1", "fd00::7", "fec0::7", "fd00:ec2::254", "2001:db8::7"],
    // NAT64 of both kinds, 6to4, Teredo (its client is inverted), ISATAP; translated and compatible.
    ...["64:ff9b::a9fe:a9fe", "64:ff9b:1::10.0.7.5", "2002:a00:705::1", "2001:0:1400:50::f5ff:f8fa"],
    ...["2600:7::5efe:10.0.7.5", "2600:7::200:5efe:a00:705", "::ffff:0:10.0.7.5", "::10.0.7.5"],
  ],
} as const;

/** Listens at the forbidden addresses, and records connections, of which there should be none. */
export class Bystander implements AsyncDisposable {
  /** destination of each connection, such as `169.254.169.254 80` */
  readonly seen: string[] = [];
  readonly #servers: Server[] = [];

  static async start(): Promise<Bystander> {
    await using stack = new AsyncDisposableStack();
    const bystander = stack.use(new Bystander());
    for (const host of [...FORBIDDEN.v4, ...FORBIDDEN.v6]) {
      for (const port of PORTS) await bystander.#listen(host, port);
    }
    stack.move();
    return bystander;
  }

  async #listen(host: string, port: number): Promise<void> {
    const server = createServer((socket) => {
      this.seen.push(`${host} ${port}`);
      socket.on("error", () => undefined);
      socket.end("HTTP/1.1 200 OK\r\ncontent-length: 7\r\nconnection: close\r\n\r\nsecret\n");
    });
    this.#servers.push(server);
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    server.once("error", (error) => reject(new Error(`cannot listen at ${host}`, { cause: error })));
    server.listen({ host, port }, resolve);
    await promise;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#servers.map((server) => new Promise((resolve) => server.close(resolve))));
  }
}
