import type { Appliance } from "../appliance/appliance.ts";
import { BusyboxAppliance, type BusyboxApplianceOptions } from "../appliance/busybox-appliance.ts";
import type { Registry } from "../images/registry.ts";
import { PageBrowser } from "./browser.ts";
import type { Tab, TabOptions } from "./tab.ts";

/** An appliance with busybox, and a browser before it: one of each serves all tests of a file. */
export class PageScene implements AsyncDisposable {
  readonly appliance: Appliance;
  /** the registry that the appliance knows */
  readonly registry: Registry;
  /** busybox in the registry */
  readonly reference: string;
  /** uuid of busybox in the appliance, tagged `busybox` */
  readonly image: string;
  readonly browser: PageBrowser;
  readonly #owned: AsyncDisposableStack;

  private constructor(host: BusyboxAppliance, browser: PageBrowser, owned: AsyncDisposableStack) {
    ({ appliance: this.appliance, registry: this.registry, reference: this.reference, image: this.image } = host);
    this.browser = browser;
    this.#owned = owned;
  }

  /** @param hosts a pattern of names that the browser resolves, in addition to the appliance's address */
  static async start({ hosts, ...options }: BusyboxApplianceOptions & { hosts?: string } = {}): Promise<PageScene> {
    await using stack = new AsyncDisposableStack();
    const browser = stack.use(await PageBrowser.start(hosts));
    const host = stack.use(await BusyboxAppliance.start({ tag: "busybox", ...options }));
    return new PageScene(host, browser, stack.move());
  }

  /** Where a browser finds the page. The name has to be an address: the browser's resolver knows no names. */
  get origin(): string {
    const url = new URL(this.appliance.url);
    return `http://127.0.0.1:${url.port}`;
  }

  /** An empty tab without a session. */
  async tab(options: TabOptions = {}): Promise<Tab> {
    return await this.browser.open(this.origin, options);
  }

  /** A tab with a session of `token` that shows `path`. */
  async signedIn(path = "/", options: TabOptions & { readonly token?: string } = {}): Promise<Tab> {
    const { token = this.appliance.token, ...rest } = options;
    const tab = await this.tab(rest);
    await tab.page.goto(path);
    await signIn(tab, token);
    return tab;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#owned.disposeAsync();
  }
}

/** Signs in on the form that the tab shows, and waits for the page behind it. */
export async function signIn({ page }: Tab, token: string): Promise<void> {
  await page.getByLabel(/token/i).fill(token);
  await page.getByRole("button", { name: /^sign in$/i }).click();
  await page.getByRole("navigation").first().waitFor();
}
