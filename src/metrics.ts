import { KIND_FACTS, type KindFacts, type OperationKind } from "./domain/operation.ts";
import { type Counter, type Histogram, MetricRegistry } from "./system/metric-registry.ts";

/** Counters and histograms of the appliance. Gauges are added to `registry` by the parts that know their values. */
export interface Metrics {
  readonly registry: MetricRegistry;
  readonly requests: Counter<"method" | "route" | "status">;
  readonly requestSeconds: Histogram<"method" | "route">;
  readonly operationsEnded: Counter<"kind" | "state">;
  /** the steps of each kind of operation */
  readonly phaseSeconds: Readonly<Record<OperationKind, Histogram<"phase">>>;
  readonly mergesEnded: Counter<"urgency" | "outcome">;
  readonly mergeSeconds: Histogram<"urgency">;
  readonly eventLoopLagSeconds: Histogram<never>;
  readonly egressConnections: Counter<"verdict">;
  readonly egressBytes: Counter<"direction">;
}

export function createMetrics(
  kinds: Readonly<Record<string, Pick<KindFacts, "metric" | "noun">>> = KIND_FACTS,
): Metrics {
  const registry = new MetricRegistry();
  return {
    registry,
    requests: registry.counter("coppice_http_requests_total", "Answered requests, by the pattern of their route.", [
      "method",
      "route",
      "status",
    ]),
    requestSeconds: registry.histogram(
      "coppice_http_request_duration_seconds",
      "Time from a request to the start of its response.",
      ["method", "route"],
    ),
    operationsEnded: registry.counter("coppice_operations_ended_total", "Ended operations, by their final state.", [
      "kind",
      "state",
    ]),
    phaseSeconds: Object.fromEntries(
      Object.entries(kinds).map(([kind, { metric, noun }]) => [
        kind,
        registry.histogram(`coppice_${metric}_phase_seconds`, `Time of each step of ${noun}.`, ["phase"]),
      ]),
    ) as Metrics["phaseSeconds"],
    mergesEnded: registry.counter(
      "coppice_layer_merges_total",
      "Ended merges of layers. Idle ones make way for other work, urgent ones do not, and a run waits for a forced one.",
      ["urgency", "outcome"],
    ),
    mergeSeconds: registry.histogram(
      "coppice_layer_merge_duration_seconds",
      "Time of each merge of layers whose result was published.",
      ["urgency"],
    ),
    eventLoopLagSeconds: registry.histogram(
      "coppice_event_loop_lag_seconds",
      "Delay of a timer of the daemon, sampled several times a second.",
      [],
    ),
    egressConnections: registry.counter(
      "coppice_egress_connections_total",
      "Connections that instances tried to open, and names that they were refused, by verdict.",
      ["verdict"],
    ),
    egressBytes: registry.counter(
      "coppice_egress_bytes_total",
      "Bytes of instances, sent to the outside and received.",
      ["direction"],
    ),
  };
}
