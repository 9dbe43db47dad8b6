export interface TestCounts {
  readonly passed: number;
  readonly failed: number;
  readonly skipped: readonly SkippedTest[];
  /** the failures, each once: the name, and the error before it */
  readonly failures: readonly string[];
}

export interface SkippedTest {
  readonly name: string;
  /** the requirement that is missing, from its name: `… (needs KVM)`; null without one */
  readonly needs: string | null;
}

/** Of an error, in the list of failures. */
const ERROR_LINES_MAX = 6;

/** The first line of an error: errors of bun, plain ones, named ones, and those of system calls. */
const ERROR = /^(?:error: |(?=[A-Z]\w*Error: |E[A-Z0-9]{2,}: ))(.*)$/;

/** Requirements that CI need not meet. */
const NEEDED_ELSEWHERE = /\bKVM\b|\bCOPPICE_TEST_CH_OPENAPI\b/;

/** Reads the closing lines of `bun test` (` 7 pass`, ` 0 fail`) and the names of skipped tests. */
export function countTests(output: string): TestCounts {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: bun colours its lines on some terminals.
  const lines = output.replace(/\x1b\[[0-9;]*m/g, "").split("\n");
  const last = (word: string): number => {
    const line = lines.findLast((candidate) => new RegExp(`^ ?\\d+ ${word}$`).test(candidate));
    return line === undefined ? 0 : Number.parseInt(line, 10);
  };
  return { passed: last("pass"), failed: last("fail"), skipped: skippedTests(lines), failures: namedFailures(lines) };
}

/** Each name once. The hooks of a skipped group are listed as tests without a name. */
function skippedTests(lines: readonly string[]): SkippedTest[] {
  const names = lines.flatMap((line) => /^\((?:skip|todo)\) (.*?)(?: \[[\d.]+m?s\])?$/.exec(line)?.[1] ?? []);
  const tests = names.filter((name) => !/(?:^| > )\(unnamed\)$/.test(name));
  return [...new Set(tests)].map((name) => ({ name, needs: /\(needs (.+?)\)(?= > |$)/.exec(name)?.[1] ?? null }));
}

/**
 * An error is printed before the line of its test, followed by its place, and a long run lists all failures again at its
 * end.
 */
function namedFailures(lines: readonly string[]): string[] {
  const failures = new Map<string, string>();
  let error: string[] = [];
  let isInside = false;
  for (const line of lines) {
    const name = /^\(fail\) (.*?)(?: \[[\d.]+m?s\])?$/.exec(line)?.[1];
    if (name !== undefined && !failures.has(name)) {
      failures.set(name, error.length === 0 ? name : `${name}: ${error.join(" | ")}`);
    }
    const message = ERROR.exec(line)?.[1];
    if (message !== undefined) {
      error = [message];
      isInside = true;
    } else if (/^\((?:pass|fail|skip|todo)\) /.test(line)) {
      error = [];
      isInside = false;
    } else if (/^ +at /.test(line)) isInside = false;
    else if (isInside && line.trim() !== "" && error.length < ERROR_LINES_MAX) error.push(line.trim());
  }
  return [...failures.values()];
}

/** Skips that are failures, with the reason: those without a requirement, and in CI those whose requirement CI must meet. */
export function forbiddenSkips(skipped: readonly SkippedTest[], isCi: boolean): { name: string; why: string }[] {
  return skipped.flatMap(({ name, needs }) => {
    if (needs === null) return [{ name, why: "and does not say what it needs" }];
    return isCi && !NEEDED_ELSEWHERE.test(needs) ? [{ name, why: "which CI does not allow" }] : [];
  });
}
