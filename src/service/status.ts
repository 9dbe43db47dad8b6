import type { Readiness } from "../domain/readiness.ts";
import type { ServiceParts } from "./parts.ts";

/** What anybody may ask of the appliance itself. */
export interface StatusUseCases {
  readonly version: string;
  /** Cheap enough to be asked every second. */
  readiness(): Readiness;
  /** The figures of the appliance in the text format of Prometheus. */
  figures(): Promise<string>;
}

export function statusUseCases({ version, operations, metrics }: ServiceParts): StatusUseCases {
  return {
    version,
    readiness: () => operations.readiness(),
    figures: () => metrics.registry.render(),
  };
}
