import type { OperationEvent } from "../../../client/types.ts";
import { type SandboxState, STATE_LABELS } from "./states.ts";

/** A part of the story of a sandbox. */
export interface Chapter {
  readonly id: number;
  readonly time: string;
  /** the state that began; null: it stayed as it was */
  readonly state: SandboxState | null;
  readonly text: string;
  /** text of a caller or a guest, which is shown as such; empty: none */
  readonly detail: string;
}

/** Reasons of transitions, as the events have them. Others are shown as they are. */
const REASON_TEXTS: Readonly<Record<string, string>> = {
  request: "as requested",
  auto_resume: "for a request",
  idle: "because it was idle",
  deadline: "because its time was over",
  machine: "",
  restart: "because the appliance was restarted",
};

/** The changes of state among some events, newest first. */
export function storyOf(events: readonly OperationEvent[]): readonly Chapter[] {
  return events.flatMap((event) => chapterOf(event) ?? []).reverse();
}

function chapterOf({ id, time, type, data }: Omit<OperationEvent, "type"> & { readonly type: string }): Chapter | null {
  const { to, reason, ends_at: endsAt, dropped } = data as Readonly<Record<string, unknown>>;
  if (type === "ends_soon") {
    const text = `Its time ends at ${typeof endsAt === "string" ? endsAt.slice(11, 19) : "an unknown time"} UTC`;
    return { id, time, state: null, text, detail: "" };
  }
  if (type === "adopted")
    return { id, time, state: null, text: "It has outlived a restart of the appliance", detail: "" };
  if (type === "dropped") {
    return { id, time, state: null, text: `${Number(dropped)} earlier events were dropped`, detail: "" };
  }
  if (type !== "state" || typeof to !== "string" || !Object.hasOwn(STATE_LABELS, to)) return null;
  const state = to as SandboxState;
  const why = typeof reason === "string" ? reason : "";
  const isUsual = Object.hasOwn(REASON_TEXTS, why);
  return { id, time, state, text: isUsual ? (REASON_TEXTS[why] ?? "") : "", detail: isUsual ? "" : why };
}
