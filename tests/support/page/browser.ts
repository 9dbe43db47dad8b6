import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Browser, chromium } from "playwright-core";
import { type NetworkUse, networkUse } from "./net-log.ts";
import { Tab, type TabOptions } from "./tab.ts";

const EXECUTABLE = "/usr/bin/chromium";

/**
 * Debian's Chromium without a screen. Its resolver knows no name. It logs its own network use, which also shows requests
 * that no page made.
 */
export class PageBrowser implements AsyncDisposable {
  readonly #browser: Browser;
  readonly #directory: string;
  #isClosed = false;

  private constructor(browser: Browser, directory: string) {
    this.#browser = browser;
    this.#directory = directory;
  }

  /** @param hosts a pattern of further names that it resolves */
  static async start(hosts?: string): Promise<PageBrowser> {
    const directory = await mkdtemp(join(tmpdir(), "coppice-browser-"));
    try {
      const browser = await chromium.launch({
        executablePath: EXECUTABLE,
        args: [
          // The tests run as root, for which Chromium's own sandbox does not start.
          "--no-sandbox",
          `--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1${hosts === undefined ? "" : `, EXCLUDE ${hosts}`}`,
          `--log-net-log=${logIn(directory)}`,
        ],
      });
      return new PageBrowser(browser, directory);
    } catch (error) {
      await rm(directory, { recursive: true, force: true });
      throw error;
    }
  }

  /** A tab in its own context, without cookies and storage of others. */
  async open(origin: string, options: TabOptions = {}): Promise<Tab> {
    return await Tab.open(this.#browser, origin, options);
  }

  /** Ends the browser and returns the network requests of pages of this origin, and of the whole browser. */
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
