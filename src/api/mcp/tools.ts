import { FILE_TOOLS } from "./file-tools.ts";
import { IMAGE_TOOLS } from "./image-tools.ts";
import { RUN_TOOLS } from "./run-tools.ts";
import { SANDBOX_TOOLS } from "./sandboxes/tools.ts";
import type { Tool } from "./tool.ts";

/** Every tool, in the order in which clients list them. */
export const TOOLS: readonly Tool[] = [...IMAGE_TOOLS, ...RUN_TOOLS, ...FILE_TOOLS, ...SANDBOX_TOOLS];
