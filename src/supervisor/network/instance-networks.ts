import type { OperationRow } from "../../db/operations.ts";
import { given } from "../../domain/given.ts";
import type { OperationId } from "../../domain/ids.ts";
import { Spid } from "../../domain/log-event.ts";
import type { NetworkRequest, NetworkVerdict } from "../../domain/network.ts";
import type { Log } from "../../log.ts";
import type { Metrics } from "../../metrics.ts";
import type { Gate } from "../../network/gate.ts";
import type { EventLog } from "../../storage/events/event-logs.ts";
import type { AuditKey } from "./audit.ts";
import { InstanceNetwork, type NetworkListener, type NetworkRecord, type NetworkSettings } from "./instance-network.ts";

/** Limit of lines about denied destinations that one instance adds to the log. */
const LOG_LINES_MAX = 100;
const DENIALS: ReadonlySet<NetworkVerdict> = new Set(["denied", "denied_private", "denied_sni"]);

export interface InstanceNetworksOptions {
  readonly gate: Pick<Gate, "connect" | "resolve">;
  readonly settings: NetworkSettings;
  readonly log: Log;
  readonly clock: () => number;
  readonly metrics: Pick<Metrics, "registry" | "egressConnections" | "egressBytes">;
}

interface OpenOptions {
  /** a network to continue, instead of one with the policy */
  readonly from?: NetworkRecord | undefined;
  /** gets each change */
  readonly keeper?: { update(): void; updateSoon(): void } | undefined;
}

/** Makes the networks of instances, which share the gate, and reports on them to the operator. */
export class InstanceNetworks {
  readonly #options: InstanceNetworksOptions;
  #openCount = 0;

  constructor(options: InstanceNetworksOptions) {
    this.#options = options;
    const { registry } = options.metrics;
    registry.gauge("coppice_egress_open", "Open connections of instances to the outside.", () => [
      [{}, this.#openCount],
    ]);
  }

  /**
   * The network of an operation's instance, to be disposed of when its machine is gone.
   * @param policy null: none at first
   */
  open(
    { id, accountId: account }: Pick<OperationRow, "id" | "accountId">,
    policy: NetworkRequest | null,
    events: Pick<EventLog, "append">,
    { from, keeper }: OpenOptions = {},
  ): InstanceNetwork {
    const { gate, settings, clock } = this.#options;
    const listener = this.#listener(id, events, keeper);
    return new InstanceNetwork({ gate, settings, clock, policy, account, listener, ...given({ from }) });
  }

  /** Reports connections that a guest without a network tried to open: its agent is no longer ours. */
  uninvited(id: OperationId, count: number): void {
    if (count === 0) return;
    this.#options.metrics.egressConnections.add({ verdict: "denied" }, count);
    this.#options.log.warn("an instance without a network tried to open connections", { operation: id, count });
  }

  #listener(id: OperationId, events: Pick<EventLog, "append">, keeper: OpenOptions["keeper"]): NetworkListener {
    const { metrics, log } = this.#options;
    let lineCount = 0;
    let hasFailed = false;
    return {
      counted: (verdict) => {
        keeper?.updateSoon();
        metrics.egressConnections.add({ verdict });
      },
      first: ({ host, port, verdict }: AuditKey) => {
        events.append(Spid.agent, "network", { host, port, verdict });
        if (!DENIALS.has(verdict)) return;
        lineCount += 1;
        if (lineCount <= LOG_LINES_MAX)
          log.info("an instance was denied a connection", { operation: id, host, port, verdict });
      },
      changed: ({ from, to, resetCount }) => {
        events.append(Spid.agent, "network_policy", { from, to, connections_reset: resetCount });
        keeper?.update();
        log.info("the network of an instance changed", { operation: id, connections_reset: resetCount });
      },
      moved: (direction, bytes) => {
        keeper?.updateSoon();
        metrics.egressBytes.add({ direction }, bytes);
      },
      open: (change) => {
        this.#openCount += change;
      },
      failed: (error) => {
        if (!hasFailed) log.error("a connection of an instance failed for an unknown reason", { operation: id, error });
        hasFailed = true;
      },
    };
  }
}
