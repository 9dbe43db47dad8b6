import { pushBusybox } from "../images/images.ts";
import { Registry } from "../images/registry.ts";
import { Appliance, type ApplianceOptions } from "./appliance.ts";

export interface BusyboxApplianceOptions extends ApplianceOptions {
  /** of the imported image; default is none */
  readonly tag?: string;
}

/** A registry with busybox, and an appliance that has imported it. */
export class BusyboxAppliance implements AsyncDisposable {
  readonly registry: Registry;
  readonly appliance: Appliance;
  /** busybox in the registry */
  readonly reference: string;
  /** busybox in the appliance */
  readonly image: string;
  readonly #owned: AsyncDisposableStack;

  private constructor(
    parts: Pick<BusyboxAppliance, "registry" | "appliance" | "reference" | "image">,
    owned: AsyncDisposableStack,
  ) {
    this.registry = parts.registry;
    this.appliance = parts.appliance;
    this.reference = parts.reference;
    this.image = parts.image;
    this.#owned = owned;
  }

  /** Resolves when the image exists. The registry is the first in the appliance's configuration. */
  static async start({ tag, registries = [], ...options }: BusyboxApplianceOptions = {}): Promise<BusyboxAppliance> {
    await using stack = new AsyncDisposableStack();
    const registry = stack.use(await Registry.start());
    const reference = await pushBusybox(registry, "busybox:1");
    const appliance = stack.use(await Appliance.start({ registries: [registry.host, ...registries], ...options }));
    const image = await appliance.importImage(reference, tag);
    return new BusyboxAppliance({ registry, appliance, reference, image }, stack.move());
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#owned.disposeAsync();
  }
}
