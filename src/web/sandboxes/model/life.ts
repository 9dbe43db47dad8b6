import type { Sandbox } from "../../../client/types.ts";
import { durationText } from "../../text/format.ts";

/** Time until the deadline of a sandbox, in `milliseconds`; null: it has none. */
export function leftMs({ ends_at: endsAt, state }: Pick<Sandbox, "ends_at" | "state">, now: number): number | null {
  return endsAt === null || state === "ended" ? null : Math.max(0, Date.parse(endsAt) - now);
}

/** The end of the life of a sandbox, as one sentence. */
export function lifeText(
  sandbox: Pick<Sandbox, "ends_at" | "state" | "on_timeout" | "idle_timeout" | "auto_resume">,
): string {
  const { state, ends_at: endsAt, on_timeout: onTimeout, idle_timeout: idleSeconds, auto_resume: autoResume } = sandbox;
  if (state === "ended") return "It has ended.";
  if (state === "paused") return autoResume ? "The next request resumes it." : "It stays paused until it is resumed.";
  const idle = idleSeconds === null ? "" : `after ${durationText(idleSeconds * 1000)} without use`;
  if (endsAt === null) return idle === "" ? "It has no deadline." : `It pauses ${idle}.`;
  if (onTimeout === "pause") return idle === "" ? "Then it pauses." : `Then, or ${idle}, it pauses.`;
  return idle === "" ? "Then it ends." : `Then it ends. It pauses ${idle}.`;
}
