import { escaped, isBlank, partsOf } from "../text/printable.ts";
import { classes } from "./classes.ts";

/** Longest visible name, in characters; the rest is cut, with a mark. */
const NAME_MAX = 512;
const LONG_MAX = 4_096;

export interface GuestTextProps {
  readonly text: string;
  /** in the font of code */
  readonly isMono?: boolean;
  /** true: up to 4,096 characters on as many lines as they need; otherwise 512 on one line, which a narrow place cuts */
  readonly isLong?: boolean;
  /** true: the whole text is the title, for where it may be cut */
  readonly hasTitle?: boolean;
}

/**
 * Text from a guest, an image or another account: names, commands, messages. Characters that are invisible or reorder others
 * are escaped, and the text around it keeps its direction.
 */
export function GuestText({ text, isMono, isLong, hasTitle }: GuestTextProps) {
  const limit = isLong === true ? LONG_MAX : NAME_MAX;
  const begin = text.slice(0, limit);
  // A name of blanks only would look empty.
  const parts = isBlank(begin) ? [{ text: escaped(begin), isEscape: true }] : partsOf(begin);
  const name = classes("guest-text", isMono && "mono", isLong && "guest-text-long");
  const title = hasTitle === true ? parts.map((part) => part.text).join("") : undefined;
  return (
    <bdi class={name} title={title}>
      {parts.map((part, index) =>
        part.isEscape ? (
          <span key={index} class="escape">
            {part.text}
          </span>
        ) : (
          part.text
        ),
      )}
      {text.length > limit ? <span class="escape">… {text.length - limit} more characters</span> : null}
    </bdi>
  );
}
