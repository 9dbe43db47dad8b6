import type { Database } from "../db/database.ts";
import type { AccountId } from "../domain/ids.ts";
import type { Log } from "../log.ts";
import type { Metrics } from "../metrics.ts";
import type { LayerStore } from "../storage/layers/layer-store.ts";
import type { DataLayout } from "../storage/layout.ts";
import type { LiveInstances } from "../supervisor/instance/live-instances.ts";
import type { OperationLog } from "../supervisor/operations/operation-log.ts";
import type { OperationsPort } from "../supervisor/operations/ports.ts";

/** The caller of a use case, and what its token allows. A surface checks scopes; a use case checks ownership. */
export interface Principal {
  readonly accountId: AccountId;
  /** scopes, or `*` */
  readonly grants: ReadonlySet<string>;
  readonly tokenId: string;
}

/** Bounds that the operator sets. */
export interface ServiceLimits {
  readonly instanceTimeoutSecondsMax: number;
  readonly fileBytesMax: number;
  /** room on the disk, in `bytes`, below which nothing is taken in */
  readonly diskReserveBytes: number;
  readonly vcpusDefault: number;
  readonly vcpusMax: number;
  readonly memoryBytesDefault: number;
  readonly memoryBytesMax: number;
  readonly diskBytesDefault: number;
  readonly diskBytesMax: number;
}

/** Everything that the use cases stand on. */
export interface ServiceParts {
  readonly db: Database;
  readonly layout: DataLayout;
  readonly layers: LayerStore;
  readonly operations: OperationsPort;
  /** what runs now */
  readonly instances: LiveInstances;
  readonly limits: ServiceLimits;
  /** registry host taken for references that name none; null refuses them */
  readonly defaultRegistry: string | null;
  /** `milliseconds` since the epoch */
  readonly clock: () => number;
  readonly log: Log;
  readonly metrics: Metrics;
  readonly operationLog: Pick<OperationLog, "lines">;
  readonly version: string;
}

/** A page of a listing; the bounds of the creation time are read by `timeBounds`. */
export interface ListRequest {
  readonly limit: number;
  readonly offset: number;
  readonly since?: string | undefined;
  readonly until?: string | undefined;
}
