import { ApiError } from "../../../src/domain/errors.ts";
import type { SandboxesOptions } from "../../../src/supervisor/sandboxes/sandboxes.ts";

/** Keeps no memory, as on a host whose machines cannot be copied. */
export const NO_MEMORY: SandboxesOptions["memory"] = {
  keep: () => Promise.reject(new ApiError("conflict", "the virtual machine monitor of this host cannot copy machines")),
  check: () => Promise.resolve(),
  settle: () => undefined,
  sweep: () => Promise.resolve(),
};
