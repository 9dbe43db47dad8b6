import type { Row } from "../../src/cli/bench/figures.ts";
import { type Remark, reportText, rowText } from "../../src/cli/bench/report.ts";
import { type Finding, isRow } from "./part.ts";

/** Keeps what was measured, whatever happens to what comes after, and says each line at once. */
export class Ledger {
  readonly #say: (line: string) => void;
  readonly #rows: Row[] = [];
  readonly #remarks: Remark[] = [];
  readonly #failures: Remark[] = [];
  /** duration and load of each part */
  readonly #parts: Record<string, string> = {};

  constructor(say: (line: string) => void) {
    this.#say = say;
  }

  /** True when every part came to its end. */
  get isComplete(): boolean {
    return this.#failures.length === 0;
  }

  add(finding: Finding): void {
    if (isRow(finding)) this.#rows.push(finding);
    else this.#remarks.push(finding);
    this.#say(isRow(finding) ? rowText(finding) : `       ${finding.name}: ${finding.text}`);
  }

  fail(part: string, error: unknown): void {
    const text = error instanceof Error ? error.message : String(error);
    this.#failures.push({ name: part, text });
    this.#say(`FAILED ${part}: ${text}`);
  }

  end(part: string, text: string): void {
    this.#parts[part] = text;
    this.#say(`measured ${part} in ${text}`);
  }

  text(): string {
    const failures = this.#failures.map(({ name, text }) => `FAILED ${name}: ${text}\n`).join("");
    return `${reportText(this.#rows, this.#remarks)}${failures}`;
  }

  json(): string {
    const content = { rows: this.#rows, remarks: this.#remarks, failures: this.#failures, parts: this.#parts };
    return JSON.stringify(content, null, 2);
  }
}
