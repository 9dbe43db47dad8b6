import { createSocket, type RemoteInfo, type Socket } from "node:dgram";
import { createServer, type Server } from "node:net";

const HEADER_BYTES = 12;
const TYPES = { A: 1, CNAME: 5, AAAA: 28 } as const;
const CODES = { none: 0, failed: 2, missing: 3 } as const;
const UDP_BYTES_MAX = 512;

/** The answer for a name: addresses of both families, or a kind that no honest server sends. */
export type Answer =
  | { readonly addresses: readonly string[]; readonly ttl?: number; readonly after?: Promise<unknown> }
  /** an alias of itself, without an address */
  | "loop"
  | "silence"
  | "failure"
  /** bytes that are not an answer */
  | "nonsense";

export interface NameServer extends AsyncDisposable {
  /** as `setServers` of node:dns accepts it */
  readonly address: string;
  /** queried names in order, with the type */
  readonly asked: string[];
}

/**
 * A name server on a loopback address, over UDP and TCP.
 * @param answer to a name after this number of queries, with that type; null for a name that does not exist
 */
export async function nameServer(
  answer: (name: string, asked: number, type: number) => Answer | null,
): Promise<NameServer> {
  const asked: string[] = [];
  const reply = (query: Buffer, limit: number): { bytes: Buffer; after: Promise<unknown> } | null => {
    const { name, type, end } = question(query);
    const before = asked.filter((each) => each === `${name} ${type}`).length;
    asked.push(`${name} ${type}`);
    return answerTo(query, end, type, answer(name, before, type), limit);
  };
  const { udp, tcp, port } = await sockets();
  // A client that has left: the datagrams to it are returned.
  udp.on("error", () => undefined);
  udp.on("message", (query: Buffer, { port: from, address }: RemoteInfo) => {
    const said = reply(query, UDP_BYTES_MAX);
    if (said !== null) void said.after.then(() => udp.send(said.bytes, from, address));
  });
  tcp.on("connection", (socket) => {
    socket.on("error", () => undefined);
    socket.on("data", (bytes: Buffer) => {
      const said = reply(bytes.subarray(2), 65_535);
      if (said === null) return;
      const length = Buffer.alloc(2);
      length.writeUInt16BE(said.bytes.byteLength);
      socket.write(Buffer.concat([length, said.bytes]));
    });
  });
  return {
    address: `127.0.0.1:${port}`,
    asked,
    [Symbol.asyncDispose]: async () => {
      await new Promise<void>((resolve) => udp.close(resolve));
      await new Promise((resolve) => tcp.close(resolve));
    },
  };
}

/** Both protocols on one port, which the kernel chooses. */
async function sockets(): Promise<{ udp: Socket; tcp: Server; port: number }> {
  for (;;) {
    const udp = createSocket("udp4");
    await new Promise<void>((resolve) => udp.bind(0, "127.0.0.1", resolve));
    const { port } = udp.address();
    const tcp = createServer();
    const isFree = await new Promise<boolean>((resolve) => {
      tcp.once("error", () => resolve(false));
      tcp.listen(port, "127.0.0.1", () => resolve(true));
    });
    if (isFree) return { udp, tcp, port };
    udp.close();
  }
}

function question(query: Buffer): { name: string; type: number; end: number } {
  const labels: string[] = [];
  let at = HEADER_BYTES;
  for (let length = query[at] ?? 0; length > 0; length = query[at] ?? 0) {
    labels.push(query.subarray(at + 1, at + 1 + length).toString("latin1"));
    at += 1 + length;
  }
  return { name: labels.join("."), type: query.readUInt16BE(at + 1), end: at + 5 };
}

function answerTo(query: Buffer, end: number, type: number, answer: Answer | null, limit: number) {
  if (answer === "silence") return null;
  if (answer === "nonsense") return { bytes: Buffer.from(query.subarray(0, 2)), after: Promise.resolve() };
  const addresses = typeof answer === "object" ? answer : null;
  const records =
    answer === "loop"
      ? [record(TYPES.CNAME, 60, Buffer.from([0xc0, HEADER_BYTES]))]
      : addressRecords(addresses?.addresses ?? [], type, addresses?.ttl ?? 60);
  const code = answer === null ? CODES.missing : answer === "failure" ? CODES.failed : CODES.none;
  const whole = message(query, end, code, records);
  // A client repeats the query over TCP.
  const bytes = whole.byteLength > limit ? message(query, end, code, [], true) : whole;
  return { bytes, after: addresses?.after ?? Promise.resolve() };
}

function addressRecords(addresses: readonly string[], type: number, ttl: number): Buffer[] {
  const ofFamily = addresses.filter((each) => each.includes(":") === (type === TYPES.AAAA));
  if (type !== TYPES.A && type !== TYPES.AAAA) return [];
  return ofFamily.map((each) => record(type, ttl, addressBytes(each)));
}

function addressBytes(address: string): Buffer {
  if (!address.includes(":")) return Buffer.from(address.split(".").map(Number));
  const [head = "", tail = ""] = new URL(`http://[${address}]`).hostname.slice(1, -1).split("::");
  const groups = (text: string): string[] => text.split(":").filter((each) => each !== "");
  const [before, after] = [groups(head), groups(tail)];
  const zeros: string[] = Array(8 - before.length - after.length).fill("0");
  return Buffer.from([...before, ...zeros, ...after].map((group) => group.padStart(4, "0")).join(""), "hex");
}

function record(type: number, ttl: number, data: Buffer): Buffer {
  const head = Buffer.alloc(12);
  head.writeUInt16BE(0xc000 | HEADER_BYTES, 0);
  head.writeUInt16BE(type, 2);
  head.writeUInt16BE(1, 4);
  head.writeUInt32BE(ttl, 6);
  head.writeUInt16BE(data.byteLength, 10);
  return Buffer.concat([head, data]);
}

function message(query: Buffer, end: number, code: number, records: readonly Buffer[], isCut = false): Buffer {
  const head = Buffer.alloc(HEADER_BYTES);
  query.copy(head, 0, 0, 2);
  head.writeUInt16BE(0x8180 | (isCut ? 0x200 : 0) | code, 2);
  head.writeUInt16BE(1, 4);
  head.writeUInt16BE(records.length, 6);
  return Buffer.concat([head, query.subarray(HEADER_BYTES, end), ...records]);
}
