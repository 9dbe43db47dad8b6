import { SIGKILL_SIGNAL } from "../../../domain/signals.ts";
import type { ProcessEnd } from "../../../service/running/attach.ts";
import type { FollowedProcess } from "../../../service/running/followed.ts";
import { ownTurn } from "../../../system/turns.ts";
import { untilAborted } from "../../../system/waiting.ts";
import type { Envd } from "../envd-access.ts";
import type { E2bParts } from "../options.ts";
import type { RpcCall } from "../rpc/connect.ts";
import { RpcError } from "../rpc/errors.ts";

/** Other work gets a turn after so many items of one stream. */
const TURN_ITEMS_COUNT = 64;

/** The texts of signals in the ends of processes; any other one is its number. */
const SIGNAL_TEXTS: ReadonlyMap<number, string> = new Map([
  [1, "hangup"],
  [2, "interrupt"],
  [3, "quit"],
  [4, "illegal instruction"],
  [5, "trace/breakpoint trap"],
  [6, "aborted"],
  [7, "bus error"],
  [8, "floating point exception"],
  [9, "killed"],
  [10, "user defined signal 1"],
  [11, "segmentation fault"],
  [12, "user defined signal 2"],
  [13, "broken pipe"],
  [14, "alarm clock"],
  [15, "terminated"],
]);

/** The message that keeps a quiet stream open. */
export const KEEPALIVE = { event: { keepalive: {} } };

/**
 * Sends the start, the output and the end of a process. The process outlives the call.
 * @throws RpcError `deadline_exceeded` when its time limit has ended it; `unavailable` when it was lost with its machine
 */
export async function sendEvents(
  { service }: Pick<E2bParts, "service">,
  { envd, signal }: RpcCall,
  process: FollowedProcess,
  send: (message: object) => Promise<void>,
): Promise<void> {
  using _process = process;
  const { pid, hasTerminal } = process;
  await untilAborted(send({ event: { start: { pid } } }), signal);
  const items = process.items();
  for (let count = 1; ; count++) {
    if (count % TURN_ITEMS_COUNT === 0) await ownTurn(envd.principal.accountId);
    const { done, value: item } = await untilAborted(items.next(), signal);
    if (done === true) throw lostIn(service, envd);
    if (item.kind === "output") {
      const { buffer, byteOffset, byteLength } = item.bytes;
      const output = Buffer.from(buffer, byteOffset, byteLength).toString("base64");
      await untilAborted(send({ event: { data: { [hasTerminal ? "pty" : item.stream]: output } } }), signal);
    }
    if (item.kind !== "end") continue;
    // The end of its machine kills a process before it is lost.
    const isKilled =
      item.exit?.signal === SIGKILL_SIGNAL && service.e2b.find(envd.sandbox.id)?.sandbox.state !== "running";
    if (item.exit === null || isKilled) throw lostIn(service, envd);
    await untilAborted(send({ event: { end: endOf(item.exit) } }), signal);
    return;
  }
}

/** @throws RpcError `deadline_exceeded` when the time limit of the process has ended it */
function endOf({ exit_code, signal, timed_out }: ProcessEnd): object {
  if (timed_out) throw new RpcError("deadline_exceeded", "the command exceeded its time limit");
  if (signal !== null && signal !== 0) {
    const status = `signal: ${SIGNAL_TEXTS.get(signal) ?? signal}`;
    return { exitCode: -1, exited: false, status, error: status };
  }
  const status = `exit status ${exit_code}`;
  return { exitCode: exit_code, exited: true, status, ...(exit_code === 0 ? {} : { error: status }) };
}

/** The end of a process with its machine. Releases that do not ask then whether the sandbox runs pass the text on. */
function lostIn({ e2b }: E2bParts["service"], { sandbox }: Envd): RpcError {
  const isGone = e2b.find(sandbox.id) === null;
  const text = isGone ? "sandbox was killed or reached its end of life" : "machine of the sandbox ended";
  return new RpcError("unavailable", `the ${text} while the command was running`);
}
