import type { Database } from "../db/database.ts";
import type { Accounts } from "../domain/account/accounts.ts";
import type { AccountId } from "../domain/ids.ts";
import type { IngressAddress } from "../domain/ingress.ts";
import type { NetworkRule } from "../domain/network.ts";
import type { SpawnLimits } from "../domain/spawn.ts";
import type { Log } from "../log.ts";
import type { Metrics } from "../metrics.ts";
import type { EventLogs } from "../storage/events/event-logs.ts";
import type { LayerStore } from "../storage/layers/layer-store.ts";
import type { DataLayout } from "../storage/layout.ts";
import type { TokenKeys } from "../storage/token-keys.ts";
import type { AccountChanges } from "../supervisor/account-changes.ts";
import type { HealthSettings } from "../supervisor/health/checks.ts";
import type { RunningInstances } from "../supervisor/instance/running-instances.ts";
import type { InstanceForks } from "../supervisor/kinds/instance-forks.ts";
import type { MachineProvider } from "../supervisor/machines/machine-provider.ts";
import type { OperationLog } from "../supervisor/operations/operation-log.ts";
import type { OperationsPort } from "../supervisor/operations/ports.ts";
import type { Scheduler } from "../supervisor/operations/scheduler.ts";
import type { ReclaimOptions } from "../supervisor/reclaim.ts";
import type { SandboxesPort } from "../supervisor/sandboxes/ports.ts";
import type { BuildsPort } from "../supervisor/templates/builds.ts";
import type { OperatorDesk } from "./operator/desk.ts";

/** The caller of a use case. A surface checks its scopes; a use case checks ownership. */
export interface Principal {
  readonly accountId: AccountId;
  /** the scopes that its token allows; `*` stands for all but `operator` */
  readonly grants: ReadonlySet<string>;
  readonly tokenId: string;
}

/** The operator on the host itself, who needs no token. No account has this name. */
export const HOST_OPERATOR: Principal = {
  accountId: "(host)" as AccountId,
  grants: new Set(["operator"]),
  tokenId: "",
};

/** Settings of the listener for HTTP from outside. */
export interface IngressSettings {
  readonly address: IngressAddress;
  /** whether owners may make ports public */
  readonly allowsPublic: boolean;
}

/** Bounds that the operator sets. */
export interface ServiceLimits extends SpawnLimits {
  readonly fileBytesMax: number;
  /** largest time that a sandbox lives without a resume */
  readonly sandboxTimeoutSecondsMax: number;
  /** free disk space below which nothing more is stored, in `bytes` */
  readonly diskReserveBytes: number;
  readonly network: NetworkLimits;
  /** how clients reach ports of sandboxes from outside; null: there is no listener for them */
  readonly ingress: IngressSettings | null;
  /** number of instances of the default size that the host can run at once */
  readonly instanceCountMax: number;
  /** how long a request of a client that gives up by itself waits until the host has room, in `milliseconds` */
  readonly roomMsMax: number;
  /** number of imports that the host can run at once */
  readonly importCountMax: number;
}

/** Limits of networks that the operator sets. */
export interface NetworkLimits {
  /** the largest set of hosts that an instance may reach; empty: no instance has a network */
  readonly allow: readonly NetworkRule[];
  /** whether runs may be recorded */
  readonly record: boolean;
}

/** Dependencies of the use cases for operators: the host, and the work of all accounts. */
export interface ApplianceParts {
  readonly scheduler: Pick<Scheduler, "budget" | "used" | "heldBy">;
  readonly machines: Pick<MachineProvider, "counts">;
  /** machines that should wait in the pool */
  readonly poolSize: number;
  readonly health: HealthSettings;
  readonly desk: Pick<OperatorDesk, "running">;
  readonly retention: Pick<ReclaimOptions, "filesTtlMs" | "untaggedTtlMs" | "memoryTtlMs">;
}

/** Dependencies of the use cases. */
export interface ServiceParts {
  readonly accounts: Accounts;
  readonly db: Database;
  readonly layout: DataLayout;
  readonly layers: LayerStore;
  readonly operations: OperationsPort;
  readonly sandboxes: SandboxesPort;
  /** forks of instances with their memory */
  readonly forks: Pick<InstanceForks, "fork">;
  /** builds of templates */
  readonly builds: BuildsPort;
  /** the running instances */
  readonly instances: RunningInstances;
  readonly limits: ServiceLimits;
  /** registry host for references that name none; null refuses them */
  readonly defaultRegistry: string | null;
  /** `milliseconds` since the epoch */
  readonly clock: () => number;
  readonly log: Log;
  readonly metrics: Metrics;
  readonly operationLog: Pick<OperationLog, "lines">;
  readonly eventLogs: Pick<EventLogs, "read" | "scan" | "written">;
  /** the keys that sign tokens */
  readonly keys: TokenKeys;
  readonly appliance: ApplianceParts;
  readonly changes: AccountChanges;
  readonly version: string;
}

/** A page of a listing. `since` and `until` bound the creation time, in the forms that `timeBounds` reads. */
export interface ListRequest {
  readonly limit: number;
  readonly offset: number;
  readonly since?: string | undefined;
  readonly until?: string | undefined;
  /** ends the wait for a long query */
  readonly signal?: AbortSignal | undefined;
}
