import { ApiError } from "../../../src/domain/errors.ts";
import type { ForkedMachines } from "../../../src/supervisor/machines/machine-source.ts";

const none = () => Promise.reject(new ApiError("unavailable", "no machine can be copied here"));

/** A host whose machines cannot be copied. */
export const NO_MACHINES: ForkedMachines = { cloneFork: none, loadFork: none, checkFork: none, compressFork: none };
