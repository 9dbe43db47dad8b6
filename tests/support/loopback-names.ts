const HEADER_BYTES = 12;
const TYPE_A = 1;
const FLAGS_ANSWER = 0x8180;
const NO_SUCH_NAME = 3;

/** A name server on the loopback, over UDP: its names have the address 127.0.0.1, and no other name exists. */
export class LoopbackNames implements Disposable {
  /** `127.0.0.1:PORT` */
  readonly address: string;
  /** names of the queries, in their order */
  readonly queries: string[];
  readonly #close: () => void;

  private constructor(address: string, queries: string[], close: () => void) {
    this.address = address;
    this.queries = queries;
    this.#close = close;
  }

  static async start(names: ReadonlySet<string>): Promise<LoopbackNames> {
    const queries: string[] = [];
    const socket = await Bun.udpSocket({
      hostname: "127.0.0.1",
      socket: {
        data: (self, message, port, from) => {
          const { name, reply } = replyTo(Buffer.from(message), names);
          queries.push(name);
          self.send(reply, port, from);
        },
      },
    });
    return new LoopbackNames(`127.0.0.1:${socket.port}`, queries, () => socket.close());
  }

  [Symbol.dispose](): void {
    this.#close();
  }
}

function replyTo(query: Buffer, names: ReadonlySet<string>): { name: string; reply: Buffer } {
  const labels: string[] = [];
  let at = HEADER_BYTES;
  for (let length = query[at] ?? 0; length > 0; length = query[at] ?? 0) {
    labels.push(query.toString("latin1", at + 1, at + 1 + length));
    at += 1 + length;
  }
  const end = at + 5;
  const name = labels.join(".").toLowerCase();
  const hasAddress = names.has(name) && query.readUInt16BE(at + 1) === TYPE_A;
  // The record has the name of the query, then type, class, time to live, length and address.
  const record = Buffer.from([0xc0, HEADER_BYTES, 0, TYPE_A, 0, 1, 0, 0, 0, 0, 0, 4, 127, 0, 0, 1]);
  const header = Buffer.alloc(HEADER_BYTES);
  query.copy(header, 0, 0, 2);
  header.writeUInt16BE(FLAGS_ANSWER | (names.has(name) ? 0 : NO_SUCH_NAME), 2);
  header.writeUInt16BE(1, 4);
  header.writeUInt16BE(hasAddress ? 1 : 0, 6);
  const question = query.subarray(HEADER_BYTES, end);
  return { name, reply: Buffer.concat([header, question, ...(hasAddress ? [record] : [])]) };
}
