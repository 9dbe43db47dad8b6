import { Appliance } from "../appliance/appliance.ts";
import { Registry } from "../images/registry.ts";
import { pushGuest } from "./guest-image.ts";
import { Site } from "./site/site.ts";

/** Permissions of the operator. Rules of requests are within these, except in tests of refused requests. */
const tables = (resolver: string): string => `
[network]
allow = ["*.test:*", "20.0.0.0/16:*", "10.0.0.0/8:80", "[2600:7::/32]:*", "[64:ff9b::/96]:80", "[2002::/16]:80", "[fd00::/8]:80"]
record = true
resolvers = ["${resolver}"]
`;

/** An appliance whose guests may have a network, and the servers outside: one for all tests of the ring. */
export class Ring implements AsyncDisposable {
  readonly site: Site;
  readonly appliance: Appliance;
  /** Debian with network clients */
  readonly image: string;
  readonly #owned: AsyncDisposableStack;

  private constructor(parts: Pick<Ring, "site" | "appliance" | "image">, owned: AsyncDisposableStack) {
    this.site = parts.site;
    this.appliance = parts.appliance;
    this.image = parts.image;
    this.#owned = owned;
  }

  static async start(): Promise<Ring> {
    await using stack = new AsyncDisposableStack();
    const site = stack.use(await Site.start());
    const registry = stack.use(await Registry.start());
    const reference = await pushGuest(registry, site.certified.authority);
    const appliance = stack.use(
      await Appliance.start({ registries: [registry.host], tables: tables(site.nameServer.address) }),
    );
    const image = await appliance.importImage(reference, "guest");
    return new Ring({ site, appliance, image }, stack.move());
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#owned.disposeAsync();
  }
}

const shared = globalThis as { coppiceTestRing?: Ring };

/** Sets the ring that all test files use; null removes it. */
export function share(ring: Ring | null): void {
  if (ring === null) delete shared.coppiceTestRing;
  else shared.coppiceTestRing = ring;
}

/** @throws Error when the preload that starts it is missing */
export function ring(): Ring {
  if (shared.coppiceTestRing !== undefined) return shared.coppiceTestRing;
  throw new Error(
    "no ring: bun tests/support/rings/run-rings.ts network, or --preload=./tests/support/network/preload.ts",
  );
}
