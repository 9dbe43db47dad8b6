import type { ComponentChildren } from "preact";
import { CopyButton } from "./copy-button.tsx";

export interface EmptyProps {
  readonly title: string;
  readonly text?: ComponentChildren;
  /** the exact command that makes the first one */
  readonly command?: string;
  /** a button or a link */
  readonly action?: ComponentChildren;
}

/** An empty place: says what to do next. */
export function Empty({ title, text, command, action }: EmptyProps) {
  return (
    <div class="empty stack items-start gap-3">
      <p class="large strong">{title}</p>
      {text === undefined ? null : <p class="prose muted">{text}</p>}
      {command === undefined ? null : <CommandLine text={command} />}
      {action === undefined ? null : <div class="empty-action">{action}</div>}
    </div>
  );
}

/** A command to be run in a shell, with a button that copies it. */
export function CommandLine({ text }: { readonly text: string }) {
  return (
    <div class="command-line inset row gap-1">
      <code tabIndex={0}>{text}</code>
      <CopyButton text={text} label="Copy the command" />
    </div>
  );
}
