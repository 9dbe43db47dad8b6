import type { ComponentChildren } from "preact";
import { useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { isAbort, type Problem, problemOf } from "../data/problem.ts";
import { Button, IconButton } from "./button.tsx";
import { classes } from "./classes.ts";
import { ProblemNote } from "./problem-note.tsx";

export interface DialogProps {
  readonly title: ComponentChildren;
  readonly isWide?: boolean;
  /** called on Escape, a click outside or the close button; the caller then removes the dialog */
  readonly onClose: () => void;
  readonly children?: ComponentChildren;
  /** buttons at the bottom, the main one last */
  readonly actions?: ComponentChildren;
}

/**
 * A dialog, open while it is shown. The focus goes into it, to the first field for text if there is one, and back where
 * it was.
 */
export function Dialog({ title, isWide, onClose, children, actions }: DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const heading = useId();
  useLayoutEffect(() => {
    const element = dialog.current;
    const before = document.activeElement;
    if (element?.open === false) {
      element.showModal();
      element.querySelector<HTMLInputElement | HTMLTextAreaElement>(TEXT_FIELD)?.select();
    }
    return () => {
      element?.close();
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  return (
    <dialog
      ref={dialog}
      class={classes("dialog", isWide && "dialog-wide")}
      aria-labelledby={heading}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onClick={(event) => {
        if (event.target === dialog.current) onClose();
      }}
    >
      <div class="dialog-content stack">
        <header class="dialog-header flex items-start between gap-4">
          <h2 id={heading}>{title}</h2>
          <IconButton icon="close" label="Close" onClick={onClose} />
        </header>
        <div class="dialog-body stack gap-4">{children}</div>
        {actions === undefined ? null : <footer class="dialog-actions flex wrap gap-2">{actions}</footer>}
      </div>
    </dialog>
  );
}

/** `select()` moves the focus, too. */
const TEXT_FIELD = ".dialog-body :is(input.input, textarea.input)";

export interface ConfirmProps {
  readonly title: ComponentChildren;
  /** the verb on the button, such as "Delete" */
  readonly action: string;
  readonly isDangerous?: boolean;
  /** the dialog stays open meanwhile; it shows a failure, and closes after a success */
  readonly onConfirm: () => Promise<void> | void;
  readonly onClose: () => void;
  /** false: the action is not possible, or not yet */
  readonly isReady?: boolean;
  readonly children?: ComponentChildren;
}

/** Asks before something is done. Enter in a field is a click on the action. */
export function Confirm({ title, action, isDangerous, onConfirm, onClose, isReady = true, children }: ConfirmProps) {
  const form = useId();
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem>();
  const confirm = async () => {
    setBusy(true);
    setProblem(undefined);
    try {
      await onConfirm();
    } catch (error) {
      setBusy(false);
      if (!isAbort(error)) setProblem(problemOf(error));
      return;
    }
    onClose();
  };
  const buttons = (
    <>
      <Button onClick={onClose}>Cancel</Button>
      <Button tone={isDangerous ? "danger" : "primary"} type="submit" form={form} disabled={!isReady} isBusy={isBusy}>
        {action}
      </Button>
    </>
  );
  return (
    <Dialog title={title} onClose={onClose} actions={buttons}>
      <form
        id={form}
        class="stack gap-4"
        onSubmit={(event) => {
          event.preventDefault();
          if (!isBusy) void confirm();
        }}
      >
        {children}
        {problem === undefined ? null : <ProblemNote problem={problem} />}
      </form>
    </Dialog>
  );
}
