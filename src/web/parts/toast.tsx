import { createStore, useStore } from "../data/store.ts";
import { IconButton } from "./button.tsx";
import { classes } from "./classes.ts";

interface Toast {
  readonly id: number;
  readonly text: string;
  readonly isProblem: boolean;
}

/** How long a note stays, in `milliseconds`: long enough to read it; a problem stays until it is closed. */
const SHOWN_MS = 5_000;
const SHOWN_MAX = 3;

const toasts = createStore<readonly Toast[]>([]);
let last = 0;

function close(id: number): void {
  toasts.set(toasts.get().filter((toast) => toast.id !== id));
}

function show(text: string, { isProblem = false }: { readonly isProblem?: boolean } = {}): void {
  last += 1;
  const id = last;
  const others = toasts.get().filter((toast) => toast.text !== text);
  toasts.set([...others, { id, text, isProblem }].slice(-SHOWN_MAX));
  if (!isProblem) setTimeout(() => close(id), SHOWN_MS);
}

/** A function that tells a person in passing that something was done, or (`isProblem`) that it was not. */
export function useToast(): typeof show {
  return show;
}

/** Shows the notes; the frame has one. */
export function Toasts() {
  const visible = useStore(toasts);
  return (
    <div class="toasts stack gap-2" role="status" aria-live="polite">
      {visible.map(({ id, text, isProblem }) => (
        <div key={id} class={classes("toast flex items-start between gap-2", isProblem && "danger")}>
          <p>{text}</p>
          <IconButton icon="close" label="Close the note" onClick={() => close(id)} />
        </div>
      ))}
    </div>
  );
}
