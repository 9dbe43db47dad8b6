import { impossibleSteps } from "../../support/sandboxes/story.ts";
import { pause, until } from "../../support/waiting.ts";
import { BUSY } from "../requests.ts";
import type { Box } from "./box.ts";

const TRY_AGAIN_MS = 100;
const SIGTERM_MS_MAX = 120_000;

/** Ends the talkers, and proves every acknowledged fact, then ends the sandbox and compares its whole log. */
export async function finish(box: Box): Promise<void> {
  await box.recover();
  for (const { spid } of box.log.talkers) await end(box, spid);
  for (const path of box.files.keys()) await requireFile(box, path);
  await requireTokens(box);
  await box.log.finish();
  const problems = impossibleSteps(box.log.steps);
  if (problems.length > 0) box.problem(`its states: ${problems.join("; ")}`);
  for (;;) {
    const answer = await box.requests.ask("end", `/sandboxes/${box.id}?wait=30`, { method: "DELETE" });
    if (answer?.status === 200) break;
    if (answer !== null && answer.status !== 202 && !BUSY.includes(answer.status) && answer.status !== 409) {
      return box.problem(`end: ${answer.status} ${answer.text}`);
    }
    await pause("before the next try", TRY_AGAIN_MS);
  }
}

/** Ends a talker by SIGTERM, after which it says how many lines it wrote. */
async function end(box: Box, spid: number): Promise<void> {
  const path = `/sandboxes/${box.id}/processes/${spid}?signal=TERM`;
  const isOver = () => {
    const process = box.log.processes.get(spid);
    return process === undefined || process.exit !== null || process.isLost;
  };
  // Before it talks, the signal kills it.
  await box.untilOver(() => isOver() || (box.log.processes.get(spid)?.talker?.lines ?? 0) > 0, `talker ${spid} talks`);
  for (const endsAt = Date.now() + SIGTERM_MS_MAX; Date.now() < endsAt && !isOver(); ) {
    await box.requests.ask("signal", path, { method: "DELETE" });
    await until("the talker ends", isOver, 5000).catch(() => undefined);
  }
  const process = box.log.processes.get(spid);
  if (!isOver()) box.problem(`talker ${spid} does not end`);
  else if (process?.isLost === false && process.exit?.exit_code !== 0) {
    box.problem(`talker ${spid} ended with ${JSON.stringify(process.exit)}`);
  }
}

/** A file that was acknowledged, unless its machine is lost meanwhile. */
export async function requireFile(box: Box, path: string): Promise<void> {
  for (;;) {
    const answer = await box.requests.ask("read", `/sandboxes/${box.id}/files?path=${path}`);
    const content = box.files.get(path);
    if (content === undefined) return;
    if (answer?.status === 409) await box.recover();
    else if (answer !== null && !BUSY.includes(answer.status)) {
      if (answer.status !== 200 || answer.text !== content) {
        box.problem(`${path}: ${answer.status} "${answer.text.slice(0, 100)}"`);
      }
      return;
    }
    await pause("before the next try", TRY_AGAIN_MS);
  }
}

/** Every acknowledged process is in the log, with its output exactly once, unless its machine was lost. */
async function requireTokens(box: Box): Promise<void> {
  const isOver = (spid: number) => {
    const process = box.log.processes.get(spid);
    return process !== undefined && (process.exit !== null || process.isLost);
  };
  await box.untilOver(() => [...box.tokens.keys()].every(isOver), "the acknowledged processes end");
  for (const [spid, token] of box.tokens) {
    const process = box.log.processes.get(spid);
    if (process === undefined) box.problem(`process ${spid} was acknowledged, and is not in the log`);
    else if (process.exit?.exit_code === 0 ? process.text !== `${token}\n` : !process.isLost) {
      box.problem(`process ${spid} of ${token} is ${JSON.stringify({ ...process, places: [] })}`);
    }
  }
}
