import { loadavg } from "node:os";
import { benchText, findingText } from "./report.ts";
import type { Finding, Remark, Row } from "./row.ts";

/** Results of a benchmark. */
export interface Findings {
  readonly rows: readonly Row[];
  readonly remarks: readonly Remark[];
  /** rows that cannot be measured here, or not compared, and why */
  readonly missing: readonly Remark[];
  /** parts that failed */
  readonly failures: readonly Remark[];
  /** duration and load of each part that ended */
  readonly parts: Readonly<Record<string, string>>;
}

/** Collects the findings of all parts, also when some parts fail. */
export class Ledger {
  readonly #say: (line: string) => void;
  readonly #findings = {
    rows: [] as Row[],
    remarks: [] as Remark[],
    missing: [] as Remark[],
    failures: [] as Remark[],
    parts: {} as Record<string, string>,
  };

  /** @param say is called with each finding as soon as there is one, in lines of text */
  constructor(say: (line: string) => void) {
    this.#say = say;
  }

  get findings(): Findings {
    return this.#findings;
  }

  /** True when every part came to its end. */
  get isComplete(): boolean {
    return this.#findings.failures.length === 0;
  }

  add(finding: Finding): void {
    const { rows, missing, remarks } = this.#findings;
    if ("figure" in finding) rows.push(finding);
    else if ("isMissing" in finding) missing.push({ name: finding.name, text: finding.text });
    else remarks.push(finding);
    this.#say(findingText(finding));
  }

  fail(part: string, error: unknown): void {
    const text = error instanceof Error ? error.message : String(error);
    this.#findings.failures.push({ name: part, text });
    this.#say(`FAILED ${part}: ${text}`);
  }

  /** @param durationMs of the part, which ended now */
  end(part: string, durationMs: number): void {
    const text = `${(durationMs / 1000).toFixed(0)} s, load ${loadavg()[0]?.toFixed(1)}`;
    this.#findings.parts[part] = text;
    this.#say(`measured ${part} in ${text}`);
  }

  text(): string {
    return benchText(this.#findings);
  }

  json(): string {
    return JSON.stringify(this.#findings, null, 2);
  }
}
