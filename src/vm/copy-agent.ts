import {
  Agent,
  AgentProtocolError,
  type ExecHandle,
  type ReconnectOptions,
  type ResumedAgent,
  type ResumeOptions,
} from "./agent/agent.ts";
import type { AgentRecord } from "./agent/record.ts";
import { syncAgent } from "./templates.ts";
import type { Machine } from "./vmm.ts";

/** Receivers of what an agent sends, and what ends the attempts to reach it. */
export type CopyOptions = ResumeOptions & Pick<ReconnectOptions, "signal">;

/**
 * Starts a copy that `Vmm.cloneFork` made, and continues its agent: on the stream of the forked machine where the VMM copies it,
 * and otherwise over a new connection, for which frames that waited for the end of the hold are dropped, except limits and sizes of
 * terminals, and connections of the guest are reset. Gives the guest a time and entropy of its own.
 * @param record of the agent during the hold in which the fork was taken
 * @throws as `Agent.reconnect` and `syncAgent` do. The caller must then end the machine.
 */
async function continueCopy(machine: Machine, record: AgentRecord, options: CopyOptions): Promise<ResumedAgent> {
  if (machine.hasNewStream !== true) {
    const resumed = Agent.resume(machine.channel, record, options);
    await machine.resume();
    await syncAgent(resumed.agent);
    return resumed;
  }
  if (machine.reconnect === undefined) throw new Error("a machine with a new stream cannot be connected to");
  const reconnect = machine.reconnect.bind(machine);
  await machine.resume();
  const channel = await reconnect();
  const { agent, sessions } = await Agent.reconnect({ channel, reconnect }, options);
  const processes = record.processes.map((from): ExecHandle => {
    const report = sessions.find(({ session }) => session === from.session);
    if (report === undefined) throw new AgentProtocolError(`a copy of the guest has lost session ${from.session}`);
    const { onStart, ...ends } = options.process(from);
    const handle = agent.attach(report, {
      ...ends,
      ...(from.pid === null && onStart !== undefined ? { onStart } : {}),
      // The forked machine's receivers have the output up to here, and the agent all input that was sent.
      logged: { stdout: from.stdout.receivedBytes, stderr: from.stderr.receivedBytes },
      keepsInput: from.firstInput === "stays_open",
    });
    if (from.unsentSize !== null) handle.resize(from.unsentSize);
    if (from.unsentLimit !== null) handle.limit(from.unsentLimit.timeoutMs);
    return handle;
  });
  agent.proceed();
  await syncAgent(agent);
  return { agent, processes, connections: [] };
}

export { continueCopy };
