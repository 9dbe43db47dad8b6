/** Scripted agents for a host that comes after another one. */
import { Agent, type ReconnectOptions } from "../../../src/vm/agent/agent.ts";
import { packIntegers } from "../../../src/vm/agent/frames.ts";
import {
  AgentFrame,
  DisksState,
  HostFrame,
  INPUT_WINDOW_BYTES_INITIAL,
  PROTOCOL_VERSION,
  SessionFlag,
} from "../../../src/vm/agent/protocol.ts";
import { deadline } from "../waiting.ts";
import { ScriptedAgent } from "./scripted-peer.ts";

/** A session as the agent lists it. */
export interface Listed {
  readonly id: number;
  readonly target?: number;
  readonly flags?: number;
  readonly pid?: number;
  readonly tag?: number;
  readonly zero?: number;
  readonly stdinTaken?: number | bigint;
  readonly stdinCredit?: number | bigint;
  readonly stdoutFrom?: number | bigint;
  readonly stderrFrom?: number | bigint;
  readonly ranMs?: number | bigint;
  readonly kept?: number | bigint;
  readonly limitMs?: number | bigint;
}

export function sessionEntry(listed: Listed): Uint8Array {
  const { id, target = 0, flags = SessionFlag.started | SessionFlag.stdin, pid = 7, tag = 0, zero = 0 } = listed;
  const { stdinTaken = 0, stdinCredit = INPUT_WINDOW_BYTES_INITIAL, stdoutFrom = 0, stderrFrom = 0 } = listed;
  const { ranMs = 5, kept = 0, limitMs = 1000 } = listed;
  const words = [id, target, flags, pid, tag, zero].map((value) => [32, value] as const);
  const longs = [stdinTaken, stdinCredit, stdoutFrom, stderrFrom, ranMs, kept, limitMs];
  return packIntegers(...words, ...longs.map((value) => [64, value] as const));
}

export function sendHello(guest: ScriptedAgent, version = PROTOCOL_VERSION): void {
  guest.send(AgentFrame.hello, 0, packIntegers([32, version], [32, 0]), Buffer.from("6.1.0"));
}

interface Resumed {
  readonly sessions: readonly Listed[];
  readonly disks?: number;
  readonly count?: number;
  /** added to the nonce */
  readonly off?: bigint;
}

/** Answers the RESUME of the host. */
export async function sendResumed(
  guest: ScriptedAgent,
  { sessions, disks = DisksState.root, count = sessions.length, off = 0n }: Resumed,
): Promise<void> {
  const { payload } = await guest.frame(HostFrame.resume);
  const head = packIntegers([64, payload.readBigUInt64LE(8) + off], [32, disks], [32, count]);
  guest.send(AgentFrame.resumed, 0, head, ...sessions.map(sessionEntry));
}

/** Agents to which a host connects one after another; each is played by `play`. */
export function reconnecting(
  plays: readonly ((guest: ScriptedAgent) => void)[],
  options: Partial<ReconnectOptions> = {},
) {
  const guests: ScriptedAgent[] = [];
  const connect = () => {
    const guest = new ScriptedAgent();
    plays[guests.length]?.(guest);
    guests.push(guest);
    return guest.channel;
  };
  const reconnect = async (pauseMs: number) => {
    const { promise, resolve } = Promise.withResolvers<void>();
    using _timer = deadline(pauseMs, resolve);
    await promise;
    return connect();
  };
  const stream = { channel: connect(), reconnect };
  const signal = new AbortController().signal;
  return { guests, reconnected: Agent.reconnect(stream, { network: null, signal, ...options }) };
}

/** A host that has resumed with an agent which lists these sessions. */
export async function resumed(sessions: readonly Listed[], options: Partial<ReconnectOptions> = {}) {
  const play = (guest: ScriptedAgent) => {
    sendHello(guest);
    void sendResumed(guest, { sessions });
  };
  const { guests, reconnected } = reconnecting([play], options);
  const result = await reconnected;
  const [guest] = guests;
  if (guest === undefined) throw new Error("no agent was connected to");
  return { guest, ...result };
}
