/** An item of an answer. Bytes of guests are in separate items, so that they cannot imitate the service. */
export type Content =
  | { readonly type: "text"; readonly text: string }
  | { readonly type: "resource_link"; readonly uri: string; readonly name: string; readonly size?: number };

/** The answer of a tool. */
export interface Answer {
  readonly content: readonly Content[];
  /** the whole answer as data, if it is little more than ids */
  readonly structuredContent?: Readonly<Record<string, unknown>>;
  /** facts for programs, which models do not read */
  readonly _meta?: Readonly<Record<string, unknown>>;
  readonly isError?: boolean;
}

export function text(value: string): Content {
  return { type: "text", text: value };
}

export function answer(...lines: readonly string[]): Answer {
  return { content: [text(lines.join("\n"))] };
}

/** A short answer, as text and as data. */
export function facts(line: string, data: Readonly<Record<string, unknown>>): Answer {
  return { content: [text(line)], structuredContent: data };
}
