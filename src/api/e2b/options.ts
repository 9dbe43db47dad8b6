import type { E2bConfig } from "../../config/e2b.ts";
import type { Accounts } from "../../domain/account/accounts.ts";
import type { Log } from "../../log.ts";
import type { Metrics } from "../../metrics.ts";
import type { E2bRecord, Recorded } from "../../service/e2b/records.ts";
import type { Service } from "../../service/service.ts";
import type { accessPlugin } from "../access.ts";
import type { ApiOptions } from "../options.ts";
import type { RequestTracker } from "../request-tracker.ts";
import type { Calls } from "./rpc/calls.ts";

/** Settings of the surface. */
export type E2bSettings = Pick<E2bConfig, "domain" | "defaultUser" | "hasPublicPorts">;

/** Whether the ports of a sandbox need no token. */
export function hasPublicPorts({ hasPublicPorts }: E2bSettings, { network }: Pick<E2bRecord, "network">): boolean {
  return hasPublicPorts && network?.allowPublicTraffic !== false;
}

/** Whether one port of a sandbox needs no token: another surface names each of its public ports. */
export function isPublicPort(settings: E2bSettings, { sandbox, record }: Recorded, port: number): boolean {
  return hasPublicPorts(settings, record) || (settings.hasPublicPorts && sandbox.publicPorts.includes(port));
}

/** Dependencies of the application behind the listener. */
export interface E2bOptions {
  readonly service: Service;
  readonly accounts: Accounts;
  readonly settings: E2bSettings;
  readonly verifyToken: ApiOptions["verifyToken"];
  readonly metrics: Pick<Metrics, "requests" | "requestSeconds">;
  readonly log: Log;
  /** `milliseconds` since the epoch */
  readonly clock: () => number;
}

/** Dependencies of the routes. */
export interface E2bParts extends Omit<E2bOptions, "metrics"> {
  readonly requests: RequestTracker;
  /** what calls to agents hold */
  readonly calls: Calls;
  /** macros for the scopes of routes */
  readonly access: ReturnType<typeof accessPlugin>;
}
