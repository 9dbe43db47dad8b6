/** An item of an answer. What a guest wrote is in items of its own, so that it cannot look like what the service says. */
export type Content =
  | { readonly type: "text"; readonly text: string }
  | { readonly type: "resource_link"; readonly uri: string; readonly name: string; readonly size?: number };

/** What a tool answers. */
export interface Answer {
  readonly content: readonly Content[];
  /** the whole answer as data, where it is little more than ids */
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
