const FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏";
const FRAME_MS = 100;

/** Prints a demonstration for a person to watch; colours and moving parts only on a terminal. */
export class Screen {
  readonly #terminal: boolean;
  readonly #startedAt = performance.now();
  readonly #waits = new Set<{ readonly what: string; readonly startedAt: number }>();
  #timer: Timer | undefined;
  #frame = 0;
  #steps = 0;
  #stepAt = 0;

  constructor(terminal: boolean = process.stdout.isTTY === true) {
    this.#terminal = terminal;
  }

  /** Opens the next step, and prints how long the previous one took. */
  step(title: string): void {
    this.#closeStep();
    this.#steps += 1;
    this.#stepAt = performance.now();
    this.#line(`\n${this.#paint("1", `${this.#steps}. ${title}`)}`);
  }

  /** Prints a request or a command. */
  out(text: string): void {
    this.#line(`   ${this.#paint("36", "→")} ${text}`);
  }

  /** Prints an answer. */
  back(text: string): void {
    this.#line(`   ${this.#paint("2", `← ${text}`)}`);
  }

  note(text: string): void {
    this.#line(`   ${text}`);
  }

  /** Prints a fact that the demonstration has checked. */
  proven(text: string): void {
    this.#line(`   ${this.#paint("32", "✓")} ${text}`);
  }

  /** Prints the output of a command in a sandbox. */
  quote(text: string): void {
    for (const line of text.trimEnd().split("\n")) this.#line(`   ${this.#paint("33", "│")} ${line}`);
  }

  /** Shows slow work until disposed; several may run at once. */
  waiting(what: string): Disposable {
    if (!this.#terminal) {
      this.note(`${what} …`);
      return { [Symbol.dispose]: () => undefined };
    }
    const wait = { what, startedAt: performance.now() };
    this.#waits.add(wait);
    this.#timer ??= setInterval(() => this.#turn(), FRAME_MS);
    return {
      [Symbol.dispose]: () => {
        this.#waits.delete(wait);
        this.#clearStatus();
        if (this.#waits.size > 0) return;
        clearInterval(this.#timer);
        this.#timer = undefined;
      },
    };
  }

  end(text: string): void {
    this.#closeStep();
    this.#line(`\n${this.#paint("1;32", text)} ${this.#paint("2", `(${seconds(this.#startedAt)})`)}`);
  }

  failed(text: string): void {
    this.#line(`\n${this.#paint("1;31", text)}`);
  }

  #closeStep(): void {
    if (this.#steps > 0) this.#line(`   ${this.#paint("2", `took ${seconds(this.#stepAt)}`)}`);
  }

  #line(text: string): void {
    this.#clearStatus();
    process.stdout.write(`${text}\n`);
  }

  /** Draws the moving line, below everything else. */
  #turn(): void {
    this.#frame = (this.#frame + 1) % FRAMES.length;
    const waits = [...this.#waits].map(({ what, startedAt }) => `${what} ${this.#paint("2", seconds(startedAt))}`);
    process.stdout.write(`\r\x1b[K   ${FRAMES[this.#frame]} ${waits.join(", ")}`);
  }

  #clearStatus(): void {
    if (this.#timer !== undefined) process.stdout.write("\r\x1b[K");
  }

  #paint(code: string, text: string): string {
    return this.#terminal ? `\x1b[${code}m${text}\x1b[0m` : text;
  }
}

function seconds(since: number): string {
  return `${((performance.now() - since) / 1000).toFixed(1)} s`;
}
