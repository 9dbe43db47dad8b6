import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Browser, chromium } from "playwright-core";
import { type NetworkUse, networkUse } from "./net-log.ts";
import { Tab, type TabOptions } from "./tab.ts";

const EXECUTABLE = "/usr/bin/chromium";

/**
 * Debian's Chromium without a screen. Its resolver knows no name, and what it did on the network is written down by
 * itself, so that also requests that no page made are seen.
 */
export class PageBrowser implements AsyncDisposable {
  readonly #browser: Browser;
  readonly #directory: string;
  #isClosed = false;

  private constructor(browser: Browser, directory: string) {
    this.#browser = browser;
    this.#directory = directory;
  }

  static async start(): Promise<PageBrowser> {
    const directory = await mkdtemp(join(tmpdir(), "coppice-browser-"));
    try {
      const browser = await chromium.launch({
        executablePath: EXECUTABLE,
        args: [
          // The tests run as root, for whom Chromium's own sandbox does not start.
          "--no-sandbox",
          "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
          `--log-net-log=${logIn(directory)}`,
        ],
      });
      return new PageBrowser(browser, directory);
    } catch (error) {
      await rm(directory, { recursive: true, force: true });
      throw error;
    }
  }

  /** A tab in a context of its own: it shares no cookie and no storage with another. */
  async open(origin: string, options: TabOptions = {}): Promise<Tab> {
    return await Tab.open(this.#browser, origin, options);
  }

  /** Ends the browser and tells what pages of this origin, and all of it, asked the network for. */
  async close(origin: string): Promise<NetworkUse> {
    this.#isClosed = true;
    await this.#browser.close();
    return await networkUse(logIn(this.#directory), origin);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.#isClosed) await this.#browser.close();
    await rm(this.#directory, { recursive: true, force: true });
  }
}

const logIn = (directory: string): string => join(directory, "net-log.json");
