import type { ComponentChildren } from "preact";
import type { OperationStatus } from "../../client/types.ts";
import { KIND_FACTS, type OperationKind } from "../../domain/operation.ts";
import { classes } from "./classes.ts";

/** Names of the kinds of operations, in all views. */
export const kindLabel = (kind: OperationKind): string => KIND_FACTS[kind].label;

export type BadgeTone = "neutral" | "accent" | "warning" | "danger";

/** A word or a figure next to its subject, such as a tag. */
export function Badge({
  tone = "neutral",
  children,
}: {
  readonly tone?: BadgeTone;
  readonly children?: ComponentChildren;
}) {
  return <span class={classes("badge gap-1 nowrap small", tone !== "neutral" && `badge-${tone}`)}>{children}</span>;
}

export interface StatusProps {
  readonly status: OperationStatus;
  /** of the command, if it ended */
  readonly exitCode?: number | null | undefined;
  readonly isTimedOut?: boolean | undefined;
  /** true: the mark alone, with the word as its title */
  readonly isBrief?: boolean;
}

/** A status of an operation or a sandbox as it is shown: a mark, whose shape and colour both show it, and a word. */
export interface StatusLabel {
  readonly mark: "waiting" | "running" | "paused" | "done" | "failed" | "cancelled";
  readonly tone: BadgeTone;
  readonly text: string;
}

/** The status of an operation. */
export function StatusMark({ isBrief, ...props }: StatusProps) {
  return <LabelMark label={statusLabel(props)} isBrief={isBrief} />;
}

/** A status: its mark and its word. */
export function LabelMark(props: { readonly label: StatusLabel; readonly isBrief?: boolean | undefined }) {
  const { label, isBrief } = props;
  const { mark, tone, text } = label;
  return (
    <span class={classes("status", tone === "neutral" ? "muted" : tone)} title={isBrief === true ? text : undefined}>
      <svg class="status-mark" viewBox="0 0 12 12" aria-hidden="true">
        <path d={MARKS[mark]} class={mark === "running" || mark === "failed" ? "status-filled" : undefined} />
      </svg>
      <span class={isBrief === true ? "visually-hidden" : "status-text"}>{text}</span>
    </span>
  );
}

const MARKS: Readonly<Record<StatusLabel["mark"], string>> = {
  waiting: "M6 10.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9Z",
  running: "M6 11a5 5 0 1 0 0-10 5 5 0 0 0 0 10Z",
  paused: "M4 1.5v9M8 1.5v9",
  done: "m1.8 6.4 2.8 2.8 5.6-6",
  failed: "M6 .8 11.2 6 6 11.2.8 6 6 .8Z",
  cancelled: "M6 10.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9ZM2.9 9.1l6.2-6.2",
};

/** The label of a status, the same in all views. */
export function statusLabel({ status, exitCode, isTimedOut }: Omit<StatusProps, "isBrief">): StatusLabel {
  switch (status) {
    case "PENDING":
      return { mark: "waiting", tone: "neutral", text: "Waiting" };
    case "EXECUTING":
      return { mark: "running", tone: "accent", text: "Running" };
    case "CANCELLED":
      return { mark: "cancelled", tone: "neutral", text: "Cancelled" };
    case "FAILED":
      return { mark: "failed", tone: "danger", text: "Failed" };
    case "SUCCESS":
      if (isTimedOut === true) return { mark: "failed", tone: "warning", text: "Time limit" };
      if (exitCode === undefined || exitCode === null || exitCode === 0)
        return { mark: "done", tone: "neutral", text: "Done" };
      return { mark: "failed", tone: "warning", text: `Exit ${exitCode}` };
  }
}
