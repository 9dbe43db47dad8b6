/** Parts of conversations between the host's client and a scripted agent. */
import { Agent } from "../../../src/vm/agent/agent.ts";
import { packIntegers } from "../../../src/vm/agent/frames.ts";
import { AgentFrame, HostFrame, Stream } from "../../../src/vm/agent/protocol.ts";
import { failureOf } from "../failures.ts";
import { ScriptedAgent } from "./scripted-peer.ts";

export const text = (value: string) => Buffer.from(value);
export const done = (value = 0n) => packIntegers([64, value]);
export const problem = (errno: number, message: string) =>
  Buffer.concat([packIntegers([32, errno], [32, 0]), text(message)]);
export const SPEC = { argv: ["/bin/true"], env: {}, cwd: "/", hostname: "h", timeoutMs: 1000 };
export const USAGE = [1, 2, 3, 4, 5, 6, 7, 8, 9] as const;
/** An EXIT; `status` as wait(2) would return it. */
export const exitPayload = (code: number, flags = 0, status = code > 128 ? code - 128 : code << 8, zero = 0) =>
  packIntegers(
    [32, flags],
    [32, code],
    [64, 1500],
    [64, 4096],
    [64, 9],
    [32, status],
    [32, zero],
    ...USAGE.map((value) => [64, value] as const),
  );

export function openAgent() {
  const guest = new ScriptedAgent();
  const lines: string[] = [];
  return { guest, lines, agent: Agent.open(guest.channel, { log: (line) => lines.push(line) }) };
}

/** A scripted guest with a running command, and the files before it. */
export async function openAgentFiles() {
  const { guest, agent } = openAgent();
  const command = agent.exec(SPEC, () => undefined);
  const { session } = await guest.frame(HostFrame.execOpen);
  guest.send(AgentFrame.started, session, packIntegers([32, 2]));
  await command.started;
  const files = agent.files(command);
  /** Sends bytes of the stream of a request. */
  const output = (to: number, bytes: Uint8Array) =>
    guest.send(AgentFrame.output, to, packIntegers([32, Stream.stdout]), bytes);
  return { guest, agent, command: session, files, output };
}

export const failure = async (promise: Promise<unknown>) => (await failureOf(promise)) as Error;
