import type { ServiceParts } from "../parts.ts";
import { type AccessUseCases, accessUseCases } from "./access.ts";
import { type RecordUseCases, recordUseCases } from "./records.ts";

/** Use cases for clients of the E2B dialect, beyond those of sandboxes. */
export interface E2bUseCases extends RecordUseCases, AccessUseCases {}

export function e2bUseCases(parts: ServiceParts): E2bUseCases {
  return { ...recordUseCases(parts), ...accessUseCases(parts) };
}
