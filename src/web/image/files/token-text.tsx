import { PARTS_MAX, partsOf } from "../../text/printable.ts";
import { TOKEN_KINDS } from "../../worker/messages.ts";
import type { TokenSpan } from "./text-rows.ts";

/** Spans of a line. Invisible characters and replaced bytes are marked. */
export function TokenText({ pieces }: { readonly pieces: readonly TokenSpan[] }) {
  const partsMax = Math.ceil(PARTS_MAX / Math.max(1, pieces.length));
  return (
    <>
      {pieces.map(({ text, kind }, index) => {
        const content = partsOf(text, partsMax).map((part, at) => {
          if (part.isEscape) return part.text === "\\t" ? "\t" : <Mark key={at} text={part.text} />;
          return part.text.includes("\ufffd") ? <Replaced key={at} text={part.text} /> : part.text;
        });
        return kind === 0 ? (
          content
        ) : (
          <span key={index} class={`token-${TOKEN_KINDS[kind] ?? "plain"}`}>
            {content}
          </span>
        );
      })}
    </>
  );
}

function Mark({ text }: { readonly text: string }) {
  return <span class="escape">{text}</span>;
}

function Replaced({ text }: { readonly text: string }) {
  const parts = text.split(/(\ufffd+)/);
  if (parts.length > PARTS_MAX) return <Mark text={text} />;
  return <>{parts.map((piece, index) => (index % 2 === 1 ? <Mark key={index} text={piece} /> : piece))}</>;
}
