import type { Database } from "../db/database.ts";
import type { AccountId } from "../domain/ids.ts";
import type { Log } from "../log.ts";
import type { Metrics } from "../metrics.ts";
import type { OperationLog } from "../operation-log.ts";
import type { DataLayout } from "../storage/layout.ts";
import type { OperationsPort } from "../supervisor/ports.ts";

/** Who asks, and what the token allows. */
export interface Principal {
  readonly accountId: AccountId;
  /** scopes, or `*` */
  readonly grants: ReadonlySet<string>;
  readonly tokenId: string;
}

/** Bounds that the operator sets. */
export interface ApiLimits {
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

/** Everything that the HTTP interface needs. */
export interface ApiServices {
  readonly db: Database;
  readonly layout: DataLayout;
  readonly operations: OperationsPort;
  readonly limits: ApiLimits;
  /** null when the token is malformed, expired, revoked or signed by an unknown key */
  readonly verifyToken: (token: string) => Promise<Principal | null>;
  /** registry host taken for references that name none; null refuses them */
  readonly defaultRegistry: string | null;
  /** base of Location headers behind a reverse proxy, without a trailing slash; null gives absolute paths */
  readonly publicUrl: string | null;
  /** `milliseconds` since the epoch */
  readonly clock: () => number;
  readonly metrics: Metrics;
  readonly operationLog: Pick<OperationLog, "lines">;
  readonly version: string;
  readonly log: Log;
}
