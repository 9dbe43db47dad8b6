import type { Readiness } from "../domain/readiness.ts";
import type { ServiceParts } from "./parts.ts";

/** Queries about the appliance itself, which need no principal. */
export interface StatusUseCases {
  readonly version: string;
  /** Cheap enough to be called every second. */
  readiness(): Readiness;
  /** The metrics of the appliance in the text format of Prometheus. */
  metrics(): Promise<string>;
}

export function statusUseCases({ version, operations, metrics }: ServiceParts): StatusUseCases {
  return {
    version,
    readiness: () => operations.readiness(),
    metrics: () => metrics.registry.render(),
  };
}
