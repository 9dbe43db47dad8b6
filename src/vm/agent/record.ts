import type { Destination } from "../../domain/network.ts";

/*
 * The host's side of one guest's stream as plain data, which JSON can carry. It is recorded during a hold, when no frame is
 * on its way, so other objects can continue from it on the same machine. All positions count from the start of a stream.
 */

/** A stream that the guest sends. Bytes that were received and neither consumed nor granted again wait for their reader. */
export interface ReceivedRecord {
  /** size of the window: the credit, the consumed bytes and those that wait */
  readonly sizeBytes: number;
  readonly creditBytes: number;
  /** bytes that the reader has consumed since the last grant */
  readonly consumedBytes: number;
  /** position */
  readonly receivedBytes: number;
}

/** A stream that the host sends. */
export interface SentRecord {
  readonly creditBytes: number;
  /** position: a write under way was sent up to it */
  readonly sentBytes: number;
  /** true when the end was sent, or the guest no longer reads */
  readonly isOver: boolean;
}

/**
 * The part of the first input that a command has not received; the first input belongs to its start, unlike later writes.
 * sent: none. stays_open: the rest, then later writes. ends: the rest, then the end of the input.
 */
export type FirstInput = "sent" | "stays_open" | "ends";

/** A running command. */
export interface ProcessRecord {
  readonly class: "process";
  readonly session: number;
  /** null: the agent has not reported its start yet */
  readonly pid: number | null;
  readonly hasTerminal: boolean;
  readonly stdout: ReceivedRecord;
  readonly stderr: ReceivedRecord;
  readonly stdin: SentRecord;
  readonly firstInput: FirstInput;
  /** values that were set and not sent */
  readonly unsentSize: { readonly rows: number; readonly columns: number } | null;
  readonly unsentLimit: { readonly timeoutMs: number } | null;
}

/** A connection between the host and a program of the guest. */
export interface ConnectionRecord {
  readonly class: "connection";
  readonly session: number;
  /** the destination that the guest requested; null: the host opened the connection */
  readonly destination: Destination | null;
  /** false: the other side has not accepted the connection yet */
  readonly isOpen: boolean;
  readonly inbound: ReceivedRecord;
  /** bytes that wait for their reader, in base64 */
  readonly waiting: string;
  readonly outbound: SentRecord;
  /** the ends that were sent: of the host's direction, of the guest's, and of both */
  readonly sentEnd: boolean;
  readonly gotEnd: boolean;
  readonly sentReset: boolean;
}

/** A query for a name that has no answer yet. */
export interface QueryRecord {
  readonly number: number;
  /** type of the requested records, as in DNS */
  readonly type: number;
  readonly name: string;
}

/** A frame to be sent after the hold. */
export interface FrameRecord {
  readonly type: number;
  readonly session: number;
  /** in base64 */
  readonly payload: string;
}

export interface AgentRecord {
  readonly greeted: boolean;
  /** number of the guest's lines in the host's log */
  readonly logLines: number;
  /** id of the latest session that the host opened */
  readonly lastSession: number;
  /** the same of the guest; includes connections that were refused at once */
  readonly lastGuestSession: number;
  /** connections that the guest tried to open without a network */
  readonly uninvitedCount: number;
  readonly processes: readonly ProcessRecord[];
  readonly connections: readonly ConnectionRecord[];
  readonly queries: readonly QueryRecord[];
  /** in the order in which they are to be sent */
  readonly frames: readonly FrameRecord[];
}

export function toBase64(bytes: Uint8Array): string {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString("base64");
}

export function fromBase64(text: string): Uint8Array {
  return Buffer.from(text, "base64");
}
