import { useState } from "preact/hooks";
import { IconButton } from "./button.tsx";
import { useToast } from "./toast.tsx";

/** How long the button confirms the copy, in `milliseconds`. */
const SHOWN_MS = 1_500;

export interface CopyButtonProps {
  readonly text: string;
  readonly label?: string;
}

/** Copies a text to the clipboard. */
export function CopyButton({ text, label = "Copy" }: CopyButtonProps) {
  const [isCopied, setCopied] = useState(false);
  const toast = useToast();
  const copy = async () => {
    if (!(await copyText(text))) {
      toast("The browser does not let this page copy. Select the text and copy it by hand.");
      return;
    }
    setCopied(true);
    toast("Copied");
    setTimeout(() => setCopied(false), SHOWN_MS);
  };
  return <IconButton icon={isCopied ? "check" : "copy"} label={label} onClick={() => void copy()} />;
}

/** An id in full, which a narrow place cuts, and a button that copies all of it. */
export function Identifier({ id }: { readonly id: string }) {
  return (
    <span class="identifier inline-row shrink">
      <code title={id}>{id}</code>
      <CopyButton text={id} label="Copy the id" />
    </span>
  );
}

/** @returns false when the browser does not allow it */
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Pages without TLS from another host have no clipboard API; the selection works.
    return copyBySelection(text);
  }
}

function copyBySelection(text: string): boolean {
  const holder = document.createElement("textarea");
  const before = document.activeElement;
  holder.value = text;
  holder.className = "visually-hidden";
  // A modal dialog makes what is outside of it inert.
  (before?.closest("dialog") ?? document.body).append(holder);
  holder.select();
  const isCopied = document.execCommand("copy");
  holder.remove();
  if (before instanceof HTMLElement) before.focus();
  return isCopied;
}
