import { Spid } from "../../../domain/log-event.ts";
import type { AgentConnection } from "../../../vm/agent/agent.ts";
import type { ReadyMachine } from "../../machines/machine-source.ts";
import { type InstanceRecord, ProcessNumbers, type ResumeOptions, tapped } from "../instance-process.ts";
import { ProcessTaps } from "../process-taps.ts";
import { type ContinuedProcess, RunningInstance } from "../running-instance.ts";

/**
 * Continues with the instance of a record in the same machine, or in a copy of it. Every open tap needs a reader or must be
 * disposed of, and every connection needs a user or must be reset. An additional process that has not received all of its
 * first input is killed, because its input came from its caller.
 * @throws as `continueAgent` does; the machine is the caller's then
 */
export async function resumeInstance(
  ready: Omit<ReadyMachine, "agent">,
  record: InstanceRecord,
  { continueAgent, network, sinkOf, stored, commandInput, numbers: onward }: ResumeOptions,
): Promise<{ readonly instance: RunningInstance; readonly connections: readonly AgentConnection[] }> {
  const processes = record.processes.map((from) => {
    const sink = sinkOf(from.log);
    return { from, sink, taps: new ProcessTaps(sink.bytes, from.taps) };
  });
  const {
    agent,
    processes: handles,
    connections,
  } = await continueAgent(record.agent, {
    network,
    process: ({ session, firstInput, stdin }) => {
      const process = processes.find(({ from }) => from.session === session);
      if (process === undefined) throw new Error("a session without a process");
      const { from, sink, taps } = process;
      const takesInput = from.spid === Spid.command && firstInput !== "sent";
      const first = takesInput ? commandInput(stdin.sentBytes) : undefined;
      return { ...tapped(sink, taps), stored, first };
    },
  });
  const continued = processes.map(({ from, sink, taps }): ContinuedProcess => {
    const { spid, cwd, keepsInput } = from;
    const handle = handles.find(({ session }) => session === from.session);
    const session = record.agent.processes.find(({ session }) => session === from.session);
    if (handle === undefined || session === undefined) throw new Error("a process without a session");
    const { hasTerminal, stdin, firstInput, pid } = session;
    const input = { keepsInput, isInputOpen: keepsInput && !stdin.isOver, isCut: firstInput !== "sent" };
    return { spid, cwd, hasTerminal, hasStarted: pid !== null, ...input, handle, sink, taps };
  });
  const numbers = new ProcessNumbers({ ...onward, last: record.spidLast }, record.refused);
  const { disks } = record;
  return {
    instance: RunningInstance.continue({ ...ready, agent }, { disks, numbers, processes: continued }),
    connections,
  };
}
