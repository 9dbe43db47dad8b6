import { readFileSync } from "node:fs";
import { join } from "node:path";
import { until } from "../waiting.ts";
import type { NativeAgent } from "./native-agent.ts";

/** Lengths of a held SYN: see vm-assets/agent/network/packets.h. */
const HELD_IP_BYTES = 40;
const HELD_TCP_BYTES_MAX = 60;
export const HELD_BYTES = HELD_IP_BYTES + HELD_TCP_BYTES_MAX + 4;
export const [PROTOCOL_ICMP, PROTOCOL_TCP, PROTOCOL_UDP, PROTOCOL_ICMPV6] = [1, 6, 17, 58];
export const [FLAG_SYN, FLAG_RST, FLAG_ACK] = [2, 4, 16];

/** The two ends of a packet; addresses have 4 or 16 bytes. */
export interface Ends {
  readonly from: Uint8Array;
  readonly to: Uint8Array;
  readonly fromPort: number;
  readonly toPort: number;
}

export const ipv4 = (text: string): Buffer => Buffer.from(text.split(".").map(Number));
export const ipv6 = (hex: string): Buffer => Buffer.from(hex.replaceAll(":", ""), "hex");

function u16be(value: number): Buffer {
  const bytes = Buffer.alloc(2);
  bytes.writeUInt16BE(value);
  return bytes;
}

function ipHeader(ends: Pick<Ends, "from" | "to">, protocol: number, payloadBytes: number): Buffer {
  if (ends.to.length === 4) {
    const head = [0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0];
    const header = Buffer.from([...head, ...ends.from, ...ends.to]);
    header.writeUInt16BE(20 + payloadBytes, 2);
    return header;
  }
  const header = Buffer.from([0x60, 0, 0, 0, 0, 0, protocol, 64, ...ends.from, ...ends.to]);
  header.writeUInt16BE(payloadBytes, 4);
  return header;
}

function tcpHeader(ends: Ends, sequence: number, options: Uint8Array): Buffer {
  const header = Buffer.alloc(20 + options.length);
  header.writeUInt16BE(ends.fromPort, 0);
  header.writeUInt16BE(ends.toPort, 2);
  header.writeUInt32BE(sequence, 4);
  header[12] = (header.length / 4) << 4;
  header[13] = FLAG_SYN;
  header.writeUInt16BE(64_240, 14);
  header.set(options, 20);
  return header;
}

/** A held SYN as the filter in the kernel copies it. */
export function heldSyn(ends: Ends, sequence = 1000, options: Uint8Array = Buffer.from([2, 4, 5, 0xb4])): Buffer {
  const record = Buffer.alloc(HELD_BYTES);
  const tcp = tcpHeader(ends, sequence, options);
  const ip = ipHeader(ends, PROTOCOL_TCP, tcp.length);
  record.set(ip, 0);
  // Bytes behind a short IP header in the packet.
  record.set(tcp.subarray(0, HELD_IP_BYTES - ip.length), ip.length);
  record.set(tcp, HELD_IP_BYTES);
  record.writeUInt32LE(tcp.length, HELD_IP_BYTES + HELD_TCP_BYTES_MAX);
  return record;
}

/** A packet that the agent sent, with correct checksums. */
export interface Packet {
  readonly protocol: number;
  readonly from: Buffer;
  readonly to: Buffer;
  readonly payload: Buffer;
}

function sum(bytes: Uint8Array): number {
  let total = 0;
  const even = bytes.length % 2 === 0 ? bytes : Buffer.concat([bytes, Buffer.alloc(1)]);
  for (let at = 0; at < even.length; at += 2) total += ((even[at] ?? 0) << 8) | (even[at + 1] ?? 0);
  while (total > 0xffff) total = (total & 0xffff) + (total >> 16);
  return total;
}

/** @throws Error when a length or a checksum is wrong */
export function parsePacket(bytes: Buffer): Packet {
  const isIpv4 = (bytes[0] ?? 0) >> 4 === 4;
  const packet = isIpv4
    ? { protocol: bytes[9] ?? 0, from: bytes.subarray(12, 16), to: bytes.subarray(16, 20), payload: bytes.subarray(20) }
    : { protocol: bytes[6] ?? 0, from: bytes.subarray(8, 24), to: bytes.subarray(24, 40), payload: bytes.subarray(40) };
  const length = isIpv4 ? bytes.readUInt16BE(2) : 40 + bytes.readUInt16BE(4);
  if (length !== bytes.length) throw new Error(`a packet of ${bytes.length} bytes that says ${length}`);
  if (isIpv4 && sum(bytes.subarray(0, 20)) !== 0xffff) throw new Error("the checksum of the IP header is wrong");
  const { from, to, protocol, payload } = packet;
  const pseudo = Buffer.concat([from, to, u16be(payload.length), u16be(protocol)]);
  const checked = protocol === PROTOCOL_ICMP ? payload : Buffer.concat([pseudo, payload]);
  if (sum(checked) !== 0xffff) throw new Error(`the checksum of protocol ${protocol} is wrong`);
  return packet;
}

