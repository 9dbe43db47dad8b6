import { createLowlight } from "lowlight";
import { GRAMMARS } from "./grammars.ts";
import { type HighlightRequest, LINE_CHARACTERS_MAX, TOKEN_KINDS, type Tokens } from "./messages.ts";
import { lineEnd } from "./text-lines.ts";

const lowlight = createLowlight(GRAMMARS);

type Kind = (typeof TOKEN_KINDS)[number];

/** Scopes of highlight.js by kind of token. Other scopes have the kind of the scope around them. */
const SCOPES: Readonly<Record<Kind, readonly string[]>> = {
  plain: ["subst"],
  keyword: ["keyword", "name", "selector-tag"],
  string: ["string", "char", "regexp", "link", "code"],
  comment: ["comment", "doctag", "quote"],
  number: ["number", "literal", "symbol"],
  title: ["title", "section", "selector-id", "selector-class"],
  type: ["type", "class", "built_in"],
  name: ["attr", "attribute", "variable", "template-variable", "property", "selector-attr", "selector-pseudo"],
  meta: ["meta", "bullet", "template-tag"],
  added: ["addition"],
  removed: ["deletion"],
};

/** Index in `TOKEN_KINDS` by the class of lowlight's elements. */
const KINDS: ReadonlyMap<string, number> = new Map(
  TOKEN_KINDS.flatMap((kind, index) => SCOPES[kind].map((scope) => [`hljs-${scope}`, index] as const)),
);

/** A node of lowlight's tree, as far as it is used. */
interface TreeNode {
  readonly type: string;
  readonly value?: string;
  readonly properties?: { readonly className?: unknown };
  readonly children?: readonly TreeNode[];
}

/**
 * The tokens of a text. Only the visible part of each line is read, so that a long line costs no more than a short one.
 * @throws Error for a language that has no grammar
 */
export function highlight({ text, starts, language }: HighlightRequest): Tokens {
  const lineCount = starts.length - 1;
  const cut: string[] = [];
  for (let line = 0; line < lineCount; line += 1) {
    const start = starts[line] ?? 0;
    cut.push(text.slice(start, Math.min(lineEnd(text, starts, line), start + LINE_CHARACTERS_MAX)));
  }
  const root = lowlight.highlight(language, cut.join("\n")) as unknown as TreeNode;
  return tokensOf(root, starts);
}

/** Walks the tree without recursion: a hostile text can nest as deep as it is long. */
function tokensOf(root: TreeNode, starts: Uint32Array): Tokens {
  const triples: number[] = [];
  const firsts = new Uint32Array(starts.length);
  const waiting: { readonly node: TreeNode; readonly kind: number }[] = [{ node: root, kind: 0 }];
  let line = 0;
  let column = 0;
  for (let step = waiting.pop(); step !== undefined; step = waiting.pop()) {
    const { node } = step;
    const kind = kindOf(node, step.kind);
    const children = node.children ?? [];
    for (let index = children.length - 1; index >= 0; index -= 1) {
      const child = children[index];
      if (child !== undefined) waiting.push({ node: child, kind });
    }
    if (node.type !== "text") continue;
    const pieces = (node.value ?? "").split("\n");
    for (const [index, piece] of pieces.entries()) {
      if (index > 0) {
        line += 1;
        column = 0;
        firsts[line] = triples.length / 3;
      }
      const start = (starts[line] ?? 0) + column;
      if (kind !== 0 && piece !== "") triples.push(start, start + piece.length, kind);
      column += piece.length;
    }
  }
  firsts.fill(triples.length / 3, line + 1);
  return { triples: Uint32Array.from(triples), firsts };
}

/** The kind of the first known scope of a node: `title function_` is a title. */
function kindOf({ type, properties }: TreeNode, outer: number): number {
  if (type !== "element" || !Array.isArray(properties?.className)) return outer;
  for (const name of properties.className) {
    const kind = KINDS.get(String(name));
    if (kind !== undefined) return kind;
  }
  return outer;
}
