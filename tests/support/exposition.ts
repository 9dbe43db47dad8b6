/** One sample of the Prometheus text format. */
export interface ExpositionSample {
  readonly name: string;
  readonly labels: Readonly<Record<string, string>>;
  readonly value: number;
}

export interface Exposition {
  readonly samples: readonly ExpositionSample[];
  readonly types: ReadonlyMap<string, string>;
  /** The value of the one sample with this name and these labels; undefined when there is none. */
  value(name: string, labels?: Readonly<Record<string, string>>): number | undefined;
}

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"(?:,|$)/gy;

/** Reads the text format 0.0.4 strictly: help and type come first, and every line has a known form. */
export function parseExposition(text: string): Exposition {
  if (!text.endsWith("\n")) throw new Error("the last line has no end");
  const types = new Map<string, string>();
  const samples: ExpositionSample[] = [];
  const seen = new Set<string>();
  for (const line of text.slice(0, -1).split("\n")) {
    const head = /^# (HELP|TYPE) (\S+) (.+)$/.exec(line);
    if (head !== null) {
      const [, word, name = "", rest = ""] = head;
      if (word === "TYPE" && types.has(name)) throw new Error(`${name} has two types`);
      if (word === "TYPE") types.set(name, rest);
      continue;
    }
    const [, name = "", labelText = "", value = ""] = SAMPLE.exec(line) ?? [];
    if (name === "") throw new Error(`no sample: ${line}`);
    const family = name.replace(/_(bucket|sum|count)$/, "");
    if (!types.has(name) && types.get(family) !== "histogram") throw new Error(`${name} comes before its type`);
    const labels = [...labelText.matchAll(LABEL)];
    if (labels.map(([whole]) => whole).join("") !== labelText) throw new Error(`bad labels: ${line}`);
    if (seen.has(`${name}{${labelText}}`)) throw new Error(`twice: ${line}`);
    seen.add(`${name}{${labelText}}`);
    const number = value === "+Inf" ? Number.POSITIVE_INFINITY : Number(value);
    if (Number.isNaN(number)) throw new Error(`no number: ${line}`);
    samples.push({ name, labels: Object.fromEntries(labels.map(([, key, text]) => [key, text])), value: number });
  }
  const value: Exposition["value"] = (name, labels = {}) => {
    const matches = samples.filter(
      (sample) => sample.name === name && Object.entries(labels).every(([key, text]) => sample.labels[key] === text),
    );
    if (matches.length > 1) throw new Error(`${name} is ambiguous`);
    return matches[0]?.value;
  };
  return { samples, types, value };
}
