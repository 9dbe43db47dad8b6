import { type BranchUseCases, branchUseCases } from "./branches/use-cases.ts";
import { type CallerUseCases, callerUseCases } from "./callers.ts";
import { type E2bUseCases, e2bUseCases } from "./e2b/use-cases.ts";
import { type FileUseCases, fileUseCases } from "./files.ts";
import { type ImageUseCases, imageUseCases } from "./images.ts";
import { type IngressUseCases, ingressUseCases } from "./ingress.ts";
import { type InspectUseCases, inspectUseCases } from "./inspection/inspect.ts";
import { type InstanceUseCases, instanceUseCases } from "./instances.ts";
import { type OperationUseCases, operationUseCases } from "./operations.ts";
import { type ApplianceUseCases, applianceUseCases } from "./operator/appliance.ts";
import { type TokenUseCases, tokenUseCases } from "./operator/tokens.ts";
import type { ServiceParts } from "./parts.ts";
import { type GuestFileUseCases, guestFileUseCases } from "./running/files.ts";
import { type ProcessUseCases, processUseCases } from "./running/processes.ts";
import { type SandboxUseCases, sandboxUseCases } from "./sandboxes/sandboxes.ts";
import { type StatusUseCases, statusUseCases } from "./status.ts";
import { type TemplateUseCases, templateUseCases } from "./templates/templates.ts";

/**
 * The use cases of the appliance, one member per noun. Surfaces call only these functions, and nothing below them. Their
 * first parameter is the principal, for whom objects of other accounts do not exist.
 */
export interface Service {
  readonly callers: CallerUseCases;
  readonly branches: BranchUseCases;
  readonly images: ImageUseCases;
  readonly files: FileUseCases;
  readonly instances: InstanceUseCases;
  readonly sandboxes: SandboxUseCases;
  readonly templates: TemplateUseCases;
  /** what clients of the E2B dialect need beyond the other nouns */
  readonly e2b: E2bUseCases;
  readonly processes: ProcessUseCases;
  readonly guestFiles: GuestFileUseCases;
  readonly ingress: IngressUseCases;
  readonly operations: OperationUseCases;
  readonly inspect: InspectUseCases;
  readonly status: StatusUseCases;
  /** these two are only for callers with the scope `operator` */
  readonly tokens: TokenUseCases;
  readonly appliance: ApplianceUseCases;
}

export function createService(parts: ServiceParts): Service {
  return {
    callers: callerUseCases(parts),
    branches: branchUseCases(parts),
    images: imageUseCases(parts),
    files: fileUseCases(parts),
    instances: instanceUseCases(parts),
    sandboxes: sandboxUseCases(parts),
    templates: templateUseCases(parts),
    e2b: e2bUseCases(parts),
    processes: processUseCases(parts),
    guestFiles: guestFileUseCases(parts),
    ingress: ingressUseCases(parts),
    operations: operationUseCases(parts),
    inspect: inspectUseCases(parts),
    status: statusUseCases(parts),
    tokens: tokenUseCases(parts),
    appliance: applianceUseCases(parts),
  };
}
