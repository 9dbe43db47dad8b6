import type { Browser, BrowserContext, ConsoleMessage, Page, Request } from "playwright-core";

export interface TabOptions {
  /** in `CSS pixels` */
  readonly width?: number;
  /** in `CSS pixels` */
  readonly height?: number;
  readonly theme?: "light" | "dark";
  /** a person who wants no motion; the default, as pictures of a moving page are not alike */
  readonly reducedMotion?: boolean;
  readonly touch?: boolean;
  /** origins that the test itself serves, as hostile neighbours of the appliance */
  readonly neighbours?: readonly string[];
}

const WIDTH_DEFAULT = 1280;
const HEIGHT_DEFAULT = 800;
/** Longest wait of one step, in `milliseconds`: a run under emulation takes seconds. */
const STEP_MS_MAX = 30_000;

/**
 * One page, with everything that it complains about. Its disposal throws when there was something that no test expects:
 * an error in a script, a line of the console that says error, a violation of the Content-Security-Policy, a dialog of
 * the browser, or a request to another origin.
 */
export class Tab implements AsyncDisposable {
  readonly page: Page;
  readonly origin: string;
  /** addresses of all requests, sockets too, in their order */
  readonly requests: string[] = [];
  /** problems that no test expects */
  readonly problems: string[] = [];
  readonly #context: BrowserContext;
  readonly #expected: RegExp[] = [];
  readonly #neighbours: readonly string[];

  private constructor(context: BrowserContext, page: Page, origin: string, neighbours: readonly string[]) {
    this.#neighbours = neighbours;
    this.#context = context;
    this.page = page;
    this.origin = origin;
  }

  static async open(browser: Browser, origin: string, options: TabOptions): Promise<Tab> {
    const context = await browser.newContext({
      baseURL: origin,
      viewport: { width: options.width ?? WIDTH_DEFAULT, height: options.height ?? HEIGHT_DEFAULT },
      colorScheme: options.theme ?? "light",
      reducedMotion: options.reducedMotion === false ? "no-preference" : "reduce",
      hasTouch: options.touch ?? false,
      locale: "en-GB",
      timezoneId: "UTC",
      acceptDownloads: true,
    });
    context.setDefaultTimeout(STEP_MS_MAX);
    await context.addInitScript(() => {
      document.addEventListener(
        "securitypolicyviolation",
        ({ effectiveDirective, blockedURI, sourceFile, lineNumber }) =>
          // biome-ignore lint/suspicious/noConsole: the browser's console is what the tab listens to.
          console.error(`violation of ${effectiveDirective} by ${blockedURI} in ${sourceFile}:${lineNumber}`),
      );
    });
    const tab = new Tab(context, await context.newPage(), origin, options.neighbours ?? []);
    tab.#listen();
    await slowDown(tab.page);
    return tab;
  }

  /** Lets the page complain about what fits: a test that makes it fail expects that. */
  expectProblem(pattern: RegExp): void {
    this.#expected.push(pattern);
  }

  /** Requests that went anywhere but to the appliance. */
  get outside(): string[] {
    const hosts = [this.origin, ...this.#neighbours].map((origin) => new URL(origin).host);
    return this.requests.filter((address) => {
      const url = new URL(address);
      return url.protocol !== "data:" && url.protocol !== "blob:" && !hosts.includes(url.host);
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#context.close();
    const problems = this.problems.filter((line) => !this.#expected.some((pattern) => pattern.test(line)));
    problems.push(...this.outside.map((address) => `a request to ${address}`));
    if (problems.length > 0) throw new Error(`the page complained:\n${problems.join("\n")}`);
  }

  #listen(): void {
    this.#context.on("request", (request: Request) => void this.requests.push(request.url()));
    this.#context.on("page", (page) => this.#watch(page));
    this.#context.on("weberror", (error) => void this.problems.push(`a script failed: ${error.error().stack}`));
    this.#context.on("console", (message) => this.#hear(message));
    this.#watch(this.page);
  }

  #watch(page: Page): void {
    page.on("websocket", (socket) => void this.requests.push(socket.url()));
    page.on("crash", () => void this.problems.push("the page crashed"));
    page.on("dialog", async (dialog) => {
      this.problems.push(`a dialog of the browser: ${dialog.message()}`);
      await dialog.dismiss();
    });
  }

  #hear(message: ConsoleMessage): void {
    const text = message.text();
    // Chromium tells each answer that is an error. What the page makes of one is up to the tests.
    if (/^Failed to load resource: the server responded with a status of [34]\d\d/.test(text)) return;
    if (/^WebSocket connection to .* (?:Unexpected response code: [34]\d\d$|HTTP Authentication failed)/.test(text))
      return;
    if (["error", "warning", "assert"].includes(message.type())) this.problems.push(`${message.type()}: ${text}`);
  }
}

/** Lets the scripts of a page take so many times as long: what does not wait for the page fails then. */
async function slowDown(page: Page): Promise<void> {
  const rate = Number(process.env["COPPICE_TEST_CPU_SLOWDOWN"] ?? 1);
  if (rate === 1) return;
  const session = await page.context().newCDPSession(page);
  await session.send("Emulation.setCPUThrottlingRate", { rate });
}
