/* Bodies of the interface as its routes declare them. */
import type { App } from "../api/app.ts";

type V1 = App["~Routes"]["v1"];

export type Operation = V1["operations"][":id"]["get"]["response"][200];
export type OperationsQuery = V1["operations"]["get"]["query"];
export type LogLine = V1["operations"][":id"]["log"]["get"]["response"][200][number];
type OperationResult = NonNullable<Operation["result"]>;
export type InstanceResult = Extract<OperationResult, { exit_code: unknown }>;
/** What an instance did with its network. */
export type NetworkAudit = NonNullable<Operation["network"]>;
export type NetworkEntry = NetworkAudit["entries"][number];
export type ImportResult = Extract<OperationResult, { digest: string }>;
export type CheckpointResult = Extract<OperationResult, { pause_ms: number }>;
export type OutputObject = NonNullable<InstanceResult["stdout"]>;
export type SpawnRequest = V1["instances"]["post"]["body"];
/** Use of the host by a running instance. */
export type Usage = V1["instances"][":uuid"]["stats"]["get"]["response"][200];
export type ImageStep = V1["images"][":uuid"]["lineage"]["get"]["response"][200][number];
export type DiffItem = V1["images"][":uuid"]["diff"]["get"]["response"][200]["items"][number];
export type DirectoryListing = V1["inspect"][":uuid"]["list"]["get"]["response"][200];
export type ListingItem = DirectoryListing["items"][number];
export type UploadedFile = V1["files"]["post"]["response"][201];
export type GrepMatch = V1["inspect"][":uuid"]["grep"]["get"]["response"][200]["matches"][number];
/** A path in a query: text, or bytes as a text of one character for each. */
export type QueryPath = V1["inspect"][":uuid"]["list"]["get"]["query"]["path"];
/** What an operation did; the fields of `data` depend on `type`. */
export type OperationEvent = Extract<
  V1["operations"][":id"]["events"]["get"]["response"][200],
  readonly unknown[]
>[number];
export type ProcessRequest = V1["instances"][":uuid"]["processes"]["post"]["body"];
