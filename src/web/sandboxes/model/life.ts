import { durationText } from "../../text/format.ts";
import type { Sandbox } from "../wire.ts";

/** Time until the deadline of a sandbox, in `milliseconds`; null: it has none. */
export function leftMs({ ends_at: endsAt, state }: Pick<Sandbox, "ends_at" | "state">, now: number): number | null {
  return endsAt === null || state === "ended" ? null : Math.max(0, Date.parse(endsAt) - now);
}

/** The next end of the life of a sandbox, as one sentence. */
export function lifeText(
  sandbox: Pick<Sandbox, "ends_at" | "state" | "on_timeout" | "idle_timeout" | "auto_resume">,
  now: number,
): string {
  const { state, on_timeout: onTimeout, idle_timeout: idleSeconds, auto_resume: autoResume } = sandbox;
  const verb = onTimeout === "pause" ? "pauses" : "ends";
  const left = leftMs(sandbox, now);
  if (state === "ended") return "It has ended.";
  if (state === "paused") return autoResume ? "The next request resumes it." : "It stays paused until it is resumed.";
  const idle = idleSeconds === null ? "" : `, or after ${durationText(idleSeconds * 1000)} without use`;
  if (left === null) return idle === "" ? "It has no deadline." : `It ${verb}${idle.slice(", or".length)}.`;
  return `It ${verb} in ${durationText(left)}${idle}.`;
}