/** A DNS query. */
export function dnsQuestion(name: string, type: number, id = 7): Buffer {
  const labels = name.split(".").filter((label) => label !== "");
  const wire = Buffer.concat([
    ...labels.map((label) => Buffer.concat([Buffer.from([Buffer.byteLength(label)]), Buffer.from(label)])),
    Buffer.alloc(1),
  ]);
  return Buffer.concat([u16be(id), Buffer.from([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]), wire, u16be(type), u16be(1)]);
}

export interface DnsAnswer {
  readonly id: number;
  readonly code: number;
  /** the query, unchanged */
  readonly question: Buffer;
  /** the data of the only record, or null */
  readonly data: Buffer | null;
}

/** Parses an answer to `question`. @throws Error when it is not one */
export function parseAnswer(question: Buffer, answer: Buffer): DnsAnswer {
  const [flags, questions, records] = [answer.readUInt16BE(2), answer.readUInt16BE(4), answer.readUInt16BE(6)];
  if ((flags & 0x8000) === 0 || answer.readUInt32BE(8) !== 0 || records > 1) throw new Error(answer.toString("hex"));
  const end = questions === 0 ? 12 : question.length;
  const record = answer.subarray(end);
  if (records === 0 && record.length > 0) throw new Error("bytes after the last record");
  if (records === 1 && record.length !== 12 + record.readUInt16BE(10)) throw new Error("a record of another length");
  return {
    id: answer.readUInt16BE(0),
    code: flags & 15,
    question: answer.subarray(12, end),
    data: records === 1 ? record.subarray(12) : null,
  };
}

/** The kernel's side of the network of a native agent: see vm-assets/agent/native/network.c. */
export class Kernel implements Disposable {
  /** the port on which connections of released SYNs arrive */
  readonly listener: number;
  /** ports of the name server */
  readonly datagrams: number;
  readonly streams: number;
  readonly #socket: Bun.udp.Socket<"buffer">;
  readonly #port: number;
  readonly #packets: Packet[] = [];
  #failure: unknown = null;

  private constructor(ports: readonly number[], socket: Bun.udp.Socket<"buffer">) {
    [this.#port = 0, this.listener = 0, this.datagrams = 0, this.streams = 0] = ports;
    this.#socket = socket;
  }

  /** The agent must have answered a frame, because it sets up the network after its greeting. */
  static async open(agent: Pick<NativeAgent, "directory"> & { sync(): Promise<unknown> }): Promise<Kernel> {
    const ports = readFileSync(join(agent.directory, "network"), "latin1").trim().split(" ").map(Number);
    const opened: Kernel[] = [];
    const socket = await Bun.udpSocket({
      hostname: "127.0.0.1",
      socket: { data: (_socket, bytes) => opened[0]?.take(bytes) },
    });
    const kernel = new Kernel(ports, socket);
    opened.push(kernel);
    // The agent sends its packets to the origin of a SYN, even of an empty one.
    kernel.hold(Buffer.alloc(0));
    await agent.sync();
    return kernel;
  }

  take(bytes: Buffer): void {
    try {
      this.#packets.push(parsePacket(Buffer.from(bytes)));
    } catch (error) {
      this.#failure ??= error;
    }
  }

  /** Sends a held SYN, or other bytes, to the agent. */
  hold(record: Uint8Array): void {
    this.#send(record, this.#port);
  }

  #send(bytes: Uint8Array, port: number): void {
    if (!this.#socket.send(bytes, port, "127.0.0.1")) throw new Error("a datagram was not sent");
  }

  /** The packets that the agent has sent since the last call. @throws Error when one was malformed */
  received(): readonly Packet[] {
    if (this.#failure !== null) throw this.#failure;
    return this.#packets.splice(0);
  }

  /** The next packet of the agent. */
  async packet(): Promise<Packet> {
    await until("the agent sends a packet", () => this.#packets.length > 0 || this.#failure !== null);
    if (this.#failure !== null) throw this.#failure;
    return this.#packets.shift() as Packet;
  }

  /** Sends a query, whose answer arrives as a packet from port 53. */
  ask(message: Uint8Array): void {
    this.#send(message, this.datagrams);
  }

  /** Sends a query and waits for the answer. */
  async answer(question: Buffer): Promise<DnsAnswer> {
    this.ask(question);
    const { protocol, payload } = await this.packet();
    if (protocol !== PROTOCOL_UDP || payload.readUInt16BE(0) !== 53 || payload.readUInt16BE(2) !== this.#socket.port) {
      throw new Error(`a packet of protocol ${protocol}`);
    }
    return parseAnswer(question, payload.subarray(8));
  }

  [Symbol.dispose](): void {
    this.#socket.close();
  }
}
