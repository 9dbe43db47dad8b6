/* Types of the bodies that the routes declare. */
import type { App } from "../api/app.ts";
import type { Calls } from "./eden.ts";

type Routes = App["~Routes"]["v1"];

/** The routes below /v1 as functions, by path and method; parameters of a path are arguments: `images({ uuid }).get()`. */
export type V1 = Calls<Routes>;

export type Operation = Routes["operations"][":id"]["get"]["response"][200];
export type OperationsQuery = Routes["operations"]["get"]["query"];
export type LogLine = Routes["operations"][":id"]["log"]["get"]["response"][200][number];
/** The request of an operation. */
export type OperationRequest = Routes["operations"][":id"]["request"]["get"]["response"][200];
export type InstanceOperationRequest = Extract<OperationRequest, { readonly kind: "instance" }>;
export type OperationStatus = Operation["status"];
/** The error of a FAILED operation. */
export type OperationFailure = NonNullable<Operation["error"]>;
type OperationResult = NonNullable<Operation["result"]>;
export type InstanceResult = Extract<OperationResult, { exit_code: unknown }>;
/** The network audit of an instance. */
export type NetworkAudit = NonNullable<Operation["network"]>;
export type NetworkEntry = NetworkAudit["entries"][number];
export type ImportResult = Extract<OperationResult, { digest: string }>;
export type CheckpointResult = Extract<OperationResult, { pause_ms: number }>;
export type CheckpointRequest = Routes["instances"][":uuid"]["checkpoint"]["post"]["body"];
export type OutputObject = NonNullable<InstanceResult["stdout"]>;
export type SpawnRequest = Routes["instances"]["post"]["body"];
type SandboxRoutes = Routes["sandboxes"];
export type Sandbox = SandboxRoutes[":sandbox"]["get"]["response"][200];
export type SandboxRequest = SandboxRoutes["post"]["body"];
/** New settings of a sandbox; those that are absent stay. */
export type SandboxChange = SandboxRoutes[":sandbox"]["patch"]["body"];
/** A saved state of a sandbox. */
export type SavedState = SandboxRoutes[":sandbox"]["states"]["get"]["response"][200][number];
export type PauseRequest = SandboxRoutes[":sandbox"]["pause"]["post"]["body"];
export type ResumeRequest = SandboxRoutes[":sandbox"]["resume"]["post"]["body"];
export type RollbackRequest = SandboxRoutes[":sandbox"]["rollback"]["post"]["body"];
export type ForkRequest = SandboxRoutes[":sandbox"]["fork"]["post"]["body"];
/** The sandboxes of a fork with memory. */
export type MemoryFork = Exclude<SandboxRoutes[":sandbox"]["fork"]["post"]["response"][201], readonly unknown[]>;
export type InstanceForkRequest = Routes["instances"][":uuid"]["fork"]["post"]["body"];
/** The copies of an instance. */
export type InstanceFork = Routes["instances"][":uuid"]["fork"]["post"]["response"][201];
/** A network that is more than none. */
export type NetworkRequest = Exclude<NonNullable<SpawnRequest["network"]>, "none">;
/** Use of the host by a running instance. */
export type Usage = Routes["instances"][":uuid"]["stats"]["get"]["response"][200];
export type Image = Routes["images"]["get"]["response"][200][number];
export type ImportRequest = Routes["images"]["import"]["post"]["body"];
export type LoadRequest = Routes["images"]["load"]["post"]["body"];
export type ImageStep = Routes["images"][":uuid"]["lineage"]["get"]["response"][200][number];
/** A row of the branches; `type` tells which. */
export type BranchRow = Extract<Routes["branches"]["get"]["response"][200], readonly unknown[]>[number];
export type BranchImage = Extract<BranchRow, { readonly type: "image" }>;
export type BranchOperation = Extract<BranchRow, { readonly type: "operation" }>;
/** A change in a stream of changes, tagged by `type`. */
export type Change =
  | BranchOperation
  | BranchImage
  /** the image is deleted; what was made from it has its parent as parent now */
  | { readonly type: "deleted"; readonly uuid: string }
  /** changes were left out, so that what the client knows is outdated */
  | { readonly type: "resync" };
/** The effects of deleting an image. */
export type ImageDeletion = Routes["images"][":uuid"]["deletion"]["get"]["response"][200];
export type DiffItem = Routes["images"][":uuid"]["diff"]["get"]["response"][200]["items"][number];
/** A signed statement of how an image came to be, in an envelope of DSSE. */
export type Receipt = Routes["images"][":uuid"]["receipt"]["get"]["response"][200];
export type DirectoryListing = Routes["inspect"][":uuid"]["list"]["get"]["response"][200];
export type ListingItem = DirectoryListing["items"][number];
export type FoundEntries = Routes["inspect"][":uuid"]["find"]["get"]["response"][200];
/** The changes of a path in the lineage of an image. */
export type PathLog = Routes["inspect"][":uuid"]["log"]["get"]["response"][200];
/** The entries of a path, and the steps that changed them last. */
export type Blame = Routes["inspect"][":uuid"]["blame"]["get"]["response"][200];
export type GrepResult = Routes["inspect"][":uuid"]["grep"]["get"]["response"][200];
export type GrepMatch = GrepResult["matches"][number];
export type UploadedFile = Routes["files"]["post"]["response"][201];
/** An event of an operation; the fields of `data` depend on `type`. */
export type OperationEvent = Extract<
  Routes["operations"][":id"]["events"]["get"]["response"][200],
  readonly unknown[]
>[number];
export type OutputEvent = Extract<OperationEvent, { readonly type: "stdout" | "stderr" }>;
/** A process of an instance, in lists. */
export type Process = Routes["instances"][":uuid"]["processes"]["get"]["response"][200][number];
export type ProcessDetails = Routes["instances"][":uuid"]["processes"][":spid"]["get"]["response"][200];
export type StartedProcess = Routes["instances"][":uuid"]["processes"]["post"]["response"][201];
export type ProcessRequest = Routes["instances"][":uuid"]["processes"]["post"]["body"];
type GuestFileRoutes = Routes["instances"][":uuid"]["files"];
/** A file, directory or other entry of a running instance. */
export type GuestEntry = GuestFileRoutes["stat"]["get"]["response"][200];
/** A change in a watched directory. */
export type GuestFileEvent = GuestFileRoutes["watch"]["get"]["response"][200];
type OperatorRoutes = Routes["operator"];
/** A token without its secret. */
export type Token = OperatorRoutes["tokens"]["get"]["response"][200][number];
export type TokenRequest = OperatorRoutes["tokens"]["post"]["body"];
export type IssuedToken = OperatorRoutes["tokens"]["post"]["response"][201];
/** Running and waiting operations, by account. */
export type Load = OperatorRoutes["load"]["get"]["response"][200];
/** Use of the disk. */
export type Space = OperatorRoutes["space"]["get"]["response"][200];
/** Objects and bytes that a collection would remove, or has removed. */
export type Collection = OperatorRoutes["collection"]["get"]["response"][200];
/** Findings of `coppice doctor` on the host. */
export type HealthReport = OperatorRoutes["health"]["get"]["response"][200];
export type Finding = HealthReport["findings"][number];
