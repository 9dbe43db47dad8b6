import { SIGKILL_SIGNAL } from "../../../domain/signals.ts";
import type { ProcessEnd } from "../../../service/running/attach.ts";
import type { ProcessName } from "../../../service/running/running.ts";
import { type Content, text } from "../answer.ts";
import { shownKept } from "../output.ts";
import { HeadAndTail } from "../text.ts";
import type { ToolCall } from "../tool.ts";

/** The state of a process and its outputs, as a call has read them. */
export interface ReadProcess {
  /** "running": the time was over; "lost": its machine is gone */
  readonly state: "running" | "ended" | "lost";
  readonly end: ProcessEnd | null;
  /** its outputs, from the beginning */
  readonly items: readonly Content[];
}

/**
 * Waits until a process has ended, at most `waitSeconds`, and returns its outputs from the beginning in at most `bytesMax`.
 * When the caller leaves before, the process is killed.
 * @throws as `processes.attach` does; the reason of the call's signal
 */
export async function readProcess(
  call: ToolCall,
  name: ProcessName,
  { waitSeconds, bytesMax }: { readonly waitSeconds: number; readonly bytesMax: number },
): Promise<ReadProcess> {
  const { service, principal, signal } = call;
  const kept = { stdout: new HeadAndTail(bytesMax), stderr: new HeadAndTail(Math.floor(bytesMax / 2)) };
  let [state, end]: [ReadProcess["state"], ProcessEnd | null] = ["running", null];
  using undo = new DisposableStack();
  const attachment = undo.use(await service.processes.attach(principal, { ...name, since: -1, lossless: false }));
  let isOver = false;
  const leave = () => {
    isOver = true;
    attachment[Symbol.dispose]();
  };
  const timer = setTimeout(leave, waitSeconds * 1000);
  undo.defer(() => clearTimeout(timer));
  signal.addEventListener("abort", leave, { once: true });
  undo.defer(() => signal.removeEventListener("abort", leave));
  if (signal.aborted) leave();
  try {
    for await (const item of attachment.items()) {
      if (item.kind === "output") kept[item.stream].push(item.bytes);
      if (item.kind === "end") [state, end] = [item.exit === null ? "lost" : "ended", item.exit];
    }
  } catch (error) {
    if (!isOver) throw error;
  }
  if (signal.aborted) await kill(call, name);
  signal.throwIfAborted();
  const items = (["stdout", "stderr"] as const).flatMap((stream) => shownKept(stream, kept[stream], REST));
  return { state, end, items: items.length === 0 ? [text("no output")] : items };
}

const REST = "a larger output_bytes shows more";

/** Kills a process that may have ended meanwhile. */
async function kill({ service, principal }: ToolCall, name: ProcessName): Promise<void> {
  // It has ended, or its machine has.
  await service.processes.signal(principal, name, SIGKILL_SIGNAL).catch(() => undefined);
}
